"""Finds the notebook's names that a cell needs, and sends their values to the ranks."""
