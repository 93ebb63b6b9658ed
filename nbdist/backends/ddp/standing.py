"""Tells how a rank's groups stand after a cell, so that groups that are whole are not renewed.

The counts of the groups' operations say what a cell has begun, torch's flight recorder what it was
and whether it has ended. What they cannot tell counts as broken. Main thread.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from nbdist.backends.torch_private import process_groups, recorder, renew_models
from nbdist.wire.group_reports import Standing

if TYPE_CHECKING:
    from collections.abc import Iterable

TRY_SECONDS = 2.0
"""The limit for the collective by which a group is tried."""
GONE = -1
"""The number of operations in a group that the cell has destroyed."""


class Since:
    """What the present cell has done with the groups.

    It uses private parts of torch: where they are missing, everything counts as broken.
    """

    def __init__(self) -> None:
        self._began: dict[str, int] | None = None
        self._count = 0

    def begin(self) -> None:
        """Note the counts of operations when a cell begins."""
        self._began = None
        with suppress(Exception):  # another torch does not count: all is broken
            self._count = process_groups.group_count()
            self._began = process_groups.sequences()

    def standing(self, models: Iterable[torch.nn.Module]) -> Standing:
        """Return how the groups stand; `models` are the DDP models."""
        try:
            return self._standing(models)
        except Exception:  # as above
            return Standing(broken=True)

    def _standing(self, models: Iterable[torch.nn.Module]) -> Standing:
        if self._began is None:
            return Standing(broken=True)
        now, records = process_groups.sequences(), recorder.last()
        used = {name: count - self._began.get(name, 0) for name, count in now.items()}
        used |= dict.fromkeys(self._began.keys() - now.keys(), GONE)
        last = {name: records.get(name, {}) for name, count in used.items() if count}
        # Other operations than collectives (send, recv) are counted, but not recorded.
        unknown = any(max(last[name], default=None) != now.get(name) for name in last)
        pending = any(not ended for each in records.values() for _, ended in each.values())
        return Standing(
            broken=unknown or pending or bool(recorder.on_gpu()) or _left_midway(models),
            count=process_groups.group_count() - self._count,
            used=used,
            last={name: [f"{op} #{n}" for n, (op, _) in last[name].items()] for name in last},
        )

    def works(self) -> bool:
        """Try each group by a small collective; every rank of each group must call it."""
        tried = []
        try:
            for group in process_groups.members().values():
                one = torch.ones(1)
                tried.append((group, one, dist.all_reduce(one, group=group, async_op=True)))
            for group, one, work in tried:
                work.wait(timedelta(seconds=TRY_SECONDS))
                if one.item() != dist.get_world_size(group):
                    return False
        except Exception:  # a cut connection, or a backend without CPUs
            return False
        return True


def _left_midway(models: Iterable[torch.nn.Module]) -> bool:
    """Whether a forward or backward pass of a model has begun and not ended."""
    left = [model for model in models if not renew_models.ddp_rests(model)]
    return bool(left) or not renew_models.fsdp_rests()
