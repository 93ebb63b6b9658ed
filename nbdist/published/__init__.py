"""Publishes the state of a kernel or keeper to other processes, and takes their commands."""
