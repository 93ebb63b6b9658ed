"""The hub's links to the ranks: sockets, turns, the process group formed."""
