"""Reads what ranks have logged: complete series, thinned curves, tables, TensorBoard."""
