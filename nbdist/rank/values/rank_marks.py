"""Finds what in a rank's variables says which rank it is, and puts it right after a copy.

`loader.sampler.rank`, `my_rank` and the like are rank 0's after a copy of rank 0's variables. The
objects of libraries read such an attribute whenever they need it, so that it can be set. What a
user's class has made with its rank is not known.
"""

from __future__ import annotations

import os
import re
import sys
from collections import deque
from itertools import islice
from operator import itemgetter
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from nbdist.rank.values.describe import PLAIN

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

IS_RANK = re.compile(
    r"(.*_)?(rank|process_index|stage_index|shard_(id|index)|cur_shard)", re.IGNORECASE
)
IS_FIRST = re.compile(
    r"_?(is_)?((local_)?(main|master|chief)(_process)?|rank_?(0|zero)|"
    r"(global|world_process|local_process)_zero)"
)
OF_WORLD = re.compile(r"(my|global|world)_rank|(local_)?process_index|rank", re.IGNORECASE)
"""Variables that can mean nothing but the rank in the world."""
SIZES = ("num_replicas", "world_size", "num_processes")
LIBRARIES = (
    "torch.utils.data.", "nbdist.evaluation", "transformers.", "accelerate.", "lightning.",
    "pytorch_lightning.", "lightning_fabric.", "torchdata.", "datasets.", "horovod.",
)  # fmt: skip
"""The beginnings of modules whose classes read their rank when they need it."""
SHARDING = (
    "DistributedSampler", "ShardedBatchSampler", "BatchSamplerShard", "IterableDatasetShard",
    "ShardSampler", "ElasticSampler", "PartialState", "AcceleratorState",
)  # fmt: skip
"""Those of their classes that deal data out or know the rank, also under a user's own class."""
DEEPEST = 7
"""The most steps from a variable; a loader inside a trainer has five."""
MOST_SEEN = 10_000
"""The most objects that are examined."""
MOST_ITEMS = 100
"""The most items that are examined in a list or the like: of data there may be millions."""
CONTAINERS = (list, tuple, deque, dict)


class Place(NamedTuple):
    """Which rank a process is."""

    rank: int
    local_rank: int
    world_size: int

    @classmethod
    def here(cls) -> Place:
        """Return this process's place."""
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
        return cls(*(int(os.environ.get(name, name == "WORLD_SIZE")) for name in names))


class Found(NamedTuple):
    """A value that is reached from a variable."""

    path: str
    owner: Any
    """The object with the attribute or item; the namespace for a variable."""
    name: str
    """The attribute's, item's or variable's."""
    value: Any


def reached(namespace: Mapping[str, Any], names: Iterable[str]) -> Iterator[Found]:
    """Yield what is reached from these variables, each object once and by a shortest path."""
    todo = deque((Found(name, namespace, name, namespace[name]), 0) for name in sorted(names))
    seen: set[int] = {id(namespace)}
    while todo and len(seen) < MOST_SEEN:
        found, depth = todo.popleft()
        value = found.value
        if id(value) in seen:
            continue
        yield found
        if depth == DEEPEST or _is_leaf(value):
            continue
        seen.add(id(value))
        todo += [
            (Found(found.path + step, value, name, inner), depth + 1)
            for step, name, inner in _steps(value)
        ]


def _is_leaf(value: Any) -> bool:
    kind = type(value)
    if kind in (list, tuple):  # of numbers, of which there are many, none has a name
        return all(type(each) in PLAIN for each in value[:MOST_ITEMS])
    return (
        issubclass(kind, (str, bytes, int, float, complex, type(None), ModuleType))
        or (kind.__module__ or "").partition(".")[0] == "numpy"
        or (kind.__name__ in ("Tensor", "Parameter") and kind.__module__.startswith("torch"))
    )


