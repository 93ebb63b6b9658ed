"""Replaces functions inside torch, once in each rank, before the first process group."""

from __future__ import annotations

import functools
import os
import tempfile
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from nbdist.backends.groups.registry import replace_everywhere
from nbdist.backends.torch_private import process_groups, releases
from nbdist.machine import sockets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import timedelta

    from torch.distributed import ProcessGroup

    from nbdist.backends.groups.stores import Store


def free_destroyed() -> None:
    """Let ``destroy_process_group`` free the backends itself, not the last reference to a group."""
    original: Callable[[ProcessGroup | None], None] = c10d.destroy_process_group

    @functools.wraps(original)
    def destroy_process_group(group: ProcessGroup | None = None) -> None:
        everything = group is None or group is process_groups.world()
        going = list(process_groups.members().values()) if everything else [group]
        original(group)
        for gone in going:
            if isinstance(gone, dist.ProcessGroup):  # NON_GROUP_MEMBER is an int
                process_groups.free(gone)

    replace_everywhere("destroy_process_group", original, destroy_process_group)


def guard_split() -> None:
    """Let ``split_group`` work on renewed groups and on GPUs; call it once.

    In C++ it asks the group for its original store, which was freed with the old backends: a crash.
    On GPUs it waits in NCCL for all ranks of the group, and this wait cannot be interrupted.
    ``new_group`` among the members has the same result.
    """
    bare = dist.ProcessGroup.split_group
    original: Callable[..., ProcessGroup | None] = c10d.split_group

    @functools.wraps(original)
    def split_group(
        parent_pg: ProcessGroup | None = None,
        split_ranks: list[list[int]] | None = None,
        timeout: timedelta | None = None,
        pg_options: Any = None,
        group_desc: str | None = None,
        **kwargs: Any,
    ) -> ProcessGroup | None:
        parent = parent_pg or process_groups.world()
        spared = parent is not None and (
            process_groups.was_emptied(parent) or parent.bound_device_id
        )
        if parent is None or not spared or not split_ranks:
            return original(parent_pg, split_ranks, timeout, pg_options, group_desc, **kwargs)
        return _new_groups(
            parent,
            split_ranks,
            timeout,
            backend=kwargs.get("backend"),
            pg_options=pg_options,
            group_desc=group_desc,
        )

    @functools.wraps(bare)
    def split_bare(self: ProcessGroup, *args: Any, **kwargs: Any) -> ProcessGroup | None:
        if process_groups.was_emptied(self):
            raise RuntimeError(
                "this process group was renewed after a fault and cannot be split by its own "
                "method any more; use torch.distributed.new_group"
            )
        return bare(self, *args, **kwargs)

    dist.ProcessGroup.split_group = split_bare  # type: ignore[method-assign]
    replace_everywhere("split_group", original, split_group)


def _new_groups(
    parent: ProcessGroup, split_ranks: list[list[int]], timeout: timedelta | None, **options: Any
) -> ProcessGroup | None:
    """Create a group for each part of a group's ranks; return the one that has this rank."""
    everyone = dist.get_process_group_ranks(parent)
    whole = parent is process_groups.world()
    found: ProcessGroup | None = releases.outside_of_split()
    for part in split_ranks:  # every rank must count each new group
        ranks = [everyone[rank] for rank in sorted(part)]
        made = dist.new_group(ranks, timeout, use_local_synchronization=not whole, **options)
        found = made if parent.rank() in part else found
    return found


def share_gloo_device(host: str, *, quiet: bool) -> sockets.Address:
    """Let all gloo groups of this process use one device on `host`; return its address.

    By default every group makes a device, which is a listening socket and a thread, on the
    interface of the host's name.

    Parameters
    ----------
    host
        An address of this machine.
    quiet
        Whether to suppress the line that gloo prints for each group, up to torch 2.9.
    """
    device, address = _gloo_device(host)
    original = c10d.ProcessGroupGloo

    class ProcessGroupGloo(original, metaclass=_alike(original)):  # type: ignore[metaclass, misc, valid-type]
        """Torch's class, using this process's gloo device."""

        def __init__(
            self,
            store: Store,
            rank: int,
            size: int,
            timeout: timedelta | None = None,
            **more: Any,
        ) -> None:
            options = original._Options()  # type: ignore[attr-defined]
            options._devices = [device]
            options._timeout = timeout or process_groups.default_timeout("gloo")
            for name, value in more.items():  # later releases may add some
                setattr(options, name, value)
            with without_lines(GLOO_SAYS) if quiet else nullcontext():
                super().__init__(store, rank, size, options)

    replace_everywhere("ProcessGroupGloo", original, ProcessGroupGloo)
    return address


def _alike(original: type) -> type:
    """Return a metaclass for a class whose `isinstance` accepts instances of the original."""

    class Alike(type(original)):  # type: ignore[misc]
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, original)

    return Alike


def quiet_gloo() -> None:
    """Suppress gloo's line for each group, in a process that creates its groups itself."""
    original = c10d.ProcessGroupGloo

    class ProcessGroupGloo(original, metaclass=_alike(original)):  # type: ignore[metaclass, misc, valid-type]
        """Torch's class, without gloo's lines on the output."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            with without_lines(GLOO_SAYS):
                super().__init__(*args, **kwargs)

    replace_everywhere("ProcessGroupGloo", original, ProcessGroupGloo)


GLOO_SAYS = b"[Gloo] Rank "


@contextmanager
def without_lines(beginning: bytes) -> Iterator[None]:
    """Remove lines with this beginning from the process's output; all other lines are kept."""
    kept = os.dup(1)
    with tempfile.TemporaryFile() as gathered:
        os.dup2(gathered.fileno(), 1)
        try:
            yield
        finally:
            os.dup2(kept, 1)
            gathered.seek(0)
            os.write(kept, b"".join(line for line in gathered if not line.startswith(beginning)))
            os.close(kept)


def _gloo_device(host: str) -> tuple[object, sockets.Address]:
    while True:
        before = sockets.listening()
        device = c10d.ProcessGroupGloo.create_device(hostname=host)
        new = {address for address in sockets.listening() - before if address[0] == host}
        # More than one: another thread opened a listening socket meanwhile. Try again.
        if len(new) == 1:
            return device, new.pop()


def watch_ddp(seen: Callable[[Any], None]) -> None:
    """Call `seen` with every DDP model when it is constructed or unpickled."""
    model_type = torch.nn.parallel.DistributedDataParallel
    original = model_type._ddp_init_helper

    def _ddp_init_helper(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        seen(self)

    model_type._ddp_init_helper = _ddp_init_helper  # type: ignore[method-assign]
