"""What a cell shows: its area, its job's output, tables."""
