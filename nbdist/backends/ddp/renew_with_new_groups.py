"""Re-creates process groups after a fault with torch's public functions alone.

This serves a torch whose private parts do not work as `renew_in_place` needs them. WORLD and the
groups of ``new_group`` are destroyed and created again. A variable or a model that holds one of
these groups gets the new group instead; a DDP model is constructed again within the same Python
object. Other holders of groups (FSDP2 modules, meshes) are lost, and `lost` names them.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from nbdist.backends.groups import nccl
from nbdist.backends.groups.comm_hooks import attributes, begin_again
from nbdist.backends.groups.registry import BUILTIN, Group, Made, Model
from nbdist.backends.models.equality import is_shard
from nbdist.backends.models.trained_objects import is_a
from nbdist.errors import NbdistError, UsageError
from nbdist.wire.group_reports import GroupInfo

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbdist.backends.ddp.joining import Joining

_OF_ITS_OWN = ("_parameters", "_buffers", "_modules")
"""Attributes of a module that are not restored: DDP's constructor creates them."""
_ONCE = ("mixed_precision", "delay_all_reduce_named_params")
"""Arguments with which DDP adds hooks to the wrapped model: a second call would double them."""
_THIS_RANKS = ("pg_options", "device_id")
"""Arguments of ``new_group`` that may differ between the members of a group."""
TORCHS_MB = 1 << 20
"""The unit of torch's `bucket_cap_mb`, in bytes."""
WORLD = "world"


@dataclass(frozen=True)
class Before:
    """The groups of a rank before they were destroyed."""

    infos: list[GroupInfo]
    """The groups as this rank describes them to other ranks."""
    groups: list[Group]
    count: int
    """How often ``new_group`` was called."""
    world: Any
    """The process group WORLD; None on a new rank."""


