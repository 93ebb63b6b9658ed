"""Starts, signals and stops the processes of ranks, persistent or launched as a script."""
