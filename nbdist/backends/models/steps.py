"""Counts the optimizer steps of a cell, and samples the trained objects before the first of them.

After a fault both tell what the fault has done: ranks that have parted took another number of
steps, and objects that were different before the cell were never meant to be equal. Torch's own
count of changes in place tells neither, as fused optimizers do not move it. Main thread.
"""

from __future__ import annotations

import hashlib
import weakref
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from nbdist.backends.models.equality import changes, parameters_of
from nbdist.backends.models.trained_objects import bare, is_a, trained

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

MOST_TENSORS = 256
"""From so many tensors of an object, evenly spread, one number each is read."""


@dataclass
class _Count:
    """The steps of one optimizer in this cell."""

    begun: int = 0
    ended: int = 0
    freed: int = 0
    """Those that began after this rank was freed from a collective: with wrong gradients, maybe."""


def _sum(counts: list[_Count]) -> list[int]:
    return [sum(getattr(one, name) for one in counts) for name in ("begun", "ended", "freed")]


class Steps:
    """The optimizer steps of one cell.

    Parameters
    ----------
    whole
        Returns whether nothing has freed this rank from a collective in this cell.
    """

    def __init__(self, whole: Callable[[], bool] = lambda: True) -> None:
        self._whole = whole
        self._namespace: Mapping[str, object] = {}
        self._counts: weakref.WeakKeyDictionary[Any, _Count] = weakref.WeakKeyDictionary()
        self._before: dict[int, tuple[weakref.ref[Any], str]] = {}
        """For the id of an object, its sample before the cell's first step."""
        self._changes: dict[int, tuple[weakref.ref[Any], int]] = {}
        """For the id of a tensor or a scheduler, its count of changes at the last comparison."""
        self.job = ""
        """The job of the cell; '' before the first one: what a new rank has, others gave it."""

    def install(self) -> None:
        """Hear of the steps of all optimizers; once in each process."""
        global current  # a process is one rank
        current = self
        register_optimizer_step_pre_hook(_begins)
        register_optimizer_step_post_hook(_ended)

    def begin(self, namespace: Mapping[str, object], job: str) -> None:
        """Begin to count for a cell."""
        self._namespace, self.job = namespace, job
        if self._counts or self._before:
            self._counts.clear()
            self._before.clear()

    def total(self) -> list[int]:
        """Return how many steps began, ended, and began after this rank was freed."""
        return _sum(list(self._counts.values()))

    @property
    def any(self) -> bool:
        """Whether any optimizer has begun a step in this cell."""
        return bool(self._counts)

    def before(self, thing: Any, *, failed: bool) -> str:
        """Return the sample of an object as it was before this cell's first step; '' if unknown.

        Parameters
        ----------
        thing
            The object.
        failed
            Whether this cell is of the job that failed; else nothing was changed here since then.
        """
        if not self.job:
            return ""
        if not self._counts or not failed:
            return sample(thing)
        known, told = self._before.get(id(bare(thing)), (None, ""))
        return told if known is not None and known() is bare(thing) else ""

    def of(self, thing: Any) -> list[int]:
        """Return the steps taken with an object, or with its parameters; [] if there were none."""
        mine = {id(one) for one in parameters_of(thing)}
        counts = [
            count
            for optimizer, count in list(self._counts.items())
            if optimizer is thing or any(id(one) in mine for one in parameters_of(optimizer))
        ]
        return _sum(counts) if counts else []

    def changes_since(self, thing: Any) -> int:
        """Return how often a tensor or a scheduler was changed since the last comparison."""
        known, then = self._changes.get(id(thing), (None, 0))
        return changes(thing) - (then if known is not None and known() is thing else 0)

    def forget_dead(self) -> None:
        """Forget the counts of what no longer exists."""
        self._changes = {key: one for key, one in self._changes.items() if one[0]() is not None}

    def compared(self, thing: Any) -> None:
        """Begin to count the changes of a tensor or a scheduler that is compared now."""
        self._changes[id(thing)] = weakref.ref(thing), changes(thing)

    def begins(self, optimizer: Any) -> None:
        """Count a step that begins."""
        count = self._counts.get(optimizer)
        if count is None:
            with suppress(Exception):  # the step matters more than what is known of it
                self._note(optimizer)
            count = self._counts[optimizer] = _Count()
        count.begun += 1
        count.freed += not self._whole()

    def ended(self, optimizer: Any) -> None:
        """Count a step that has ended."""
        if optimizer in self._counts:
            self._counts[optimizer].ended += 1

    def _note(self, optimizer: Any) -> None:
        """Sample what the first step is about to change."""
        things = [optimizer] if self._counts else [*trained(self._namespace).values(), optimizer]
        for thing in map(bare, things):
            if id(thing) not in self._before:
                self._before[id(thing)] = weakref.ref(thing), sample(thing)


current: Steps | None = None
"""The counts of this process."""


# Functions of a module, for torch's table of them is pickled with a class that a cell has made.
def _begins(optimizer: Any, *_: object) -> None:
    if current is not None:
        current.begins(optimizer)


def _ended(optimizer: Any, *_: object) -> None:
    if current is not None:
        current.ended(optimizer)


def sample(thing: Any) -> str:
    """Return a digest of an object's numbers, and of one number of each tensor; '' if unreadable.

    It tells whether two ranks have ever held the same, at a thousandth of a digest's cost.
    """
    try:
        tensors, numbers = _insides(bare(thing))
        plain = [one for one in tensors if _is_plain(one)]
        read = _numbers(plain[:: -(-len(plain) // MOST_TENSORS) or 1])
    except BaseException:  # the user's state_dict, or an unknown kind of tensor
        return ""
    return hashlib.blake2b(repr((numbers, read)).encode(), digest_size=8).hexdigest()


def _insides(thing: Any) -> tuple[list[Tensor], list[Any]]:
    """Return the tensors and the numbers of an object, by the user's code only if need be."""
    if is_a(thing, torch.Tensor):
        return [thing], []
    if is_a(thing, torch.nn.Module):
        return list(thing.parameters()), []
    if is_a(thing, torch.optim.Optimizer):
        state = [one for p in parameters_of(thing) for one in thing.state.get(p, {}).values()]
        settings = [
            sorted((k, v) for k, v in group.items() if isinstance(v, (bool, int, float)))
            for group in thing.param_groups
        ]
        tensors = [*parameters_of(thing), *(one for one in state if is_a(one, torch.Tensor))]
        return tensors, settings
    return [], [thing.state_dict()]


def _is_plain(tensor: Tensor) -> bool:
    return bool(
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout is torch.strided
        and not (tensor.is_quantized or tensor.is_complex() or tensor.device.type == "meta")
        and tensor.numel()
    )


def _numbers(tensors: list[Tensor]) -> list[Any]:
    """Read the middle number of each tensor, in one transfer from each device."""
    middles: dict[torch.device, list[Tensor]] = {}
    for one in tensors:
        middle = one.detach()[tuple(size // 2 for size in one.shape)]
        middles.setdefault(one.device, []).append(middle.double())
    return [torch.stack(each).tolist() for each in middles.values()]
