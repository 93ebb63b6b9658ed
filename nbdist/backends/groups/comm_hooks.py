"""States of DDP's communication hooks (PowerSGD): read, reset, and sent with their models."""

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
    """Return the states of a DDP model's hooks; none if this torch does not show them."""
    return [state for _, state in getattr(model, "_comm_hooks", ())]


def attributes(thing: object) -> dict[str, Any]:
    """Return an object's attributes, those in slots included, as PowerSGD's state has them."""
    found = dict(getattr(thing, "__dict__", {}))
    for kind in type(thing).__mro__:
        for name, member in vars(kind).items() if "__slots__" in vars(kind) else ():
            if type(member) is MemberDescriptorType:
                with suppress(AttributeError):  # not bound yet
                    found[name] = member.__get__(thing)
    return found


def counters(model: Any) -> dict[str, float]:
    """Return the counters in the states of a model's hooks, which control the hooks' behaviour."""
    return {
        f"{place}.{name}": value
        for place, state in enumerate(states_of(model))
        for name, value in attributes(state).items()
        if type(value) in (int, float)
    }


def set_counters(model: Any, numbers: dict[str, float]) -> None:
    """Set the counters that `counters` returned on another rank."""
    for name, value in numbers.items():
        place, _, attribute = name.partition(".")
        setattr(states_of(model)[int(place)], attribute, value)


def begin_again(states: Iterable[Any]) -> bool:
    """Reset PowerSGD's states, which keep data for each bucket; return whether they kept any.

    DDP forms its buckets again, so the state of the old buckets does not fit. And ranks that were
    interrupted at different points of a step have different step counts and random states: one rank
    would compress while another does not.
    """
    module = sys.modules.get(POWER_SGD)
    kept = False
    for state in states:
        if module is None or not isinstance(state, module.PowerSGDState):
            continue
        for memory in (state.error_dict, state.p_memory_dict, state.q_memory_dict):
            kept |= bool(memory)
            memory.clear()
        state.iter = state.next_stats_report = 0
        state.total_numel_before_compression = state.total_numel_after_compression = 0
        state.rng.seed(0)
    return kept


def groups_of(states: Iterable[Any]) -> dict[int, Any]:
    """Return the process groups in the states of hooks, by the place of the state.

    Torch's own states lose their group when pickled, and get WORLD instead.
    """
    groups = {place: getattr(state, "process_group", None) for place, state in enumerate(states)}
    return {at: group for at, group in groups.items() if isinstance(group, dist.ProcessGroup)}
