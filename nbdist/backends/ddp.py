"""torch.distributed in a rank: join its peers, free it from them, renew what they share.

A rank is freed by cutting sockets. Whoever waits in a gloo collective, in ``new_group`` or in a
store waits on a socket of this process, and these are known by their addresses: all gloo groups
of a process use one device, so one listening port, and tell the other ranks where it is when a
generation is formed. (NCCL has an abort of its own.) What was cut is of no use any more, so `form`
starts the next generation: a fresh store and, inside every process group that is kept, fresh
backends. The ranks agree through that store which groups those are (`agreement`).
"""

from __future__ import annotations

import inspect
import os
import weakref
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from nbdist.backends import agreement, sockets
from nbdist.errors import NbdistError, UsageError
from nbdist.wire.groups import GroupInfo, Roster, Waiting

try:
    import torch
    import torch.distributed as dist
except ImportError as error:
    raise UsageError(
        "--backend ddp needs PyTorch, which is not installed where the ranks run: "
        'pip install "nbdist[torch]"'
    ) from error

from torch.nn.parallel import DistributedDataParallel

from nbdist.backends import models
from nbdist.backends.torch_private import groups, hooks, releases, stores, timing
from nbdist.backends.torch_private import models as insides
from nbdist.backends.waiting import Watch

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from torch._C._distributed_c10d import TCPStore

_CONNECT_LIMIT = timedelta(seconds=10)
"""The store listens before any rank is told of it, so reaching it takes no time."""

_FORM_LIMIT = timedelta(seconds=60)
"""How long ranks wait for each other when they form a generation."""


