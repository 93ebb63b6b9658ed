"""Renews process groups in place: the same Python objects get new connections after a fault.

Every use of torch's private parts is in `torch_private`, which the probe has tested.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from nbdist.backends.groups.comm_hooks import attributes, begin_again, states_of
from nbdist.backends.models.trained_objects import trained
from nbdist.backends.torch_private import hooks, releases, renew_models
from nbdist.backends.torch_private import process_groups as groups

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.nn.parallel import DistributedDataParallel

    from nbdist.backends.groups.registry import Made
    from nbdist.backends.groups.stores import Store
    from nbdist.machine.sockets import Address
    from nbdist.wire.group_reports import GroupInfo


class InPlace:
    """Renews groups and models in place. Main thread, except `each_part`."""

    def __init__(self, rank: int, host: str, made: Made, *, quiet: bool) -> None:
        self._rank, self._made = rank, made
        self._world: Any = None
        """WORLD at the last `settle`; a cell may have destroyed this group since then."""
        self.gloo: Address = hooks.share_gloo_device(host, quiet=quiet)
        """Where this rank's gloo listens: connections to this address were made by other ranks."""
        hooks.free_destroyed()
        hooks.guard_split()
        hooks.watch_ddp(made.note)  # also models that were unpickled

    def each_part(self, name: str, do: Callable[[Any], object]) -> None:
        """Call `do` with each group's backend object of this name: nccl, gloo. Any thread."""
        groups.each_part(name, do)

    def groups(self) -> list[GroupInfo]:
        """Return this rank's process groups, WORLD first."""
        return groups.infos()

    def count(self) -> int:
        """Return the number of the next group, which becomes the group's name."""
        return groups.group_count()

    def fill(
        self,
        kept: list[GroupInfo],
        store: Store,
        generation: int,
        start: Callable[..., None],
    ) -> None:
        """Make this rank's groups those of `kept`; on a new rank, `start` creates WORLD."""
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
                start(info.backend, timedelta(seconds=info.timeout), bound=info.bound)
            elif self._rank in info.ranks:
                groups.build(info, self._rank, store)

    def settle(self, count: int, namespace: dict[str, object], *, fsdp: bool) -> None:
        """Renew DDP models, reset FSDP2 models, and set the group count that all ranks share."""
        groups.set_group_count(count)
        self._move_to_world(namespace)
        for model, noted in list(self._made.models.items()):
            if renew_models.has_group(model):
                begin_again(states_of(model))
                renew_models.renew_ddp(model, noted.builtin)
        if fsdp:
            renew_models.settle_fsdp()

    def _move_to_world(self, namespace: dict[str, object]) -> None:
        """Replace references to a WORLD that a cell has destroyed by the present WORLD."""
        before, self._world = self._world, dist.group.WORLD
        if before is None or before is self._world:
            return
        namespace.update({name: self._world for name, one in namespace.items() if one is before})
        for thing in (*self._made.models, *trained(namespace).values()):
            for holder in (thing, *states_of(thing)):
                for name, value in attributes(holder).items():
                    if value is before:
                        setattr(holder, name, self._world)

    def let_go(self) -> None:
        """Free all groups and remove them from torch's tables, so that they can be re-created."""
        for group in groups.members().values():
            groups.empty(group)
        groups.forget_world()

    def stranded(self, namespace: dict[str, object]) -> dict[str, str]:
        """Return the variables whose groups a cell has destroyed, each with why it is unusable."""
        lost = renew_models.without_groups()
        lost += [model for model in self._made.models if not renew_models.has_group(model)]
        whys = {id(module): "a cell has destroyed its process group" for module in lost}
        parameters = {id(one) for module in lost for one in module.parameters()}
        for thing in trained(namespace).values():
            for group in getattr(thing, "param_groups", ()):
                if parameters & {id(one) for one in group["params"]}:
                    whys[id(thing)] = "it is the optimizer of a module that is lost"
        values = list(namespace.items())
        return {name: whys[id(value)] for name, value in values if id(value) in whys}

    def group_named(self, name: str) -> Any:
        """Return this rank's group of this name, or torch's NON_GROUP_MEMBER."""
        return groups.group_named(name)

    def take_apart(self, model: DistributedDataParallel) -> dict[str, Any]:
        """Return the parts of a DDP model that can be sent to another rank."""
        return {
            "state": renew_models.take_apart(model),
            "builtin": self._made.models[model].builtin,
        }

    def put_together(self, model: DistributedDataParallel, told: dict[str, Any]) -> None:
        """Build a DDP model from what `take_apart` returned, without communication."""
        renew_models.put_together(model, told["state"], told["builtin"])
        self._made.models[model].builtin = told["builtin"]
