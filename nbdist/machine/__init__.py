"""Services of this machine: processes, sockets, GPUs, old files; how amounts are written."""