class Ddp:
    """The ``ddp`` backend of one rank: nccl on GPUs, gloo on CPUs.

    `install`, `form`, `adopt`, `sync` and `leave` belong to the main thread; `open_store`, `abort`,
    `waiting`, `formed`, `groups` and `checksums` may be called from any other.

    Parameters
    ----------
    rank, local_rank, world_size
        This rank's place, as torchrun counts.
    timeout
        Seconds a collective may take; torch's own limit if None.
    host
        The address that stores and gloo listen on; loopback unless the ranks are on several hosts.
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
    ) -> None:
        self.rank, self.local_rank, self.world_size = rank, local_rank, world_size
        self._timeout = None if timeout is None else timedelta(seconds=timeout)
        self._host = host
        self._watch = Watch()
        self._join: Callable[..., None] = dist.init_process_group
        self._ddp_models: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()
        self._gloo: sockets.Address | None = None
        """Where this rank's gloo listens; what connects there, a peer made."""
        self._far: frozenset[sockets.Address] = frozenset()
        """Where the peers' gloo and the store listen; what leads there, this rank made."""
        self._server: TCPStore | None = None
        self._store: stores.Store | None = None
        self._cut: list[socket.socket] = []
        """Connections cut by the last `abort`, open still for their other ends."""
        self._whole = False
        self._newcomers: frozenset[int] = frozenset()
        self._joins = 0

    def device(self) -> torch.device:
        """Return this rank's device, made the current one if it is a GPU."""
        if not torch.cuda.is_available():
            return torch.device("cpu")
        device = torch.device("cuda", self.local_rank)
        torch.cuda.set_device(device)
        return device

    def names(self) -> dict[str, Any]:
        """Return no names: a cell imports torch itself."""
        return {}

    def install(self) -> None:
        """Take over where torch makes and destroys groups; once, before there is any."""
        # NCCL: it is ours to abort, and torch's watchdog must not end the process over it.
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
        # `waiting` reads torch's flight recorder; the last few collectives are enough.
        os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "16")
        self._gloo = hooks.share_gloo_device(self._host)
        self._join = hooks.replace_init(self._user_join)
        hooks.free_destroyed()
        hooks.guard_split()
        hooks.watch_ddp(self._ddp_models.add)
        timing.time_waits()

    def open_store(self) -> int:
        """Start the store of the next generation; return its port. Called on one rank."""
        # The store before ends here; nobody uses it, or those who do are to be freed.
        self._server = stores.serve(self._host)
        return self._server.port

    def form(self, port: int, generation: int, like: list[GroupInfo] | None = None) -> None:
        """Begin a generation: a fresh store, fresh backends. All ranks at once.

        The first one joins WORLD. Later ones, after a fault or when a rank was replaced, put
        fresh backends into the groups there are, so that models which hold them train on; a rank
        that is new gets the same groups. DDP models get new reducers and FSDP2 models are brought
        to rest, for a step that was broken off leaves marks in both.

        Parameters
        ----------
        port
            Where the store listens that `open_store` made.
        generation
            Another number each time, the same on all ranks.
        like
            Not needed: the ranks tell each other what groups they have.
        """
        del like
        self.abort()
        self._end_cut()
        self._far = frozenset({(self._host, port)})
        self._store = self._connect(port, generation)
        mine = Roster(
            groups.world() is not None,
            groups.group_count(),
            self.groups(),
            self._gloo,
        )
        rosters = agreement.exchange(self._store, self.rank, self.world_size, mine)
        self._far |= {roster.gloo for roster in rosters if roster.gloo}
        self._newcomers = frozenset(r for r, roster in enumerate(rosters) if not roster.formed)
        self._fill(agreement.kept(rosters), generation)
        groups.set_group_count(max(roster.group_count for roster in rosters) or 1)
        for model in list(self._ddp_models):
            if insides.has_group(model):
                insides.renew_ddp(model)
        insides.settle_fsdp()
        self._joins = 0
        self._whole = True

    def abort(self) -> None:
        """Free this rank: whatever of it waits in a collective, ``new_group`` or a store raises.

        Any thread. The groups are of no use afterwards, until the next `form`.
        """
        self._whole = False
        near, far = self._gloo, self._far
        cut_before = self._cut
        self._cut = sockets.cut(lambda local, peer: local == near or peer in far)
        # Whoever is still not free is freed by the other ends.
        sockets.end(cut_before)
        if torch.cuda.is_initialized():
            groups.abort_nccl()

    def formed(self) -> bool:
        """Return whether WORLD is there and whole.

        It is not before `form`, after `abort`, and after the user's ``destroy_process_group()``.
        """
        world = groups.world()
        return (
            self._whole
            and world is not None
            and (world.rank(), world.size()) == (self.rank, self.world_size)
        )

    def groups(self) -> list[GroupInfo]:
        """Return this rank's process groups, WORLD first."""
        return [groups.describe(group) for group in groups.members().values()]

    def waiting(self) -> Waiting | None:
        """Return the collective the main thread is inside, or None. Any one other thread."""
        return self._watch.look()

    def adopt(self, kept: list[Any], source: int) -> list[str]:
        """Take replaced ranks into kept DDP models. All ranks at once, after `form`.

        Parameters
        ----------
        kept
            The models, in the same order on all ranks; what is not a DDP model is passed over.
        source
            The rank whose parameters and buffers all ranks get. For a model that it has no part
            in, the lowest rank that was not replaced.

        Returns
        -------
        list of str
            The class of each model that was taken.
        """
        taken = []
        for model in kept:
            if isinstance(model, DistributedDataParallel):
                insides.verify_same_shapes(model)
                models.copy_from(model, self._source(model, source))
                insides.renew_ddp(model)
                taken.append(type(model.module).__name__)
        return taken

    def shared(self, namespace: dict[str, object]) -> dict[str, list[int]]:
        """Return the names of the models whose gradients ranks share, with these ranks."""
        return {
            name: dist.get_process_group_ranks(value.process_group)
            for name, value in list(namespace.items())
            if isinstance(value, DistributedDataParallel) and insides.has_group(value)
        }

    def checksums(self, namespace: dict[str, object]) -> dict[str, str]:
        """Return a digest of each model's parameters and each optimizer's state.

        What FSDP shards is left out: no two ranks hold the same of it.

        Buffers do not count: under DDP a batch norm's differ between ranks from one forward to
        the next, when rank 0's are sent to all.
        """
        found = {
            name: models.digest(value)
            for name, value in list(namespace.items())
            if isinstance(value, (torch.nn.Module, torch.optim.Optimizer))
        }
        return {name: digest for name, digest in found.items() if digest is not None}

    def sync(self, model: Any, source: int) -> None:
        """Make a model, or an optimizer's state, what it is on rank `source`. All ranks at once."""
        models.copy_from(model, source)

    def leave(self) -> None:
        """Give up all groups and the store."""
        self._end_cut()
        if groups.world() is not None:
            dist.destroy_process_group()
        self._store = self._server = None
        self._whole = False

    def _end_cut(self) -> None:
        cut, self._cut = self._cut, []
        sockets.end(cut)

    # --- forming --------------------------------------------------------------------------

    def _connect(self, port: int, generation: int) -> stores.Store:
        try:
            client = stores.connect(self._host, port, _CONNECT_LIMIT)
        except dist.DistError as error:
            raise NbdistError(
                f"rank {self.rank} could not reach the store of rank 0 at {self._host}:{port}, so "
                "the process group was not formed; %dist restart starts the ranks anew"
            ) from error
        client.set_timeout(_FORM_LIMIT)
        return stores.prefixed(f"nbdist/{generation}", client)

    def _fill(self, kept: list[GroupInfo], generation: int) -> None:
        """Bring this rank's groups to what was agreed."""
        assert self._store is not None  # for mypy: form has set it
        mine = groups.members()
        for group in mine.values():
            groups.empty(group)
        names = {info.name for info in kept}
        for name, group in mine.items():
            if name not in names:
                releases.forget(group)
        if not kept:
            groups.forget_world()
            self._start(self._backend(), self._timeout)
        for info in kept:
            if info.name in mine:
                groups.refill(mine[info.name], info, self.rank, self._store, generation)
            elif info.world:
                self._start(info.backend, timedelta(seconds=info.timeout))
            elif self.rank in info.ranks:
                groups.build(info, self.rank, self._store)

    def _start(self, backend: str, timeout: timedelta | None) -> None:
        with hooks.kept_excepthook():
            self._join(
                backend,
                store=self._store,
                rank=self.rank,
                world_size=self.world_size,
                timeout=timeout,
            )

    def _backend(self) -> str:
        return "nccl" if torch.cuda.is_available() else "gloo"

    def _source(self, model: DistributedDataParallel, source: int) -> int:
        ranks = dist.get_process_group_ranks(model.process_group)
        if source in ranks:
            return source
        return min(set(ranks) - self._newcomers, default=ranks[0])

    # --- the user's own init_process_group ------------------------------------------------

    def _user_join(self, *args: Any, **kwargs: Any) -> None:
        """Give the user's call the group that is formed, or form the one it asks for."""
        asked = inspect.signature(self._join).bind(*args, **kwargs).arguments
        rank, size = asked.get("rank", -1), asked.get("world_size", -1)
        ours = rank in {-1, self.rank} and size in {-1, self.world_size}
        if self.formed() and ours and self._serves(asked.get("backend")):
            return
        if groups.world() is not None:
            dist.destroy_process_group()
        if self._store is not None and ours:
            self._joins += 1
            asked.pop("init_method", None)
            asked["store"] = stores.prefixed(f"user/{self._joins}", self._store)
            asked["rank"], asked["world_size"] = self.rank, self.world_size
        self._join(**asked)

    def _serves(self, backend: str | None) -> bool:
        """Return whether WORLD has the backends that `backend` names, on the devices there are."""
        if backend is None:
            return True
        world = groups.world()
        assert world is not None  # for mypy: asked only once formed
        formed = groups.backends_of(groups.describe(world).backend)
        wanted = groups.backends_of(backend)
        present = {"cpu"} | ({"cuda"} if torch.cuda.is_available() else set())
        asked = {device: name for device, name in wanted.items() if device in present} or wanted
        return all(formed.get(device) == name for device, name in asked.items())