def _steps(value: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield each step into a value, with the name and the value at its end."""
    if isinstance(value, FunctionType):
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=False)
        for i, (name, cell) in enumerate(cells):
            step = f".__closure__[{i}].cell_contents"
            if cell != type(cell)():  # not bound yet
                yield step, name, cell.cell_contents
    elif "torch" in sys.modules:
        from nbdist.backends.models.trained_objects import inside  # needs torch

        most = MOST_ITEMS if type(value) in CONTAINERS else None
        for step, inner in sorted(islice(inside(value), most), key=itemgetter(0)):
            yield step, step.strip(".[]'"), inner


def meaning(found: Found) -> str:
    """Return what a number means by its name, a field of `Place` or "first"; '' for others."""
    if type(found.value) is int and IS_RANK.fullmatch(found.name):
        return "" if _size(found) == 1 else "local_rank" if "local" in found.name else "rank"
    if type(found.value) is bool and IS_FIRST.fullmatch(found.name):
        return "local_first" if "local" in found.name else "first"
    return ""


def value_at(place: Place, means: str) -> int | bool:
    """Return the value that has this meaning on the rank at `place`."""
    if means in ("rank", "local_rank"):
        return int(getattr(place, means))
    return (place.local_rank if means == "local_first" else place.rank) == 0


def can_be_set(found: Found, namespace: Mapping[str, Any], world_size: int) -> bool:
    """Whether it is enough to set this attribute or variable for the rank that has it."""
    if found.owner is namespace:
        return bool(OF_WORLD.fullmatch(found.name) or type(found.value) is bool)
    return is_librarys(type(found.owner)) and _size(found) in (None, world_size)


def is_librarys(kind: type) -> bool:
    """Whether a class reads its rank when it needs it."""
    return f"{kind.__module__}.".startswith(LIBRARIES) or deals_out(kind)


def deals_out(kind: type) -> bool:
    """Whether this is a library's class that deals data out to ranks, or one made from it."""
    return any(
        base.__name__ in SHARDING and f"{base.__module__}.".startswith(LIBRARIES)
        for base in kind.__mro__
    )


def _size(found: Found) -> int | None:
    """Return how many ranks the object is for, if it says so."""
    own = _attributes(found.owner)
    sizes = (own.get(f"{dash}{name}") for name in SIZES for dash in ("", "_"))
    return next((size for size in sizes if type(size) is int), None)


def _attributes(value: object) -> dict[str, Any]:
    try:
        own = object.__getattribute__(value, "__dict__")
    except BaseException:  # there is none, or a property of this name raises
        return {}
    return own if type(own) is dict else {}


def dealt(namespace: Mapping[str, Any], names: Iterable[str]) -> list[Found]:
    """Return the ranks in objects that deal data out, unless there is one for each rank."""
    found = [
        each
        for each in reached(namespace, names)
        if type(each.value) is int
        and IS_RANK.fullmatch(each.name)
        and "local" not in each.name
        and deals_out(type(each.owner))
    ]
    several = numbered((each.path, each.value) for each in found)
    return [each for each in found if items(each.path) not in several]


def numbered(values: Iterable[tuple[str, object]]) -> set[str]:
    """Return where there is a value for each of several ranks, such as `samplers[*].rank`."""
    told: dict[str, set[object]] = {}
    for path, value in values:
        told.setdefault(items(path), set()).add(value)
    return {path for path, found in told.items() if len(found) > 1}


def items(path: str) -> str:
    """Return a path that is the same for all items of a container."""
    return re.sub(r"\[.*?\]", "[*]", path)


def notes(namespace: Mapping[str, Any], names: Iterable[str], size: int) -> list[str]:
    """Say what becomes of objects of the notebook that deal data out to this many ranks."""
    found = dealt(namespace, names) if size > 1 else []
    own = [f"`{each.path}`" for each in found if _size(each) == size]
    same = [f"`{each.path}`" for each in found if _size(each) not in (size, None)]
    told = []
    if own:
        told.append(f"Each rank has its own number as {', '.join(own)}, not the notebook's.")
    if same:
        are = "is" if len(same) == 1 else "are"
        told.append(
            f"{', '.join(same)} {are} the notebook's on every rank, so all ranks take the same "
            "data: make it in a cell on the ranks."
        )
    return told


def paths_by_size(namespace: Mapping[str, Any], names: Iterable[str]) -> dict[int, list[str]]:
    """Return the ranks in objects that deal data out, by the number of ranks they deal to."""
    by_size: dict[int, list[str]] = {}
    for found in dealt(namespace, names):
        size = _size(found)
        if size is not None and size > 1:
            by_size.setdefault(size, []).append(found.path)
    return by_size


def settle(namespace: dict[str, Any], names: Iterable[str], place: Place) -> None:
    """Set for this rank what deals data out and was made in the notebook for so many ranks."""
    for found in dealt(namespace, names):
        if _size(found) == place.world_size:
            _set(found, namespace, place.rank)


def put_right(
    namespace: dict[str, Any], names: Iterable[str], paths: Iterable[str], place: Place
) -> set[str]:
    """Set what is at these paths for this rank; return the variables that hold it."""
    wanted, changed = set(paths), set()
    for found in list(reached(namespace, names)):
        if found.path in wanted:
            _set(found, namespace, value_at(place, meaning(found)))
            changed.add(variable(found.path))
    return changed


def variable(path: str) -> str:
    """Return the variable with which a path begins."""
    return re.split(r"[.\[]", path, maxsplit=1)[0]


def _set(found: Found, namespace: dict[str, Any], value: int) -> None:
    owner = found.owner
    own = namespace if owner is namespace else _attributes(owner)
    if found.name in own:
        own[found.name] = value
    else:
        setattr(owner, found.name, value)  # in a slot
    if type(owner).__name__ == "UnrepeatedDistributedSampler":  # Lightning's counts in advance
        owner.num_samples = len(range(owner.rank, len(owner.dataset), owner.num_replicas))
