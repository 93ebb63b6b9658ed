"""Detached jobs: they go on after the notebook's kernel has ended."""
