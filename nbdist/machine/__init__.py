"""The machine under us: processes, sockets, GPUs, leftovers, and how amounts are written."""
