"""Which names of the notebook a cell needs, and how they are brought to the ranks."""
