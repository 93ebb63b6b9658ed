"""The warm process of a host, which forks ranks, and the kernel's end of it."""
