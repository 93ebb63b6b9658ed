"""Closes all connections of a gloo process group, those that no longer receive included.

A message may arrive for a receive that was given up: its collective has failed, or nothing refers
to the result of ``dist.irecv``. Up to torch 2.15 the connection then stops reading: `prepareRead`
in gloo's pair.cc finds no buffer and returns. From then on this process does not even notice when
the connection is closed, and gloo's thread spins. A thread that waits for another message on this
connection, or that ends the group, waits until the group's time limit. But a receive that exceeds
its own time limit closes all connections of its group, and so ends all waits in this group.
"""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch

NAME = "gloo"
TAG = (1 << 31) - 1
"""The tag of a message that no rank sends."""
LIMIT = timedelta(milliseconds=1)


def close(part: Any) -> None:
    """Close the connections of a gloo process group. Any thread.

    Parameters
    ----------
    part
        A ``ProcessGroupGloo``; it cannot be used afterwards.
    """
    if os.environ.get("TORCH_GLOO_LAZY_INIT") == "1":
        return  # a receive would open a connection never used so far, which may take forever
    for peer in range(part.size()):
        if peer != part.rank():
            with suppress(Exception):  # its limit is exceeded, or all are closed
                part.recv([torch.empty(1, device="cpu")], peer, TAG).wait(LIMIT)