class Anew:
    """Destroys groups and creates them again. Main thread, except `each_part`."""

    def __init__(self, made: Made, joining: Joining) -> None:
        self._made, self._joining = made, joining
        self._retired: list[Any] = []
        """Old groups, kept referenced: Python would end them holding the GIL, and might hang."""
        self._lost: dict[int, str] = {}
        """For the id of a DDP model, why this model could not be constructed again."""
        self._new: dict[int, Any] = {}
        """For the id of an old group, the new group that replaces the old one."""

    def groups(self) -> list[GroupInfo]:
        """Return this rank's groups, WORLD first."""
        if not dist.is_initialized():
            return []
        begun = self._joining  # a broken group may not know its own values any more
        timeout, everyone = _seconds(begun.timeout), list(range(begun.size))
        world = GroupInfo(WORLD, everyone, begun.backend, timeout, world=True)
        others = [
            GroupInfo(
                str(group.number),
                group.ranks,
                str(group.asked.get("backend") or ""),
                _seconds(group.asked.get("timeout")),
                description=str(group.asked.get("group_desc") or ""),
            )
            for group in self._made.groups
        ]
        return [world, *others]

    def each_part(self, name: str, do: Callable[[Any], object]) -> None:
        """Call `do` with each group's backend object of this name: nccl, gloo. Any thread."""
        for group in (dist.group.WORLD, *(each.group for each in self._made.groups)):
            with suppress(Exception):  # no group, or not a group of this rank
                served = nccl.by_device(dist.get_backend_config(group))
                devices = [device for device, backend in served.items() if backend == name]
                for device in devices[:1]:
                    do(nccl.part_of(group, device))

    def give_up(self, before: Before) -> None:
        """Destroy all groups, without communication.

        Raises
        ------
        NbdistError
            If torch does not destroy them.
        """
        self._new = {}
        self._retired += [before.world, *(each.group for each in before.groups)]
        trouble = ""
        try:
            if dist.is_initialized():
                dist.destroy_process_group()
        except Exception as err:  # the groups may be broken, so any error is possible
            trouble = f": {type(err).__name__}: {err}"
        if dist.is_initialized():
            raise NbdistError(f"torch could not destroy its broken process groups{trouble}")

    def make_again(self, kept: list[GroupInfo], before: Before) -> None:
        """Create the subgroups that all ranks had; every rank must call it."""
        if before.world is not None:
            self._new[id(before.world)] = dist.group.WORLD
        mine = {str(each.number): each for each in before.groups}
        for info in kept:
            if info.world:
                continue
            old = mine.get(info.name)
            own = {} if old is None else old.asked
            self._made.count = int(info.name)  # its former name
            fresh = dist.new_group(
                info.ranks,
                backend=info.backend or None,
                timeout=timedelta(seconds=info.timeout) if info.timeout else None,
                group_desc=info.description or None,
                **{name: own[name] for name in _THIS_RANKS if name in own},
            )
            if old is not None:
                self._new[id(old.group)] = fresh

    def renew_models(self, namespace: dict[str, object]) -> None:
        """Construct every DDP model again within the same Python object."""
        self._lost = {}
        for value in list(namespace.values()):  # unpickled models are not registered yet
            if is_a(value, DistributedDataParallel):
                self._made.note(value)
        for model in list(self._made.models):
            try:
                self._renew(model)
            except Exception as err:  # reported with its name; the other models are renewed
                self._lost[id(model)] = f"{type(err).__name__}: {err}"

    def _renew(self, model: DistributedDataParallel) -> None:
        """Call a DDP model's constructor again, which makes a new reducer on the new groups."""
        noted = self._made.models[model]
        arguments = _arguments_of(model, noted.arguments)
        for name in _ONCE:
            if arguments.get(name) is not None:
                raise UsageError(f"DDP cannot be constructed again with {name}")
        if arguments.get("device_mesh") is not None:
            raise UsageError("the process groups of its device_mesh no longer exist")
        group = arguments.get("process_group")
        if group is not None:
            arguments["process_group"] = self._in_place_of(group)
        for part in model.module.modules():
            self._exchange(part)
        with suppress(Exception):  # another torch: the old reducer ends with its last reference
            from nbdist.backends.torch_private.renew_models import unhook

            unhook(model)
        again(model, arguments)
        noted.arguments = {k: v for k, v in arguments.items() if k != "module"}
        self._hook(model, noted)

    def _hook(self, model: DistributedDataParallel, noted: Model) -> None:
        """Register the model's communication hooks again."""
        with self._made.not_noting():
            for args, kwargs in noted.hooks:
                for state in (*args, *kwargs.values()):
                    self._exchange(state)
                begin_again((*args, *kwargs.values()))
                model.register_comm_hook(*args, **kwargs)
        if noted.builtin is not None:
            getattr(model, BUILTIN)(noted.builtin)

    def name_of(self, group: dist.ProcessGroup) -> str:
        """Return the name of a group, equal on all ranks; '' if the group is not registered."""
        if group is dist.group.WORLD:
            return WORLD
        return next((str(each.number) for each in self._made.groups if each.group is group), "")

    def group_named(self, name: str) -> Any:
        """Return this rank's group of this name, or torch's NON_GROUP_MEMBER."""
        if name == WORLD:
            return dist.group.WORLD
        found = (each.group for each in self._made.groups if str(each.number) == name)
        return next(found, dist.GroupMember.NON_GROUP_MEMBER)

    def take_apart(self, model: DistributedDataParallel) -> dict[str, Any]:
        """Return the parts of a DDP model that can be sent to a rank; see `put_together`."""
        noted = self._made.models.get(model, Model(None))
        arguments = _arguments_of(model, noted.arguments)
        for name in (*_ONCE, "device_mesh"):
            if arguments.get(name) is not None:
                raise UsageError(f"DDP cannot be constructed again with {name}")
        kept = {name: value for name, value in vars(model).items() if name in _kept_names()}
        return {
            "arguments": arguments,
            "kept": kept,
            "hooks": noted.hooks,
            "builtin": noted.builtin,
        }

    def put_together(self, model: DistributedDataParallel, state: dict[str, Any]) -> None:
        """Build a DDP model from what `take_apart` returned, without communication."""
        arguments = state["arguments"]
        if arguments.get("process_group") is dist.GroupMember.NON_GROUP_MEMBER:
            raise UsageError("it is trained by a process group that does not contain the new rank")
        torch.nn.Module.__init__(model)  # makes the model hashable
        others = {k: v for k, v in arguments.items() if k != "module"}
        noted = self._made.models[model] = Model(others, state["hooks"], state["builtin"])
        again(model, arguments)
        vars(model).update(state["kept"])
        self._hook(model, noted)

    def lost(self, namespace: dict[str, object]) -> dict[str, str]:
        """Put the new groups into variables; return the lost variables, each with the reason."""
        found = {}
        for name, value in list(namespace.items()):
            if id(value) in self._new:
                namespace[name] = self._new[id(value)]
                continue
            self._exchange(value)
            why = self._lost.get(id(value)) or _why_lost(value)
            if why:
                found[name] = why
        return found

    def _in_place_of(self, group: Any) -> Any:
        fresh = self._new.get(id(group), group)
        if fresh is dist.GroupMember.NON_GROUP_MEMBER or _is_dead(fresh):
            raise UsageError("its process group could not be re-created")
        return fresh

    def _exchange(self, holder: object) -> None:
        """Replace old groups in an object's attributes by the new groups."""
        if isinstance(holder, ModuleType):
            return
        for name, value in attributes(holder).items():
            # `type`, not `isinstance`: a proxy may print a warning when its `__class__` is read.
            if issubclass(type(value), dist.ProcessGroup) and id(value) in self._new:
                with suppress(AttributeError):  # read-only: it keeps the old group
                    setattr(holder, name, self._new[id(value)])


