"""Helpers of tests: kernels, ranks, hosts, faults, waits, and a check for leftovers."""
