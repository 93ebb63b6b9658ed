"""Creates WORLD, the process group of all ranks, and serves a cell's ``init_process_group``."""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from nbdist.backends.groups import stores
from nbdist.backends.groups.nccl import NAME, bound_device, by_device, default_backend
from nbdist.backends.groups.registry import kept_excepthook, replace_everywhere
from nbdist.errors import UsageError
from nbdist.machine.amounts import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nbdist.backends.groups.registry import Made


MEET_LIMIT = timedelta(minutes=10)
"""How long members of a group wait for each other by default, as torch does for NCCL."""


class Joining:
    """Creates WORLD, and keeps the arguments of its last creation. Main thread.

    Parameters
    ----------
    rank, size
        This rank's place.
    made
        The registry of groups and models.
    formed
        Returns whether WORLD exists and is whole.
    """

    def __init__(self, rank: int, size: int, made: Made, formed: Callable[[], bool]) -> None:
        self._rank, self._ranks = rank, size
        self._made, self._formed = made, formed
        self._torchs_own: Callable[..., None] = dist.init_process_group
        self.store: stores.Store | None = None
        """This generation's store."""
        self._asked = 0
        """How often a user's call has created WORLD on this store."""
        self.backend = ""
        self.timeout: timedelta | None = None
        self.size = size
        """The arguments with which WORLD was created last."""
        self._met: Counter[tuple[int, ...]] = Counter()
        """How often these ranks have met in this generation."""

    def install(self) -> None:
        """Replace torch's ``init_process_group`` by `ask`."""
        original = self._torchs_own

        @functools.wraps(original)
        def init_process_group(*args: Any, **kwargs: Any) -> None:
            self.ask(*args, **kwargs)

        replace_everywhere("init_process_group", original, init_process_group)

    def on(self, store: stores.Store) -> None:
        """Use a fresh store from now on."""
        self.store, self._asked = store, 0
        self._met.clear()

    def begin(self, backend: str, timeout: timedelta | None, *, bound: bool = True) -> None:
        """Create WORLD; every rank must call it, right after the ranks have met.

        Parameters
        ----------
        backend, timeout
            Arguments for ``init_process_group``.
        bound
            Whether to bind WORLD to this rank's GPU, if NCCL is its backend; equal on all ranks.
        """
        device = bound_device(backend) if bound else None
        with kept_excepthook():
            self._begin(
                backend=backend, store=self.store, rank=self._rank, world_size=self._ranks,
                timeout=timeout, **({} if device is None else {"device_id": device}),
            )  # fmt: skip

    def meet(self, ranks: Sequence[int], limit: timedelta | None) -> None:
        """Wait in the store until these ranks have come; `Ddp.abort` can end this wait.

        NCCL's own wait for the members of a group cannot be interrupted.

        Parameters
        ----------
        ranks
            The members of a group, with this rank, in the same order on all members.
        limit
            The time limit of the group's collectives. Members may come as late as this limit, or
            `MEET_LIMIT` if that is longer, since they may still be computing.
        """
        if self.store is None or self._is_elsewhere():
            return
        self._met[tuple(ranks)] += 1
        name = f"met/{'-'.join(map(str, ranks))}/{self._met[tuple(ranks)]}"
        own, most = f"{name}/{self._rank}", max(limit or self.timeout or MEET_LIMIT, MEET_LIMIT)
        self.store.set(own, "")
        try:
            self.store.wait([f"{name}/{rank}" for rank in ranks], most)
        except BaseException:
            with suppress(Exception):  # a late rank must not find this rank's key and go on alone
                self.store.delete_key(own)
            self._met[tuple(ranks)] -= 1
            raise

    def _is_elsewhere(self) -> bool:
        """Whether WORLD is a group of the user's own, with other ranks than ours."""
        ours = self._rank, self._ranks
        return dist.is_initialized() and (dist.get_rank(), dist.get_world_size()) != ours

    def ask(self, *args: Any, **kwargs: Any) -> None:
        """Serve a user's ``init_process_group``: keep WORLD, or create the requested group."""
        asked = inspect.signature(self._torchs_own).bind(*args, **kwargs).arguments
        rank, size = asked.get("rank", -1), asked.get("world_size", -1)
        ours = rank in {-1, self._rank} and size in {-1, self._ranks}
        if self._formed() and ours and self._serves(asked.get("backend")):
            return
        if ours and self._ranks > 1:
            _refuse_shared(asked.get("backend"))
        if dist.is_initialized():
            dist.destroy_process_group()
        if self.store is not None and ours:
            self._asked += 1
            asked.pop("init_method", None)
            asked["store"] = stores.prefixed(f"user/{self._asked}", self.store)
            asked["rank"], asked["world_size"] = self._rank, self._ranks
            device = asked.get("device_id") or bound_device(asked.get("backend"))
            if device is not None:
                self.meet(range(self._ranks), asked.get("timeout"))
                asked["device_id"] = device
        self._begin(**asked)
        if self.store is not None and ours:
            # A rank that destroys the group at once would break a slower one's connection.
            self.meet(range(self._ranks), asked.get("timeout"))

    def _begin(self, **asked: Any) -> None:
        size = asked.get("world_size", -1)
        self.size = self._ranks if size < 0 else size
        self.backend, self.timeout = asked.get("backend") or default_backend(), asked.get("timeout")
        with self._made.noting_sockets():
            self._torchs_own(**asked)

    def _serves(self, backend: str | None) -> bool:
        """Return whether WORLD uses the backends in `backend` on the devices that are present."""
        if backend is None:
            return True
        formed, wanted = by_device(self.backend), by_device(backend)
        present = {"cpu"} | ({"cuda"} if torch.cuda.is_available() else set())
        asked = {device: name for device, name in wanted.items() if device in present} or wanted
        return all(formed.get(device) == name for device, name in asked.items())


def _refuse_shared(backend: str | None) -> None:
    """Refuse NCCL where ranks share GPUs, as NCCL itself would; the present group stays."""
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if there and bound_device(backend) is not None and default_backend() != NAME:
        raise UsageError(
            "nccl needs one GPU for each rank, and the ranks here share "
            f"{counted(there, 'GPU')}: leave out the backend, or use gloo, and you get the "
            "existing process group"
        )
