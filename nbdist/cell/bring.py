"""What of the notebook a cell needs and its ranks lack, packed for them. Kernel's main thread."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from nbdist import memory
from nbdist.cell.known import PLAIN, Known, closed_over, methods
from nbdist.errors import UsageError
from nbdist.hub.jobs import show_ranks
from nbdist.rank.errors import CannotTravel
from nbdist.rank.names import OURS, cannot_travel
from nbdist.rank.parcels import Item, Packing, by_need
from nbdist.rank.pickles import global_names, submodules

if TYPE_CHECKING:
    from nbdist.wire.parcel import Parcel

IPYTHONS = re.compile(r"_{1,3}|_(i{1,3}|oh|dh|sh|ih|exit_code)|_i?\d+|__\w+__|In|Out")
"""Names that IPython and Python bind themselves."""
SLOW_SECONDS = 0.5
PLAIN_KINDS = frozenset(PLAIN)
HOLDERS = frozenset((list, tuple, dict, set, frozenset))
SIMPLE = PLAIN_KINDS - HOLDERS
LOOKED_AT = 100
"""Objects in such a one; what else they are made of is found while they are packed."""
MOST_NAMED = 12
"""Names told one by one."""

Ask = Callable[[list[str]], list[Mapping[str, str]]]
"""Returns for each rank the versions it has of some names; see `Names.holds`."""


@dataclass
class Wanted:
    """What a cell wants from the notebook."""

    space: Mapping[str, Any]
    """Where the names are looked up."""
    surely: Iterable[str] = ()
    maybe: Iterable[str] = ()
    """Left out where they cannot travel."""
    forced: Iterable[str] = ()
    """Brought whatever the ranks have under these names."""
    code: CodeType | None = None
    hidden: Mapping[str, Any] = field(default_factory=dict)
    """Names of the notebook that are not the user's, with their values."""

    def has(self, name: str) -> bool:
        """Return whether `name` is the user's and can be brought."""
        if name not in self.space or name in OURS or IPYTHONS.fullmatch(name):
            return False
        return name not in self.hidden or self.hidden[name] is not self.space[name]


@dataclass
class Bringing:
    """Names packed for ranks."""

    parcel: Parcel
    blocks: memory.Blocks
    items: dict[str, Item]
    """In the order they are used."""
    kept: list[str]
    """Names the notebook has changed, and that stay on the ranks as cells there bound them."""

    def close(self) -> None:
        """Let go of shared memory; ranks keep what they have mapped."""
        self.blocks.close()

    def told(self, bound: Mapping[int, list[str]]) -> list[str]:
        """Return what to tell of it.

        Parameters
        ----------
        bound
            The names that were new to each rank.
        """
        groups: dict[tuple[str, ...], list[int]] = {}
        for rank, names in bound.items():
            if names:
                new = set(names)
                groups.setdefault(tuple(n for n in self.items if n in new), []).append(rank)
        lines = [
            f"Brought to {_ranks(ranks, len(bound))}: {self._listed(names)}."
            for names, ranks in groups.items()
        ]
        lines += [
            f"`{name}` was bound anew in the notebook, but cells have bound it on the ranks too, "
            f"where it stays as it is; `--bring {name}` brings the notebook's."
            for name in self.kept
        ]
        lines += [
            f"`{item.name}` took {item.seconds:.1f} s to pickle object by object "
            f"({memory.in_words(item.objects)}); as an array or a tensor it would take no time."
            for item in self.items.values()
            if item.seconds > SLOW_SECONDS and item.objects > item.size / 2
        ]
        return lines

    def _listed(self, names: tuple[str, ...]) -> str:
        told = [str(self.items[name]) for name in names[:MOST_NAMED]]
        rest = [self.items[name].size for name in names[MOST_NAMED:]]
        if rest:
            told.append(f"and {len(rest)} more ({memory.in_words(sum(rest))})")
        return ", ".join(told)


def _ranks(ranks: list[int], of: int) -> str:
    if len(ranks) == of > 1:
        return f"{of} ranks"
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {show_ranks(ranks)}"


def pack(wanted: Wanted, known: Known, ask: Ask, devices: int) -> Bringing | None:
    """Pack what the ranks lack; None if that is nothing.

    Raises
    ------
    UsageError
        If something cannot travel; nothing has been sent.
    """
    for name in wanted.forced:
        if name not in wanted.space:
            raise UsageError(f"there is no `{name}` in the notebook that could be brought")
    known.forget(wanted.space)
    sure = {name for name in (*wanted.forced, *wanted.surely) if name in wanted.space}
    left_out: set[str] = set()
    while True:
        trip = _Trip(wanted, known, ask, devices, left_out)
        refused = trip.load()
        if not refused:
            return trip.leave()
        needed = {name: why for name, why in refused.items() if name in sure or name in trip.via}
        if needed:
            raise UsageError(_cannot(needed, trip.via))
        left_out |= set(refused)


def _cannot(refused: dict[str, str], via: dict[str, str]) -> str:
    lines = []
    for name, why in refused.items():
        user = f", which `{via[name]}` uses," if name in via else ""
        lines.append(f"`{name}`{user} cannot be brought to the ranks: {why}.")
    lines.append("Nothing was brought or started; --no-bring leaves the notebook's names out.")
    return "\n".join(lines)


