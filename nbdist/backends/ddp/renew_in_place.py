"""Renews process groups in place: the same Python objects get new connections after a fault.

Every use of torch's private parts is in `torch_private`, which the probe has tested.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from nbdist.backends.ddp.agreement import MADE
from nbdist.backends.groups.comm_hooks import attributes, begin_again, counters, states_of
from nbdist.backends.models.pending import pending
from nbdist.backends.models.trained_objects import trained
from nbdist.backends.torch_private import hooks, releases, renew_models
from nbdist.backends.torch_private import process_groups as groups

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    import torch
    from torch.nn.parallel import DistributedDataParallel

    from nbdist.backends.groups.registry import Made
    from nbdist.backends.groups.stores import Store
    from nbdist.machine.sockets import Address
    from nbdist.wire.group_reports import GroupInfo

FSDP = "FSDP2"
"""The name of all FSDP2 models of a rank in `InPlace.models`."""


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

    def models(self, unbroken: Collection[torch.nn.Module]) -> dict[str, str]:
        """Return how the models stand, by names that are equal on all ranks; see `Roster.models`.

        A DDP model is known by its group and its number in this group.

        Parameters
        ----------
        unbroken
            The DDP models of which no backward pass was broken off.
        """
        stands = {FSDP: "rests" if renew_models.fsdp_rests() else ""}
        stands |= {f"{group} {MADE}": str(n) for group, n in self._made.numbers.items()}
        for name, model in self._named_models().items():
            rests = model in unbroken and renew_models.ddp_rests(model)
            kind, size = type(model.module).__name__, len(list(model.parameters()))
            told = f"{kind} {size} {renew_models.rebuilt(model)} {counters(model)}"
            stands[name] = told if rests else ""
        return stands

    def _named_models(self) -> dict[str, DistributedDataParallel]:
        return {
            f"{model.process_group.group_name} {noted.number}": model
            for model, noted in list(self._made.models.items())
            if renew_models.has_group(model)
        }

    def settle(
        self,
        count: int,
        namespace: dict[str, object],
        broken: Callable[[str, list[int]], bool],
        *,
        fsdp: bool,
    ) -> list[torch.nn.Module]:
        """Make models able to train on, and set the group count that all ranks share.

        Models that rest on all ranks stay as they are: their next backward may be pending.

        Parameters
        ----------
        count
            The group count.
        namespace
            Variables, which may hold a WORLD that was destroyed.
        broken
            Returns whether the model of this name must be reset on these ranks.
        fsdp
            Whether FSDP2 models can be reset.

        Returns
        -------
        list of Module
            DDP models whose hooks have lost what they had kept.
        """
        groups.set_group_count(count)
        self._move_to_world(namespace)
        forgetful: list[torch.nn.Module] = []
        renewed: list[DistributedDataParallel] = []
        for name, model in self._named_models().items():
            if broken(name, dist.get_process_group_ranks(model.process_group)):
                forgetful += [model] if begin_again(states_of(model)) else []
                renew_models.renew_ddp(model, self._made.models[model].builtin)
                renewed.append(model)
        for model, outputs in pending(renewed).items():
            renew_models.expect_backward(model, outputs)
        if fsdp and broken(FSDP, list(range(dist.get_world_size()))):
            renew_models.settle_fsdp()
        return forgetful

    def accumulating(self) -> list[torch.nn.Module]:
        """Return the FSDP2 modules whose gradients wait for a later reduction."""
        return renew_models.accumulating()

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
            "number": self._made.models[model].number,
        }

    def put_together(self, model: DistributedDataParallel, told: dict[str, Any]) -> None:
        """Build a DDP model from what `take_apart` returned, without communication."""
        numbers = self._made.numbers.copy()
        renew_models.put_together(model, told["state"], told["builtin"])
        self._made.numbers = numbers  # it is the model of the other ranks, and not one more
        self._made.models[model].builtin = told["builtin"]
        self._made.give_number(model, told["number"])
