"""The ``ddp`` backend of a persistent rank: join WORLD, interrupt collectives, renew groups.

A collective is interrupted by cutting sockets. A thread that waits in a gloo collective, in
``new_group`` or in a store waits on a socket of this process. These sockets are recognized by their
addresses: where the groups of this rank listen, and where those of the other ranks listen, which
all ranks exchange when they form a generation. (NCCL has its own abort.) Connections that were cut
cannot be used again, so `form` starts the next generation: a fresh store, and groups that are
renewed in place (`renew_in_place`) or re-created (`renew_with_new_groups`). Through that store the
ranks agree which groups those are (`agreement`).
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from nbdist.backends.ddp import agreement
from nbdist.backends.groups.recovery import IN_PLACE, Recovery
from nbdist.errors import REFUSED, Interrupted, NbdistError, UsageError
from nbdist.machine import gpus, sockets
from nbdist.machine.amounts import in_time
from nbdist.wire.group_reports import (
    Digest,
    GroupInfo,
    Outline,
    Roster,
    Standing,
    Waiting,
)

try:
    import torch
    import torch.distributed as dist
except ImportError as error:
    raise UsageError(
        "--backend ddp needs PyTorch, which is not installed where the ranks run: "
        'pip install "nbdist[torch]"'
    ) from error

from nbdist.backends.ddp import renew_with_new_groups
from nbdist.backends.ddp.current_collective import Watch, unfinished
from nbdist.backends.ddp.joining import Joining
from nbdist.backends.ddp.renew_with_new_groups import Anew, Before
from nbdist.backends.ddp.this_cell import ThisCell
from nbdist.backends.ddp.trained_on_group import Trained
from nbdist.backends.groups import gloo, nccl, stores
from nbdist.backends.groups.comm_hooks import groups_of, states_of
from nbdist.backends.groups.registry import Made, nothing
from nbdist.backends.models import made_equal
from nbdist.backends.models.pending import pending
from nbdist.backends.models.trained_objects import bare, trained
from nbdist.backends.models.variable_paths import at
from nbdist.backends.torch_private import recorder, refusal

if TYPE_CHECKING:
    import socket
    from collections.abc import Collection, Iterable

    from torch.nn.parallel import DistributedDataParallel

    from nbdist.backends.ddp.renew_in_place import InPlace
_CONNECT_LIMIT = timedelta(seconds=10)
"""Ranks learn the store's port when it is already listening, so connecting is fast."""

_FORM_LIMIT = timedelta(seconds=60)
"""How long ranks wait for each other when they form a generation."""

_STORE_LIMIT = timedelta(minutes=30)
"""The store's time limit afterwards if the group has none; torch's own default."""

ABORT_SECONDS = 2.0
"""A rank's agent waits this long for NCCL's abort, then does other work and asks again."""

LET_GO_SECONDS, SETTLE_SECONDS = 10.0, 30.0
"""Time limits after an abort: for NCCL to end, then for the GPU to finish its queued work."""


