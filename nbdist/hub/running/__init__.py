"""Runs a job from its turn to its end: on ranks, as a script, or in the kernel."""
