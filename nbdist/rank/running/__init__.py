"""Runs cells on a rank: execution, output, rich display, line numbers."""
