"""Describes and renews process groups, by exchanging the backends inside torch's objects.

A process group that a user's model holds cannot be exchanged, but its inside can: torch's
`ProcessGroup` is a shell around one backend (gloo, nccl) per device. After a fault `empty` frees
the old backends, and `refill` puts new backends, on a fresh store, into the shell. `empty` calls
``ProcessGroup::release_resources()``, which libtorch exports but does not bind to Python; it frees
threads and sockets. Where the symbol is missing, the new backend is registered under a type number
of its own, and the old backend stays in memory.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
import weakref
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d
from torch.distributed import distributed_c10d as c10d

from nbdist.backends.groups import nccl
from nbdist.backends.torch_private import releases
from nbdist.errors import NbdistError
from nbdist.wire.group_reports import GroupInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.distributed import ProcessGroup

    from nbdist.backends.groups.stores import Store

_limits: weakref.WeakKeyDictionary[ProcessGroup, timedelta] = weakref.WeakKeyDictionary()
"""The time limits of emptied groups: they can be read only from a backend."""

_held = threading.RLock()
"""Held while backends are read or registered, because torch's own tables have no lock.

A group is freed with the GIL released, so another thread could meet a half-freed backend. Other
threads skip such a group. They do not wait until it is freed, which may take seconds, because they
may be about to free the main thread.
"""
_freed: weakref.WeakSet[ProcessGroup] = weakref.WeakSet()
"""Groups that are being freed now."""

RELEASE = "_ZN4c10d12ProcessGroup17release_resourcesEv"
_FIRST_NUMBER, _LAST_NUMBER = 100, 255
"""Type numbers (one byte) for backends that cannot replace an older one."""


# --- describing groups ------------------------------------------------------------------------


def world() -> ProcessGroup | None:
    """Return the group of all ranks, or None before it is formed and after it is destroyed."""
    return c10d._world.default_pg


def members() -> dict[str, ProcessGroup]:
    """Return this rank's groups by name: WORLD first, then in the order of their creation.

    Any thread: the main thread may create or end groups meanwhile.
    """
    names = c10d._world.pg_names
    named = [(names.get(group), group) for group in list(c10d._world.pg_map)]
    groups = {str(name): group for name, group in named if name is not None}
    return dict(sorted(groups.items(), key=lambda item: item[1] is not world()))


def group_named(name: str) -> Any:  # a ProcessGroup, or NON_GROUP_MEMBER
    """Return this rank's group of this name, or torch's NON_GROUP_MEMBER."""
    return members().get(name, dist.GroupMember.NON_GROUP_MEMBER)


def was_emptied(group: ProcessGroup) -> bool:
    """Return whether a group was emptied, and so has lost its original store."""
    return group in _limits


def describe(group: ProcessGroup) -> GroupInfo:
    """Return the values that another rank needs to build the same group."""
    state = c10d._world
    return GroupInfo(
        name=str(state.pg_names[group]),
        ranks=sorted(state.pg_group_ranks[group], key=state.pg_group_ranks[group].__getitem__),
        backend=str(state.pg_map[group][0]),
        timeout=_timeout(group).total_seconds(),
        world=group is world(),
        description=group.group_desc,
        bound=group.bound_device_id is not None,
    )


def infos() -> list[GroupInfo]:
    """Describe this rank's groups, WORLD first, except any being renewed. Any thread."""
    found = []
    for group in members().values():
        with suppress(KeyError):  # the main thread has removed it from torch's tables meanwhile
            found.append(describe(group))
    return found


def group_count() -> int:
    """Return how many groups were ever named: this number is the next group's name."""
    return int(c10d._world.group_count)


def set_group_count(count: int) -> None:
    """Set the number that becomes the next group's name, which must be equal on all ranks."""
    c10d._world.group_count = count


def default_timeout(backend: str) -> timedelta:
    """Return torch's own time limit for a collective on `backend`."""
    limit: timedelta = c10d._get_default_timeout(dist.Backend(backend))
    return limit


def _timeout(group: ProcessGroup) -> timedelta:
    with _held:  # else the last reference to a backend could be ours: see `free`
        options = [_options(backend) for backend in _backends(group).values()]
    for each in options:
        if each is not None:
            limit: timedelta = each._timeout
            return limit
    return _limits.get(group) or default_timeout(str(c10d._world.pg_map[group][0]))


def _options(backend: Any) -> Any:
    try:
        return backend.options
    except (AttributeError, RuntimeError):  # backends in C++ that keep none raise, as MPI's does
        return None


def _backends(group: ProcessGroup) -> dict[torch.device, Any]:
    backends = {}
    with _held:
        for device in group._device_types if group not in _freed else ():
            try:
                backends[device] = group._get_backend(device)
            except RuntimeError:  # emptied, and not refilled yet
                continue
    return backends


