"""Registers the process groups, DDP models and hooks that this process creates.

They are registered by wrappers of torch's public functions, so that all of them can be created
again after a fault (`nbdist.backends.ddp.renew_with_new_groups`).
"""

from __future__ import annotations

import functools
import inspect
import sys
import weakref
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from nbdist.backends.groups import nccl
from nbdist.machine import sockets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import timedelta


BUILTIN = "_register_builtin_comm_hook"
"""A private function of torch; only the reducer knows a hook that it registered."""


def nothing() -> None:
    """Do nothing."""


@dataclass
class Group:
    """A subgroup in whose creation this rank took part."""

    number: int
    """The number of its call of ``new_group``, equal on all ranks."""
    ranks: list[int]
    asked: dict[str, Any]
    """The arguments of ``new_group``."""
    group: Any
    """A ProcessGroup; NON_GROUP_MEMBER if this rank is not in it."""


@dataclass
class Model:
    """How a DDP model was constructed. The main thread writes."""

    arguments: dict[str, Any] | None
    """The constructor's arguments without the module; None if the model was unpickled."""
    hooks: list[tuple[tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)
    """The arguments of each call of ``register_comm_hook``."""
    builtin: Any = None
    """The argument of ``_register_builtin_comm_hook``, if this torch has that function."""
    number: int = 0
    """Its number among the models that were made on its group, equal on all ranks of the group."""


class Made:
    """The registry; call `install` once, before the first group.

    Parameters
    ----------
    connections
        Whether to register the sockets of groups, too, which reads all file descriptors.
    """

    def __init__(self, *, connections: bool) -> None:
        self._connections = connections
        self.models: weakref.WeakKeyDictionary[DistributedDataParallel, Model] = (
            weakref.WeakKeyDictionary()
        )
        """The DDP models, in the order in which they were created."""
        self.numbers: Counter[str] = Counter()
        """How many models were made on each group, by its name."""
        self.groups: list[Group] = []
        self.count = 0
        """How often ``new_group`` was called: the number of the next group."""
        self.listening: set[sockets.Address] = set()
        """Addresses where the groups of this process listen."""
        self.reached: set[sockets.Address] = set()
        """Addresses where other ranks' groups listen, if this process has connected to them."""
        self._quiet = False
        self.before_group: Callable[[], None] = nothing
        """Called before each ``new_group``, which it may refuse."""
        self.meet: Callable[[list[int], timedelta | None], None] = lambda _ranks, _limit: None
        """Waits for these ranks; see `nbdist.backends.ddp.joining.Joining.meet`."""

    def note(self, model: DistributedDataParallel) -> None:
        """Register a model unless it is registered, such as an unpickled one."""
        if model not in self.models:
            hooks = getattr(model, "_comm_hooks", ())  # private: may be missing in another release
            noted = Model(None, [((state, hook), {}) for hook, state in hooks])
            self.models[model] = noted
            self.give_number(model, self.numbers[model.process_group.group_name] + 1)

    def give_number(self, model: DistributedDataParallel, number: int) -> None:
        """Give a registered model its number; see `Model.number`."""
        group = model.process_group.group_name
        self.models[model].number = number
        self.numbers[group] = max(number, self.numbers[group])

    def install(self) -> None:
        """Wrap torch's public functions, to register groups and models from now on."""
        self._note_models()
        self._note_groups()

    def forget_groups(self) -> None:
        """Forget all groups: they were destroyed together with WORLD."""
        self.groups.clear()
        self.listening.clear()
        self.reached.clear()
        self.count = 0

    @contextmanager
    def noting_sockets(self) -> Iterator[None]:
        """Register the sockets that are opened meanwhile, by groups being created."""
        if not self._connections:
            yield
            return
        listening, reached = sockets.listening(), sockets.reached()
        try:
            yield
        finally:
            self.listening |= sockets.listening() - listening
            self.reached |= sockets.reached() - reached

    @contextmanager
    def not_noting(self) -> Iterator[None]:
        """Do not register hooks meanwhile: they are registered already."""
        self._quiet = True
        try:
            yield
        finally:
            self._quiet = False

    def _note_models(self) -> None:
        make = DistributedDataParallel.__init__
        hook = DistributedDataParallel.register_comm_hook
        signature = inspect.signature(make)

        @functools.wraps(make)
        def __init__(model: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            make(model, *args, **kwargs)
            asked = signature.bind(model, *args, **kwargs).arguments
            self.note(model)
            # Without arguments that may refer to the model: it would never be freed.
            self.models[model].arguments = {
                k: v for k, v in asked.items() if k not in ("self", "module")
            }

        @functools.wraps(hook)
        def register_comm_hook(model: Any, *args: Any, **kwargs: Any) -> None:
            hook(model, *args, **kwargs)
            if not self._quiet and model in self.models:
                self.models[model].hooks.append((args, kwargs))

        model_type: Any = DistributedDataParallel
        model_type.__init__, model_type.register_comm_hook = __init__, register_comm_hook
        self._note_builtin_hooks(model_type)

    def _note_builtin_hooks(self, model_type: Any) -> None:
        builtin = getattr(model_type, BUILTIN, None)
        if builtin is None:  # private: may be missing in another release
            return

        @functools.wraps(builtin)
        def register(model: Any, comm_hook_type: Any) -> None:
            builtin(model, comm_hook_type)
            self.note(model)
            self.models[model].builtin = comm_hook_type

        setattr(model_type, BUILTIN, register)

    def _meet(self, asked: dict[str, Any]) -> None:
        """Wait for the other members of a group: before NCCL connects them, and afterwards."""
        ranks = asked.get("ranks")
        everyone = set(range(dist.get_world_size()))
        members = sorted(everyone if ranks is None else ranks)
        known = len(set(members)) == len(members) and everyone.issuperset(members)
        if known and dist.get_rank() in members:  # torch reports wrong ranks
            self.meet(members, asked.get("timeout"))

    def _note_groups(self) -> None:
        make, end = dist.new_group, dist.destroy_process_group
        signature = inspect.signature(make)

        @functools.wraps(make)
        def new_group(*args: Any, **kwargs: Any) -> Any:
            self.before_group()
            number, self.count = self.count, self.count + 1
            asked = signature.bind(*args, **kwargs)
            with self.noting_sockets(), nccl.unbound() as device:
                bound = _bound(asked.arguments, device)
                if bound or asked.arguments.get("device_id") is not None:
                    self._meet(asked.arguments)
                group = make(*args, **(kwargs | bound))
            ranks = asked.arguments.get("ranks")
            everyone = list(range(dist.get_world_size())) if ranks is None else sorted(ranks)
            self.groups.append(Group(number, everyone, dict(asked.arguments), group))
            # A member that destroys the group at once would break a slower one's connection.
            self._meet(asked.arguments)
            return group

        @functools.wraps(end)
        def destroy_process_group(group: Any = None) -> None:
            everything = group is None or group is dist.group.WORLD
            end(group)
            if everything:
                self.forget_groups()
            else:
                self.groups = [other for other in self.groups if other.group is not group]

        replace_everywhere("new_group", make, new_group)
        replace_everywhere("destroy_process_group", end, destroy_process_group)


def _bound(asked: dict[str, Any], device: Any) -> dict[str, Any]:
    """Return the further arguments with which ``new_group`` connects NCCL at once."""
    if device is None or asked.get("device_id") is not None:
        return {}
    backend = asked.get("backend") or dist.get_backend_config()
    return {} if nccl.bound_device(backend) is None else {"device_id": device}


def replace_everywhere(name: str, old: object, new: object) -> None:
    """Replace a function in all modules, also where it was imported by name (device_mesh)."""
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get(name) is old:
            setattr(module, name, new)


@contextmanager
def kept_excepthook() -> Iterator[None]:
    """Restore ``sys.excepthook``: ``init_process_group`` sets one that prefixes every line."""
    before = sys.excepthook
    try:
        yield
    finally:
        sys.excepthook = before