class _Trip:
    """One attempt at packing."""

    def __init__(
        self, wanted: Wanted, known: Known, ask: Ask, devices: int, left_out: set[str]
    ) -> None:
        self._wanted, self._known, self._ask, self._devices = wanted, known, ask, devices
        self._seen = set(left_out)
        self._packing = Packing(devices)
        self._tokens: dict[str, str] = {}
        self._kept: list[str] = []
        self._code = [wanted.code] if wanted.code else []
        self.via: dict[str, str] = {}
        """For names the cell itself does not use: what does."""

    def load(self) -> dict[str, str]:
        """Pack everything; return what cannot be packed and why."""
        wanted, refused = self._wanted, dict[str, str]()
        names = [*wanted.forced, *wanted.surely, *wanted.maybe]
        while not refused and (names := self._with_what_they_use(names)):
            refused = self._pack(by_need(self._lacking(names), wanted.space, self.via))
            names = list(self._packing.uses)
        packed = list(self._packing.items)
        if not refused and packed != (in_order := by_need(packed, wanted.space, self.via)):
            # What has been packed turned out to use more than could be seen.
            self._packing = Packing(self._devices, self._packing.parts)
            refused = self._pack(in_order)
        return refused

    def _pack(self, names: list[str]) -> dict[str, str]:
        """Pack these; return what cannot be packed and why."""
        space = self._wanted.space
        for i, name in enumerate(names):
            before = len(self._packing.uses)
            try:
                self._packing.add(name, space[name])
            except CannotTravel:
                rest = {name: space[name] for name in names[i:]}
                return cannot_travel(rest, lambda: Packing(self._devices))
            if len(self._packing.uses) > before:
                for used in list(self._packing.uses)[before:]:
                    if used not in self._seen:
                        self.via.setdefault(used, name)
        return {}

    def _with_what_they_use(self, names: list[str]) -> list[str]:
        """Return the names not met before, and those that their code uses in turn."""
        space = self._wanted.space
        found, todo = [], list(reversed(names))
        while todo:
            name = todo.pop()
            if name in self._seen or not (name in self._wanted.forced or self._wanted.has(name)):
                continue
            self._seen.add(name)
            found.append(name)
            value = space[name]
            if type(value) in SIMPLE:
                continue
            uses = [each.__name__ for each in classes(value) if each.__name__ in space]
            for code in codes(value):
                self._code.append(code)
                uses += global_names(code)
            for used in uses:
                if used not in self._seen:
                    self.via.setdefault(used, name)
                    todo.append(used)
        return found

    def _lacking(self, names: list[str]) -> list[str]:
        space = self._wanted.space
        there = self._known.kept(space)
        answers = self._ask([*dict.fromkeys((*names, *there))])
        lacking = []
        for name in names:
            token, changed = self._known.version(name, space[name])
            self._tokens[name] = token
            versions = {answer.get(name) for answer in answers}
            if name in self._wanted.forced or versions - {"", token}:
                lacking.append(name)
            elif changed and "" in versions:
                self._kept.append(name)
        for name, token in there.items():
            everywhere = all(answer.get(name) == token for answer in answers)
            if everywhere and name not in self._wanted.forced:
                self._packing.parts.add(name, space[name])
        return lacking

    def leave(self) -> Bringing | None:
        """Put everything where the ranks find it."""
        items = self._packing.items
        if not items and not self._kept:
            return None
        blocks = memory.Blocks()
        try:
            modules = [v for v in map(self._wanted.space.get, items) if isinstance(v, ModuleType)]
            imports = [submodule for code in self._code for submodule in submodules(code, modules)]
            parcel = self._packing.close(
                blocks, self._tokens, self._wanted.forced, dict.fromkeys(imports)
            )
        except BaseException:  # an interrupt, too, must not leave memory mapped
            blocks.close()
            raise
        met = {name: items[name] for name in self._tokens if name in items}
        return Bringing(parcel, blocks, met, self._kept)


def codes(value: object, depth: int = 3) -> list[CodeType]:
    """Return the code that the notebook gave a function, a class, or an object's class."""
    if isinstance(value, FunctionType):
        own = [value.__code__] if value.__module__ == "__main__" else []
        return own + _all_codes(closed_over(value), depth - 1)
    own_classes = classes(value)
    if not own_classes:
        return []
    return _all_codes([part for each in own_classes for part in methods(each)], depth - 1)


def classes(value: object) -> list[type]:
    """Return the notebook's classes that a class or an object, or the first ones in it, are of."""
    kind = value if isinstance(value, type) else type(value)
    kinds = {kind}
    if kind in HOLDERS:
        inside: Any = value.values() if isinstance(value, dict) else value
        kinds.update(map(type, itertools.islice(inside, LOOKED_AT)))
    return [
        base
        for each in kinds - PLAIN_KINDS
        for base in each.__mro__
        if base.__module__ == "__main__"
    ]


def _all_codes(values: Iterable[object], depth: int) -> list[CodeType]:
    if depth < 0:
        return []
    inner = [value for value in values if isinstance(value, (FunctionType, type))]
    return [code for value in inner for code in codes(value, depth)]


def devices(gpus: Iterable[int] | None) -> int:
    """Return how many GPUs the ranks see, 0 where the notebook uses none."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0
    return len(list(gpus)) if gpus is not None else int(torch.cuda.device_count())