def sequences() -> dict[str, int]:
    """Return for each of this rank's groups how many operations were begun in it.

    Gloo counts sends and receives, too; NCCL does not.
    """
    return {
        name: sum(
            backend._get_sequence_number_for_group()
            for backend in {id(each): each for each in _backends(group).values()}.values()
        )
        for name, group in members().items()
    }


# --- renewing groups --------------------------------------------------------------------------


def empty(group: ProcessGroup) -> None:
    """Free a group's backends before `refill`. No thread may still wait in the group."""
    _limits[group] = _timeout(group)
    free(group)


def free(group: ProcessGroup) -> None:
    """Free a group's backends, their threads and sockets, with the GIL released.

    Python would free them with the last reference to the group, and hold the GIL while joining
    gloo's threads. If one of these threads needs the GIL to drop a finished collective, the process
    hangs.
    """
    release = _release()
    if release is None:
        return
    with _held:
        _freed.add(group)
    try:
        release(group._id())  # type: ignore[attr-defined]  # the address of the C++ object
    finally:
        _freed.discard(group)


def refill(group: ProcessGroup, info: GroupInfo, rank: int, store: Store, generation: int) -> None:
    """Put new backends on `store` into an emptied group; all its ranks must call it."""
    ranks = [] if info.world else info.ranks
    device = group.bound_device_id
    with _name_free(group, info.name), nccl.unbound():
        # Since torch 2.14 an emptied group does not know its own size and rank.
        fresh, prefixed = c10d._new_process_group_helper(
            len(info.ranks),
            info.ranks.index(rank),
            ranks,
            dist.Backend(info.backend),
            store,
            releases.group_name(info.name),
            timeout=timedelta(seconds=info.timeout),
            device_id=device,
            group_desc=info.description,
        )
        releases.forget(fresh)
    kinds = dict(dist.BackendConfig(dist.Backend(info.backend)).get_device_backend_map())
    for device, backend in _backends(fresh).items():
        kind = dist.Backend.backend_type_map[kinds[device.type]]
        if _release() is None:
            kind = _own_number(generation)
        with _held:
            group._register_backend(device, kind, backend)
    c10d._world.pg_map[group] = (info.backend, prefixed)


def build(info: GroupInfo, rank: int, store: Store) -> ProcessGroup:
    """Build, on a new rank, a subgroup that others have; all its ranks must call it."""
    with nccl.unbound():
        group, _ = c10d._new_process_group_helper(
            len(info.ranks),
            info.ranks.index(rank),
            info.ranks,
            dist.Backend(info.backend),
            store,
            releases.group_name(info.name),
            timeout=timedelta(seconds=info.timeout),
            device_id=nccl.bound_device(info.backend) if info.bound else None,
            group_desc=info.description,
        )
    c10d._world.pg_group_ranks[group] = {r: i for i, r in enumerate(info.ranks)}
    built: ProcessGroup = group
    return built


def forget_world() -> None:
    """Reset torch to "not initialized", without the communication of `destroy_process_group`."""
    for group in members().values():
        releases.forget(group)
    c10d._update_default_pg(None)
    c10d._world.group_count = 0


@contextmanager
def _name_free(group: ProcessGroup, name: str) -> Iterator[None]:
    """Release this group's name meanwhile for another group: names are keys in the store."""
    names = c10d._world.pg_names
    del names[group]
    _distributed_c10d._unregister_process_group(releases.group_name(name))
    try:
        yield
    finally:
        names[group] = releases.group_name(name)
        _distributed_c10d._register_process_group(releases.group_name(name), group)


@functools.cache
def _release() -> Callable[[int], None] | None:
    library = "libtorch_cpu.dylib" if sys.platform == "darwin" else "libtorch_cpu.so"
    place = Path(torch.__file__).parent / "lib" / library
    with suppress(OSError, AttributeError):  # the library is elsewhere, or does not export it
        function = ctypes.CDLL(str(place))[RELEASE]
        function.argtypes, function.restype = [ctypes.c_void_p], None
        return function
    return None


def keeps_old() -> bool:
    """Return whether this torch has no way to free the old backend of a renewed group."""
    return _release() is None


def _own_number(generation: int) -> Any:  # a value without a name in torch's enum
    number = _FIRST_NUMBER + generation
    if number > _LAST_NUMBER:
        msg = (
            f"the process groups were renewed {generation} times, which is all this torch "
            f"({torch.__version__}) allows; restart the ranks with %dist restart"
        )
        raise NbdistError(msg)
    return dist.ProcessGroup.BackendType(number)


def each_part(name: str, do: Callable[[Any], object]) -> None:
    """Call `do` with each backend object of this name (nccl, gloo) in this rank's groups.

    Any thread. No group is freed meanwhile, so the last reference to a backend is never ours.
    """
    with _held:
        found = [
            getattr(backend, "wrapped_pg", backend)  # TORCH_DISTRIBUTED_DEBUG=DETAIL
            for group in members().values()
            for backend in _backends(group).values()
        ]
        while found:
            if found[0].name().startswith(name):
                do(found[0])
            del found[0]
