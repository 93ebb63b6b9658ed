"""Writes a cell, with the notebook's names that it needs, as a Python script."""
