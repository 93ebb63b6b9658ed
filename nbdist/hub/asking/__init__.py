"""Requests of the hub to ranks between cells: variables, stacks, copies, comparisons."""
