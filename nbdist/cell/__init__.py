"""Analyses a cell: the names it needs, and the cell written as a Python script."""
