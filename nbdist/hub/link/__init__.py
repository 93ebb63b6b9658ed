"""The hub's connections to the ranks: sockets, turns, and the process group."""
