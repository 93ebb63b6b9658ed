"""Values on their way out of a process and into one: compared, pickled, refused."""