class Ddp:
    """The ``ddp`` backend of one rank: nccl with a GPU for each rank, else gloo.

    `install`, `form` and `sync` belong to the main thread; any thread may call `open_store`,
    `abort`, `goes_on_when_freed`, `waiting`, `formed`, `groups`, `weigh` and `checksums`.

    Parameters
    ----------
    rank, local_rank, world_size
        This rank's place, counted as torchrun does.
    timeout
        Seconds that a collective may take; torch's own limit if None.
    host
        The address where stores and gloo listen; loopback unless the ranks are on several hosts.
    recovery
        Which ways of recovery this torch allows.
    """

    name = "ddp"

    def __init__(
        self,
        *,
        rank: int,
        local_rank: int,
        world_size: int,
        timeout: float | None = None,
        host: str = sockets.LOOPBACK,
        recovery: Recovery | None = None,
    ) -> None:
        self.rank, self.local_rank, self.world_size = rank, local_rank, world_size
        self.recovery = recovery or Recovery()
        self._timeout = None if timeout is None else timedelta(seconds=timeout)
        self._host = host
        self._watch = Watch()
        self._made = Made(connections=bool(self.recovery.groups))
        self._joining = Joining(rank, world_size, self._made, self.formed)
        self._in_place: InPlace | None = None
        self._anew = Anew(self._made, self._joining)
        self._before: Before | None = None
        """The groups before an attempt to re-create them that has not succeeded yet."""
        self._far: frozenset[sockets.Address] = frozenset()
        """Where the other ranks' gloo and the store listen: connections there were made by this
        rank."""
        self._server: stores.TCPStore | None = None
        self._cut: list[socket.socket] = []
        """Connections cut by the last `abort`, not closed yet because of their other ends."""
        self._cell = ThisCell(self._made, lambda: self._whole)
        self._trained = Trained(self._made, self._cell.steps)
        self._aborting = nccl.Aborting()
        self._refusing: Any = None
        """Holds what lets no collective begin, while there is something."""
        self.broken_off: set[str] = set()
        """Collectives on this rank's GPU that were aborted since this set was last read."""
        self.reset: dict[str, str] = {}
        """What variables have lost when groups were formed since this was last read."""
        self._whole = False
        self._port = self._generation = self._meeting = 0
        self._pid = os.getpid()

    def device(self) -> torch.device:
        """Return this rank's device; a GPU becomes the current one, and ranks may share it."""
        there = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if not there:
            return torch.device("cpu")
        device = torch.device("cuda", gpus.of_rank(self.local_rank, there))
        torch.cuda.set_device(device)
        return device

    def names(self) -> dict[str, Any]:
        """Return no names: cells import torch themselves."""
        return {}

    def install(self) -> None:
        """Wrap torch's functions that create and destroy groups; once, before the first."""
        for name, value in nccl.environ().items():
            os.environ.setdefault(name, value)
        recorder.hold_few()
        global current  # a process is one rank
        current = self
        self._made.meet = self._joining.meet
        self._made.install()
        self._joining.install()
        self._cell.install()
        if self.recovery.groups:
            # Each group then makes a gloo device of its own, to which no address can be passed.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", sockets.interface_of(self._host))
        else:
            from nbdist.backends.ddp.renew_in_place import (
                InPlace,  # private parts of torch, which were probed
            )
            from nbdist.backends.ddp.standing import Since

            self._in_place = InPlace(self.rank, self._host, self._made, quiet=self.recovery.talks)
            self._cell.since = Since()
        with suppress(Exception):  # another torch has no such log: waits stay unknown
            from nbdist.backends.torch_private import timed_waits

            timed_waits.time_waits()
        with suppress(Exception):  # torch then adds up sparse tensors itself
            from nbdist.backends.torch_private import sparse_sums

            sparse_sums.replace()
        with suppress(Exception):  # torch then makes its own store at the reserved address
            from nbdist.backends.torch_private import rendezvous

            rendezvous.lead(self._found_at)

    def open_store(self) -> int:
        """Start the store of the next generation; return its port. Called on one rank."""
        # This ends the earlier store: no rank uses it, or `abort` ends the rank's wait there.
        self._server = stores.serve(self._host)
        return self._server.port

    def form(
        self,
        port: int,
        generation: int,
        way: str = IN_PLACE,
        namespace: dict[str, object] | None = None,
        *,
        fsdp: str = "",
    ) -> dict[str, str]:
        """Begin a generation, with a fresh store and groups on it; every rank must call it.

        The first generation creates WORLD. A later one follows a fault, or a rank's replacement. It
        gives a new rank the groups of the others, and makes models able to train on: DDP models get
        new reducers and FSDP2 models are reset, because an interrupted step leaves traces in both.

        Parameters
        ----------
        port
            The port of the store that `open_store` started.
        generation
            A new number for each call, the same on all ranks.
        way
            The way of recovery (`recovery.WAYS`), the same on all ranks.
        namespace
            Variables, which may hold groups or models of the generation before.
        fsdp
            Why FSDP2 modules cannot be renewed, '' if they can.

        Returns
        -------
        dict
            The variables that cannot be used any more, each with the reason.
        """
        self.abort()
        self._end_cut()
        self._end_aborts()
        self._far = frozenset({(self._host, port)})
        self._port, self._generation = port, generation
        recorder.forget_older()
        client = self._connect(port)
        self._joining.on(stores.prefixed(f"nbdist/{generation}", client))
        with suppress(Exception):  # another torch keeps these counts elsewhere
            from nbdist.backends.torch_private import rendezvous

            rendezvous.end_rpc()
        in_place = self._in_place if way == IN_PLACE else None
        variables = {} if namespace is None else namespace
        if in_place is not None:
            self._form_in_place(in_place, generation, variables, settle_fsdp=not fsdp)
            lost = in_place.stranded(variables) | (
                renew_with_new_groups.sharded(variables, fsdp) if fsdp else {}
            )
        else:
            lost = self._form_anew(variables)
        self._cell.scalers.settle(variables)
        # A cell may make a group later, when ranks may be far apart in time.
        client.set_timeout(self._joining.timeout or _STORE_LIMIT)
        self._whole = True
        return lost

    def _form_in_place(
        self,
        in_place: InPlace,
        generation: int,
        namespace: dict[str, object],
        *,
        settle_fsdp: bool,
    ) -> None:
        rosters = self._exchange(
            in_place.groups(), in_place.count(), in_place.models(self._cell.unbroken())
        )
        kept = agreement.kept(rosters)
        in_place.fill(kept, self._store(), generation, self._joining.begin)
        if not kept:
            self._joining.begin(nccl.default_backend(), self._timeout)
        count = max(roster.group_count for roster in rosters) or 1
        self._made.numbers |= Counter(agreement.made(rosters))
        broken = partial(agreement.part, rosters)
        forgetful = in_place.settle(count, namespace, broken, fsdp=settle_fsdp)
        self._note_reset(namespace, forgetful, "the memory of its PowerSGD hook")
        dropped = self._cell.dropped(in_place)
        self._note_reset(namespace, dropped, "the gradients that it had accumulated")

    def _note_reset(
        self, namespace: dict[str, object], modules: Iterable[torch.nn.Module], what: str
    ) -> None:
        """Note the variables that lead to modules which have lost something."""
        parts = {id(bare(module)) for module in modules}
        for path, thing in trained(namespace).items() if parts else ():
            if isinstance(thing, torch.nn.Module) and parts & {id(one) for one in thing.modules()}:
                self.reset.setdefault(path, what)

    def _form_anew(self, namespace: dict[str, object]) -> dict[str, str]:
        # Kept from the first attempt: an attempt that fails has destroyed the groups.
        before = self._before or Before(
            self._anew.groups(), self._made.groups.copy(), self._made.count, dist.group.WORLD
        )
        self._before = before
        if self._in_place is not None:
            with suppress(Exception):  # this may be what failed; then torch destroys the groups
                self._in_place.let_go()
        self._anew.give_up(before)
        self._made.forget_groups()
        rosters = self._exchange(before.infos, before.count)
        kept = agreement.kept(rosters)
        first = kept[0] if kept else None
        self._joining.begin(
            first.backend if first is not None else nccl.default_backend(),
            timedelta(seconds=first.timeout) if first and first.timeout else self._timeout,
        )
        self._anew.make_again(kept, before)
        self._made.count = max(roster.group_count for roster in rosters)
        self._anew.renew_models(namespace)
        waiting = pending(self._made.models)
        self._note_reset(namespace, waiting, "the forward pass whose backward is still to come")
        self._before = None
        return self._anew.lost(namespace)

    def _exchange(
        self, groups: list[GroupInfo], count: int, models: dict[str, str] | None = None
    ) -> list[Roster]:
        """Exchange groups and listening addresses among all ranks; return the rosters."""
        listening = [] if self._in_place is None else [self._in_place.gloo]
        mine = Roster(bool(groups), count, groups, listening, models or {})
        rosters = agreement.exchange(self._store(), self.rank, self.world_size, mine)
        self._far |= {address for roster in rosters for address in roster.listening}
        return rosters

    def _store(self) -> stores.Store:
        assert self._joining.store is not None  # for mypy: form has set it
        return self._joining.store

    def meet_at(self, port: int) -> None:
        """Set the port that is in the environment (MASTER_PORT); see `_found_at`. After `form`."""
        self._meeting = port

    def _found_at(
        self, host: str, port: int, rank: int, size: int, timeout: timedelta
    ) -> stores.Store | None:
        """Return our store for the environment's MASTER_ADDR and MASTER_PORT, else None.

        Torch's default is a store that rank 0 starts there, in which a wait cannot be interrupted.
        """
        ours = (self._host, self._meeting, self.rank, self.world_size)
        if (host, port, rank, size) != ours or self._pid != os.getpid() or not self._port:
            return None
        client = stores.connect(self._host, self._port, timeout)
        return stores.prefixed(f"environ/{self._generation}", client)

    def begin(self, namespace: dict[str, object], job: str) -> None:
        """Begin to note what a cell does with groups and models."""
        self._cell.begin(namespace, job, self._in_place)

    def settle(self, namespace: dict[str, object], broken_in: str) -> Standing:
        """Return how the groups stand after a cell that failed.

        Parameters
        ----------
        namespace
            Variables, which may hold what is trained.
        broken_in
            The files of the functions out of which the cell's error came; '' without an error.
        """
        told = self._cell.settle(namespace, broken_in, lambda: self._trained.changed(namespace))
        return told if self.formed() else Standing(broken=True)

    def works(self) -> bool:
        """Try each group by a small collective; every rank must call it."""
        return self._cell.since is not None and self._cell.since.works()

    def abort(self) -> None:
        """Free this rank: its waits in collectives, ``new_group`` and stores raise. Any thread.

        The groups cannot be used afterwards, until the next `form`.
        """
        self._whole = False
        self._cell.broke_backward |= self._watch.in_backward()
        near, far = self._made.listening.copy(), self._far | self._made.reached
        if self._in_place is not None:
            near.add(self._in_place.gloo)
        cut_before = self._cut
        self._cut = sockets.cut(lambda local, peer: local in near or peer in far)
        self._remaking().each_part(gloo.NAME, gloo.close)
        # Closing the connections cut last time ends the waits at their other ends.
        sockets.end(cut_before)
        if torch.cuda.is_initialized() and (parts := self._aborting.new(self._on_nccl())):
            self.broken_off |= unfinished()
            self._aborting.begin(parts)
            self._aborting.over_within(ABORT_SECONDS)

    def refuse(self) -> None:
        """Let no collective begin until `admit`. Main thread, also in a signal handler."""

        def refuse_one() -> None:
            self._whole = False  # what asked for it (DDP's backward) has stopped half-way
            raise Interrupted(REFUSED)

        self._made.before_group = refuse_one
        try:
            self._refusing = self._refusing or refusal.begin(refuse_one)
        except Exception:  # another torch begins collectives elsewhere: none can end, at least
            self.abort()

    def admit(self) -> None:
        """Let collectives begin again. Main thread."""
        self._refusing, self._made.before_group = None, nothing

    def goes_on_when_freed(self) -> bool:
        """Whether a collective that `abort` ends returns as if it had succeeded."""
        return torch.cuda.is_initialized() and bool(self._on_nccl())

    def _on_nccl(self) -> list[Any]:
        found: list[Any] = []
        self._remaking().each_part(nccl.NAME, found.append)
        return found

    def _remaking(self) -> InPlace | Anew:
        return self._in_place or self._anew

    def _end_aborts(self) -> None:
        """Wait until nothing of the former groups is running. Main thread.

        Raises
        ------
        NbdistError
            If NCCL or the GPU does not finish in time.
        """
        if not self._aborting.any:
            return
        if not self._aborting.over_within(LET_GO_SECONDS):
            raise NbdistError(
                f"NCCL's abort on rank {self.rank} has not ended within {in_time(LET_GO_SECONDS)}"
            )
        self._aborting.forget()
        if not nccl.settled_within(SETTLE_SECONDS):
            raise NbdistError(
                f"the GPU of rank {self.rank} is still busy {in_time(SETTLE_SECONDS)} after its "
                "collectives were aborted"
            )

    def formed(self) -> bool:
        """Return whether WORLD exists and is whole.

        False before `form`, after `abort`, and after the user's ``destroy_process_group()``.
        """
        return (
            self._whole
            and dist.is_initialized()
            and (dist.get_rank(), dist.get_world_size()) == (self.rank, self.world_size)
        )

    def groups(self) -> list[GroupInfo]:
        """Return this rank's process groups, WORLD first. Any thread."""
        return (self._in_place or self._anew).groups()

    def waiting(self) -> Waiting | None:
        """Return the collective in which the main thread is, or None. One polling thread."""
        return self._watch.look()

    def checksums(
        self, namespace: dict[str, object], jobs: Collection[str] = (), *, every: bool = True
    ) -> dict[str, Digest]:
        """Return digests of the models and optimizers of this rank, by their variables' paths."""
        return self._trained.checksums(namespace, jobs, every=every)

    def weigh(self, namespace: dict[str, object]) -> int:
        """Return how many bytes `checksums` reads."""
        return self._trained.weigh(namespace)

    def outline(self, namespace: dict[str, object], path: str) -> Outline | None:
        """Return the outline of the object at `path`; None if there is no variable at this path."""
        return self._trained.outline(namespace, path)

    def sync(self, namespace: dict[str, object], path: str, source: int, group: str = "") -> None:
        """Copy the object at `path` from rank `source`; every rank of the group must call it.

        The outlines of the ranks must be the same.
        """
        made_equal.copy_from(
            at(namespace, path), source, self.group_named(group) if group else None
        )

    # --- groups and models in pickles -----------------------------------------------------------

    def name_of(self, group: dist.ProcessGroup) -> str:
        """Return the name of a group, equal on all ranks."""
        return self._anew.name_of(group) if self._in_place is None else str(group.group_name)

    def group_named(self, name: str) -> Any:
        """Return this rank's group of this name, or torch's NON_GROUP_MEMBER."""
        return (self._in_place or self._anew).group_named(name)

    def take_apart(self, model: DistributedDataParallel) -> dict[str, Any]:
        """Return the parts of a DDP model that can be sent to a rank; see `put_together`."""
        told = (self._in_place or self._anew).take_apart(model)
        return {"told": told, "groups": groups_of(states_of(model)), "gpu": _own_gpu()}

    def put_together(self, model: DistributedDataParallel, state: dict[str, Any]) -> None:
        """Build a DDP model from what `take_apart` returned, able to train with the others."""
        made_equal.move(state["told"], state["gpu"], _own_gpu())
        (self._in_place or self._anew).put_together(model, state["told"])
        for place, group in state["groups"].items():
            states_of(model)[place].process_group = group

    def _end_cut(self) -> None:
        cut, self._cut = self._cut, []
        sockets.end(cut)

    # --- forming --------------------------------------------------------------------------

    def _connect(self, port: int) -> stores.TCPStore:
        try:
            client = stores.connect(self._host, port, _CONNECT_LIMIT)
        except dist.DistError as error:
            raise NbdistError(
                f"rank {self.rank} could not reach the store of rank 0 at {self._host}:{port}, so "
                "the process group was not formed; run %dist restart"
            ) from error
        client.set_timeout(_FORM_LIMIT)
        return client


def _own_gpu() -> int | None:
    return torch.cuda.current_device() if torch.cuda.is_initialized() else None


current: Ddp | None = None
"""The backend of this process."""
