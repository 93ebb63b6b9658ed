"""What this process has made with torch.distributed: its groups, its DDP models and their hooks.

Noted when torch's public functions are called, so that all of it can be made once more (`anew`).
"""

from __future__ import annotations

import functools
import inspect
import sys
import weakref
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
"""Not promised by torch; a hook that it has registered only the reducer knows."""


@dataclass
class Group:
    """A group besides WORLD that this rank took part in making."""

    number: int
    """Its place among the calls of ``new_group``, the same on all ranks."""
    ranks: list[int]
    asked: dict[str, Any]
    """What ``new_group`` was called with."""
    group: Any
    """A ProcessGroup, or what torch gives ranks that are not in it."""


@dataclass
class Model:
    """How a DDP model was made. The main thread writes."""

    arguments: dict[str, Any] | None
    """What its constructor was called with, besides the module; None if it was unpickled."""
    hooks: list[tuple[tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)
    """What ``register_comm_hook`` was called with."""
    builtin: Any = None
    """What ``_register_builtin_comm_hook`` was called with, where torch has that."""


class Made:
    """Notes what is made; `install` once, before there is anything.

    Parameters
    ----------
    connections
        Whether to note those of groups, too: that looks at all descriptors.
    """

    def __init__(self, *, connections: bool) -> None:
        self._connections = connections
        self.models: weakref.WeakKeyDictionary[DistributedDataParallel, Model] = (
            weakref.WeakKeyDictionary()
        )
        """In the order they were made."""
        self.groups: list[Group] = []
        self.count = 0
        """How often ``new_group`` was called; the next group's number."""
        self.listening: set[sockets.Address] = set()
        """Where groups of this process listen."""
        self.reached: set[sockets.Address] = set()
        """Where those of other ranks do, as far as this process has connected to them."""
        self._quiet = False
        self.meet: Callable[[list[int], timedelta | None], None] = lambda _ranks, _limit: None
        """Waits for these ranks; see `nbdist.backends.ddp.joining.Joining.meet`."""

    def note(self, model: DistributedDataParallel) -> None:
        """Note a model that is not yet, such as one that was unpickled."""
        if model not in self.models:
            hooks = getattr(model, "_comm_hooks", ())  # private: a release may do without
            self.models[model] = Model(None, [((state, hook), {}) for hook, state in hooks])

    def install(self) -> None:
        """Note what is made from now on: all that is replaced is public, and does what it did."""
        self._note_models()
        self._note_groups()

    def forget_groups(self) -> None:
        """Forget all groups: WORLD is gone, and these went with it."""
        self.groups.clear()
        self.listening.clear()
        self.reached.clear()
        self.count = 0

    @contextmanager
    def noting_sockets(self) -> Iterator[None]:
        """Note the sockets of groups that are made meanwhile."""
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
        """Register hooks again that are noted already."""
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
            # Without what may hold the model in turn, which then would live for ever.
            self.models[model] = Model(
                {k: v for k, v in asked.items() if k not in ("self", "module")}
            )

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
        if builtin is None:  # it is private: a release may do without
            return

        @functools.wraps(builtin)
        def register(model: Any, comm_hook_type: Any) -> None:
            builtin(model, comm_hook_type)
            if model in self.models:
                self.models[model].builtin = comm_hook_type

        setattr(model_type, BUILTIN, register)

    def _meet(self, asked: dict[str, Any]) -> None:
        """Wait for the other members of a group that NCCL is about to connect."""
        ranks = asked.get("ranks")
        everyone = set(range(dist.get_world_size()))
        members = sorted(everyone if ranks is None else ranks)
        known = len(set(members)) == len(members) and everyone.issuperset(members)
        if known and dist.get_rank() in members:  # of others torch complains
            self.meet(members, asked.get("timeout"))

    def _note_groups(self) -> None:
        make, end = dist.new_group, dist.destroy_process_group
        signature = inspect.signature(make)

        @functools.wraps(make)
        def new_group(*args: Any, **kwargs: Any) -> Any:
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
    """Return what else ``new_group`` is to be called with, so that NCCL is there at once."""
    if device is None or asked.get("device_id") is not None:
        return {}
    backend = asked.get("backend") or dist.get_backend_config()
    return {} if nccl.bound_device(backend) is None else {"device_id": device}


def replace_everywhere(name: str, old: object, new: object) -> None:
    """Replace a function also in modules that took it by name, as torch's device_mesh does."""
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get(name) is old:
            setattr(module, name, new)


@contextmanager
def kept_excepthook() -> Iterator[None]:
    """Undo what ``init_process_group`` does to ``sys.excepthook``: a prefix on every line."""
    before = sys.excepthook
    try:
        yield
    finally:
        sys.excepthook = before
