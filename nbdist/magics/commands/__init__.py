"""The commands of ``%dist``, one module each."""
