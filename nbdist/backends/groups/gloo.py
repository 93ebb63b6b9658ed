"""gloo as ranks that stay need it: all connections of a group closed, also those that are deaf.

What arrives for a receive that is given up (its collective has failed, or nobody kept what
``dist.irecv`` returned) makes a connection deaf, up to torch 2.15: `prepareRead` in gloo's pair.cc
finds no buffer and returns before it reads. From then on nothing is heard on that connection, not
even its own end, and gloo's thread spins. Who waits for anything else that comes through it waits
until the group's time limit, and so does who ends the group. But a receive that exceeds its own
limit closes all connections of its group, and wakes who waits for them.
"""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch

NAME = "gloo"
TAG = (1 << 31) - 1
"""Of a message that nobody sends."""
LIMIT = timedelta(milliseconds=1)


def close(part: Any) -> None:
    """Close the connections of a group's part that is gloo's. Any thread.

    Parameters
    ----------
    part
        A ``ProcessGroupGloo``, of no use afterwards.
    """
    if os.environ.get("TORCH_GLOO_LAZY_INIT") == "1":
        return  # a connection that was never used would be made now, which may take forever
    for peer in range(part.size()):
        if peer != part.rank():
            with suppress(Exception):  # this one exceeds the limit, or all are closed already
                part.recv([torch.empty(1, device="cpu")], peer, TAG).wait(LIMIT)
