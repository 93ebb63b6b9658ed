"""Differences between releases of torch, found by which names exist, never by version numbers.

Releases 2.9 to 2.15 were examined. A name that is missing in a release has another name there, or
is not needed.
"""

from __future__ import annotations

import inspect
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch._C import _distributed_c10d
from torch.distributed import distributed_c10d as c10d

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed import ProcessGroup

group_name: Callable[[str], Any] = getattr(c10d, "GroupName", str)
"""Convert a string to the type of a group's name: `GroupName` since 2.10."""

_BOOKS = ("pg_map", "pg_names", "pg_group_ranks", "pg_backend_config", "pg_coalesce_state")
"""The tables of ``_world`` about groups."""


def outside_of_split() -> Any:
    """Return what ``split_group`` returns on a rank in no part: None before 2.15."""
    told = str(inspect.signature(c10d.split_group).return_annotation)
    return c10d.GroupMember.NON_GROUP_MEMBER if "NonGroupMember" in told else None


def forget(group: ProcessGroup) -> None:
    """Remove a group from torch's tables, without communication."""
    world = c10d._world
    clean = getattr(c10d, "_cleanup_process_group_global_state", None)
    if clean is not None:
        clean(group)
    else:  # before 2.10
        named = world.pg_names[group]
        for book in _BOOKS:
            getattr(world, book).pop(group, None)
        _drop(world.tags_to_pg.get(world.pg_to_tag.pop(group), []), group)
        with suppress(RuntimeError):  # it is not registered
            _distributed_c10d._unregister_process_group(named)
    _drop(world.tags_to_pg.get("", []), group)


def _drop(groups: list[ProcessGroup], group: ProcessGroup) -> None:
    groups[:] = [other for other in groups if other is not group]


def import_what_leaves_folders() -> None:
    """Import the module of torch that makes a temporary folder at import, if it does so.

    Up to torch 2.9 every process that uses an optimizer makes such a folder, and leaves it behind
    when killed. Forks share the folder that is made here.
    """
    spec = find_spec("torch.distributed.nn.jit.instantiator")
    if spec is not None and spec.origin and MAKES in Path(spec.origin).read_text("utf-8"):
        import_module(spec.name)


MAKES = "tempfile.TemporaryDirectory()"


def fsdp_groups(state: Any) -> list[Any]:
    """Return the parameter groups of an FSDPState; before 2.12 it has at most one."""
    several = getattr(state, "_fsdp_param_groups", None)
    if several is not None:
        return list(several)
    return [group for group in (state._fsdp_param_group,) if group is not None]


def clear(thing: Any, rest: dict[str, Any]) -> None:
    """Reset the attributes that exist to the values in `rest`; empty their containers."""
    for name, value in rest.items():
        if not hasattr(thing, name):
            continue
        if value is EMPTY:
            getattr(thing, name).clear()
        else:
            setattr(thing, name, value)


EMPTY: Any = object()
"""A value with which `clear` empties a container."""
