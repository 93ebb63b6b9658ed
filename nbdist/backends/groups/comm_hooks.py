"""What DDP's communication hooks keep, when their models get new reducers and travel."""

from __future__ import annotations

import sys
from contextlib import suppress
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Iterable

POWER_SGD = "torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook"


def states_of(model: Any) -> list[Any]:
    """Return the states of a DDP model's hooks; none where torch keeps them out of sight."""
    return [state for _, state in getattr(model, "_comm_hooks", ())]


def attributes(thing: object) -> dict[str, Any]:
    """Return what an object holds, also in slots, as PowerSGD's state does."""
    found = dict(getattr(thing, "__dict__", {}))
    for kind in type(thing).__mro__:
        for name, member in vars(kind).items() if "__slots__" in vars(kind) else ():
            if type(member) is MemberDescriptorType:
                with suppress(AttributeError):  # not bound yet
                    found[name] = member.__get__(thing)
    return found


def counters(model: Any) -> dict[str, float]:
    """Return the numbers in the states of a model's hooks, by which these decide what to do."""
    return {
        f"{place}.{name}": value
        for place, state in enumerate(states_of(model))
        for name, value in getattr(state, "__dict__", {}).items()
        if type(value) in (int, float)
    }


def set_counters(model: Any, numbers: dict[str, float]) -> None:
    """Set what `counters` has returned on another rank."""
    for name, value in numbers.items():
        place, _, attribute = name.partition(".")
        setattr(states_of(model)[int(place)], attribute, value)


def begin_again(states: Iterable[Any]) -> None:
    """Let hooks that keep something for each bucket begin as at the first step.

    Buckets are cut anew, so what PowerSGD has for the old ones fits no more. And ranks that were
    stopped at different points of a step have counted their steps, and drawn their random numbers,
    unequally often: one would compress where another does not.
    """
    module = sys.modules.get(POWER_SGD)
    for state in states:
        if module is None or not isinstance(state, module.PowerSGDState):
            continue
        for memory in (state.error_dict, state.p_memory_dict, state.q_memory_dict):
            memory.clear()
        state.iter = 0
        state.rng.seed(0)


def groups_of(states: Iterable[Any]) -> dict[int, Any]:
    """Return the process groups that hooks' states hold, by their places.

    Pickles of torch's own states leave them out, and take WORLD in their place.
    """
    groups = {place: getattr(state, "process_group", None) for place, state in enumerate(states)}
    return {at: group for at, group in groups.items() if isinstance(group, dist.ProcessGroup)}
