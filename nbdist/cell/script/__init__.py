"""A cell and what it needs of the notebook, written as a Python script."""
