"""What differs between torch's releases, told apart by what is there and never by a number.

2.9 to 2.15 were looked at. A name that a release lacks has another one there, or is not needed.
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
"""Make what torch takes for a group's name; a type of its own since 2.10."""

_BOOKS = ("pg_map", "pg_names", "pg_group_ranks", "pg_backend_config", "pg_coalesce_state")
"""Where ``_world`` keeps what it knows of a group."""


def outside_of_split() -> Any:
    """Return what ``split_group`` gives a rank that is in no part: since 2.15 no None."""
    told = str(inspect.signature(c10d.split_group).return_annotation)
    return c10d.GroupMember.NON_GROUP_MEMBER if "NonGroupMember" in told else None


def forget(group: ProcessGroup) -> None:
    """Take a group out of torch's books, without a word to the other ranks."""
    world = c10d._world
    named = world.pg_names.get(group)
    clean = getattr(c10d, "_cleanup_process_group_global_state", None)
    if clean is not None:
        clean(group)
    else:  # before 2.10
        for book in _BOOKS:
            getattr(world, book).pop(group, None)
        tag = world.pg_to_tag.pop(group, None)
        if tag is not None:
            _drop(world.tags_to_pg.get(tag, []), group)
        if named is not None:
            with suppress(RuntimeError):  # it is not registered
                _distributed_c10d._unregister_process_group(named)
    _drop(world.tags_to_pg.get("", []), group)


def _drop(groups: list[ProcessGroup], group: ProcessGroup) -> None:
    groups[:] = [other for other in groups if other is not group]


def import_what_leaves_folders() -> None:
    """Import what makes a folder in the temp folder when it is imported, if this torch does so.

    Up to torch 2.9 a process that uses an optimizer makes one, and leaves it behind when it is
    killed. Forks share the one that is made here.
    """
    spec = find_spec("torch.distributed.nn.jit.instantiator")
    if spec is not None and spec.origin and MAKES in Path(spec.origin).read_text("utf-8"):
        import_module(spec.name)


MAKES = "tempfile.TemporaryDirectory()"


def fsdp_groups(state: Any) -> list[Any]:
    """Return the parameter groups of an FSDPState: one at most, before 2.12."""
    several = getattr(state, "_fsdp_param_groups", None)
    if several is not None:
        return list(several)
    return [group for group in (state._fsdp_param_group,) if group is not None]


def clear(thing: Any, rest: dict[str, Any]) -> None:
    """Set the attributes that are there to what they are at rest; containers are emptied."""
    for name, value in rest.items():
        if not hasattr(thing, name):
            continue
        if value is EMPTY:
            getattr(thing, name).clear()
        else:
            setattr(thing, name, value)


EMPTY: Any = object()
"""Says to `clear` that a container is empty at rest."""
