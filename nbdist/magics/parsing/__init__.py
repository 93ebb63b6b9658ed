"""Reads what stands on the line of a magic: flags, a command of ``%dist``, ids of jobs."""
