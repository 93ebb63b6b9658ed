"""Functions and classes of the notebook as source that makes them again."""
