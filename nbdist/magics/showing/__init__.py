"""Shows a cell's output: its area, its job's output, what its ranks wait for."""
