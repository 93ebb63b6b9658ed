"""Launchers of scripts: torchrun, horovodrun and plain Python, on one or several hosts."""