def _seconds(limit: timedelta | None) -> float:
    return 0.0 if limit is None else limit.total_seconds()


def again(model: DistributedDataParallel, arguments: dict[str, Any]) -> None:
    """Call DDP's constructor again on a DDP model, keeping its hooks and attributes."""
    before = dict(vars(model))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # shown at the first construction
        # Otherwise it copies the parameters of rank 0: that needs all ranks, and changes a model.
        _constructor()(model, **(arguments | {"init_sync": False}))
    # The same dictionaries, not copies: handles of hooks remove their hook from these.
    vars(model).update({name: before[name] for name in _kept_names() if name in before})


def _kept_names() -> list[str]:
    """Return the attributes that the constructor of every module empties, such as its hooks."""
    return [name for name in vars(torch.nn.Module()) if name not in _OF_ITS_OWN]


def _constructor() -> Callable[..., None]:
    """Return torch's own constructor, without our wrapper that registers each model."""
    make = DistributedDataParallel.__init__
    return getattr(make, "__wrapped__", make)


def _arguments_of(model: DistributedDataParallel, noted: dict[str, Any] | None) -> dict[str, Any]:
    """Return the constructor's arguments; for an unpickled model, read from its attributes."""
    if noted is not None:
        return noted | {"module": model.module}
    names = list(inspect.signature(_constructor()).parameters)[1:]
    arguments = {name: getattr(model, name) for name in names if hasattr(model, name)}
    # Newer releases of torch warn about an argument that they derive from another one.
    if "forward_sync_buffers" in arguments:
        arguments.pop("broadcast_buffers", None)
    arguments["bucket_cap_mb"] = model.bucket_bytes_cap / TORCHS_MB
    return arguments


def sharded(namespace: dict[str, object], why: str) -> dict[str, str]:
    """Return the FSDP2 modules of a namespace, each with why it is lost."""
    return {
        name: f"an FSDP2 module, which cannot be renewed with this torch: {why}"
        for name, value in list(namespace.items())
        if _is_sharded(value)
    }


def _why_lost(value: object) -> str:
    """Say why a variable is unusable once its groups are gone; '' if the variable is usable."""
    whys: list[tuple[Callable[[Any], bool], str]] = [
        (_is_sharded, "an FSDP module, whose process groups no longer exist"),
        (_trains_shards, "the optimizer of a module that is lost"),
        (_is_mesh, "a device mesh of process groups that no longer exist"),
        (_is_dead, "a process group that could not be re-created"),
        (is_shard, "a DTensor, whose device mesh no longer exists"),
    ]
    return next((why for holds, why in whys if holds(value)), "")


def _is_sharded(value: object) -> bool:
    """Whether a value is a module sharded by FSDP1 or FSDP2."""
    if not is_a(value, torch.nn.Module):
        return False
    fsdp = sys.modules.get("torch.distributed.fsdp")
    first_kind = fsdp is not None and any(
        isinstance(part, fsdp.FullyShardedDataParallel) for part in value.modules()
    )
    return first_kind or any(is_shard(parameter) for parameter in value.parameters())


def _trains_shards(value: object) -> bool:
    return is_a(value, torch.optim.Optimizer) and any(
        is_shard(parameter) for each in value.param_groups for parameter in each["params"]
    )


def _is_mesh(value: object) -> bool:
    mesh = sys.modules.get("torch.distributed.device_mesh")
    return mesh is not None and is_a(value, mesh.DeviceMesh)


def _is_dead(value: Any) -> bool:
    if not issubclass(type(value), dist.ProcessGroup) or value is dist.group.WORLD:
        return False
    try:
        return dist.get_rank(value) < 0
    except (RuntimeError, ValueError):  # torch does not know it
        return True
