"""Answers questions about a rank's variables and state: `%dist who`, Tab, stacks, digests."""
