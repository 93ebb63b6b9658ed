"""The order that starts a keeper: a file in the job's folder, written and read once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from nbdist.detached.job_folders import Kept, write
from nbdist.hub.running.launch_plan import Plan

if TYPE_CHECKING:
    from pathlib import Path

FILE = "order.json"


class Order(msgspec.Struct):
    """The order for a keeper: the job, and how to launch it."""

    kept: Kept
    plan: Plan


def give(folder: Path, order: Order) -> None:
    """Write the order into a job's folder, before its keeper is started."""
    write(folder, FILE, order)


def take(folder: Path) -> Order:
    """Read the order and remove its file. For the keeper."""
    path = folder / FILE
    order = msgspec.json.decode(path.read_bytes(), type=Order)
    path.unlink()
    return order
