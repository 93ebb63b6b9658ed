"""Groups renewed in place: they stay the objects they are and get fresh connections inside.

Everything private to torch that this needs is in `torch_private`; the probe has tried it.
"""

from __future__ import annotations

import weakref
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from nbdist.backends.torch_private import groups, hooks, models, releases

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.nn.parallel import DistributedDataParallel

    from nbdist.backends.sockets import Address
    from nbdist.backends.stores import Store
    from nbdist.wire.groups import GroupInfo


class InPlace:
    """Renews groups and models in place. Main thread, but for `abort_nccl`."""

    def __init__(self, rank: int, host: str, *, quiet: bool) -> None:
        self._rank = rank
        self.gloo: Address = hooks.share_gloo_device(host, quiet=quiet)
        """Where this rank's gloo listens; what connects there, a peer made."""
        self._models: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()
        hooks.free_destroyed()
        hooks.guard_split()
        hooks.watch_ddp(self._models.add)  # also those that were unpickled

    def abort_nccl(self) -> None:
        """Free who waits in NCCL. Any thread."""
        groups.abort_nccl()

    def groups(self) -> list[GroupInfo]:
        """Return this rank's process groups, WORLD first."""
        return [groups.describe(group) for group in groups.members().values()]

    def count(self) -> int:
        """Return the number of the next group, which is its name."""
        return groups.group_count()

    def fill(
        self,
        kept: list[GroupInfo],
        store: Store,
        generation: int,
        start: Callable[[str, timedelta | None], None],
    ) -> None:
        """Bring this rank's groups to what was agreed: WORLD is begun by `start` on a new rank."""
        mine = groups.members()
        for group in mine.values():
            groups.empty(group)
        names = {info.name for info in kept}
        for name, group in mine.items():
            if name not in names:
                releases.forget(group)
        if not kept:
            groups.forget_world()
        for info in kept:
            if info.name in mine:
                groups.refill(mine[info.name], info, self._rank, store, generation)
            elif info.world:
                start(info.backend, timedelta(seconds=info.timeout))
            elif self._rank in info.ranks:
                groups.build(info, self._rank, store)

    def settle(self, count: int, *, fsdp: bool) -> None:
        """Renew DDP models, bring FSDP2 models to rest, count groups as all ranks do."""
        groups.set_group_count(count)
        for model in list(self._models):
            if models.has_group(model):
                models.renew_ddp(model)
        if fsdp:
            models.settle_fsdp()

    def let_go(self) -> None:
        """Free all groups, and have torch forget them: they are to be made anew."""
        for group in groups.members().values():
            groups.empty(group)
        groups.forget_world()

    def renew(self, model: DistributedDataParallel) -> None:
        """Give a DDP model a new reducer."""
        models.renew_ddp(model)

    def group_named(self, name: str) -> Any:
        """Return this rank's group of that name, or torch's stand-in for a group of others."""
        return groups.group_named(name)

    def take_apart(self, model: DistributedDataParallel) -> dict[str, Any]:
        """Return all of a DDP model that can travel; see `put_together`."""
        return models.take_apart(model)

    def put_together(self, model: DistributedDataParallel, state: dict[str, Any]) -> None:
        """Fill a DDP model from what `take_apart` returned; `renew` must follow on all ranks."""
        models.put_together(model, state)
