"""Packs the notebook's names that a cell needs and the ranks lack. Kernel's main thread."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from nbdist.cell.names.sent_versions import Change, Known
from nbdist.cell.names.used_names import mentioned
from nbdist.errors import UsageError
from nbdist.job.named_ranks import show_ranks
from nbdist.machine.amounts import in_bytes, in_time
from nbdist.rank.looking.rank_names import OURS
from nbdist.rank.values.culprits import explained
from nbdist.rank.values.parcels import Item, Packing, by_need
from nbdist.rank.values.pickles import submodules
from nbdist.rank.values.renewed_objects import State
from nbdist.rank.values.shared_parts import Parts
from nbdist.rank.values.user_errors import CannotTravel
from nbdist.wire import shared_memory

if TYPE_CHECKING:
    from nbdist.wire.parcel_format import Parcel

IPYTHONS = re.compile(r"_{1,3}|_(i{1,3}|oh|dh|sh|ih|exit_code)|_i?\d+|__\w+__|In|Out")
"""Names that IPython and Python themselves bind."""
SLOW_SECONDS = 0.5
MOST_NAMED = 12
"""The most names that are listed one by one."""
CHANGED = {
    "bound": "`{0}` got a new value in the notebook, but cells have also assigned `{0}` on the "
    "ranks. The ranks keep their value; `--bring {0}` brings the notebook's value.",
    "edited": "`{0}` was changed in the notebook, but cells have also changed `{0}` on the ranks. "
    "The ranks keep their value; `--bring {0}` brings the notebook's value.",
}
DRIFTED = (
    "`{0}` was changed in place in the notebook after it was brought; the ranks keep their "
    "value. `--bring {0}` replaces it by the notebook's present value. Objects that cells have "
    "made from `{0}` (an optimizer, a DDP model) must be brought, too, or re-created."
)
DELETED = (
    "`{0}` was deleted in the notebook; the ranks keep the value that was brought. `del {0}` in "
    "a cell deletes it on the ranks, too."
)

Ask = Callable[[list[str], list[str]], list[Mapping[str, str]]]
"""Returns for each rank its versions of these names; see `rank_names.Names.holds`."""


@dataclass
class Wanted:
    """The names that a cell needs from the notebook."""

    space: Mapping[str, Any]
    """The namespace in which the names are looked up."""
    surely: Iterable[str] = ()
    maybe: Iterable[str] = ()
    """Names that are left out if their values cannot be pickled."""
    forced: Iterable[str] = ()
    """Names that are sent even if the ranks already have values for them."""
    code: CodeType | None = None
    hidden: Mapping[str, Any] = field(default_factory=dict)
    """Names in the notebook that IPython defined, with their values."""
    automatic: bool = True
    """Whether to send names other than `forced`, too."""

    def has(self, name: str) -> bool:
        """Return whether the user defined `name`, so that it can be sent."""
        if name not in self.space or name in OURS or IPYTHONS.fullmatch(name):
            return False
        return name not in self.hidden or self.hidden[name] is not self.space[name]


@dataclass
class Bringing:
    """Names and values, packed for the ranks."""

    parcel: Parcel
    blocks: shared_memory.Blocks
    items: dict[str, Item]
    """The names, in the order in which the cell uses them."""
    notes: list[str]
    """Messages about names that were changed in the notebook but stay unchanged on the ranks."""

    def close(self) -> None:
        """Release the shared memory; the ranks keep what they have mapped."""
        self.blocks.close()

    def told(self, bound: Mapping[int, list[str]]) -> list[str]:
        """Return the messages for the user.

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
        lines += self.notes
        lines += [
            f"`{item.name}` took {in_time(item.seconds)} to pickle object by object "
            f"({in_bytes(item.objects)}); as an array or a tensor it would take no time."
            for item in self.items.values()
            if item.seconds > SLOW_SECONDS and item.objects > item.size / 2
        ]
        return lines

    def _listed(self, names: tuple[str, ...]) -> str:
        told = [str(self.items[name]) for name in names[:MOST_NAMED]]
        rest = [self.items[name].size for name in names[MOST_NAMED:]]
        if rest:
            told.append(f"and {len(rest)} more ({in_bytes(sum(rest))})")
        return ", ".join(told)


def _ranks(ranks: list[int], of: int) -> str:
    if len(ranks) == of > 1:
        return f"{of} ranks"
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {show_ranks(ranks)}"


def pack(wanted: Wanted, known: Known, ask: Ask, devices: int) -> Bringing | None:
    """Pack the names that the ranks lack; return None if they lack none.

    Raises
    ------
    UsageError
        If a value cannot be pickled; then nothing has been sent.
    """
    space = wanted.space
    for name in wanted.forced:
        if name not in space:
            raise UsageError(f"there is no `{name}` in the notebook that could be brought")
    ranks_use = known.ran(wanted.code) if wanted.code and wanted.automatic else {}
    changed = [name for name in ranks_use if wanted.has(name) and known.changed(name, space[name])]
    used = [*wanted.forced, *wanted.surely, *changed]
    sure = dict.fromkeys(name for name in used if name in space)
    left_out: set[str] = set()
    while True:
        trip = _Trip(wanted, known, ask, devices, left_out, ranks_use)
        refused = trip.load([*sure, *wanted.maybe])
        if not refused:
            return trip.leave()
        needed = {name: why for name, why in refused.items() if name in sure or name in trip.via}
        if needed:
            told = {
                name: explained(name, space[name], why, trip.refuses)
                for name, why in needed.items()
            }
            raise UsageError(_cannot(told, trip.via))
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
        self, wanted: Wanted, known: Known, ask: Ask, devices: int, left_out: set[str],
        ranks_use: Iterable[str],
    ) -> None:  # fmt: skip
        self._wanted, self._known, self._ask, self._devices = wanted, known, ask, devices
        self._ranks_use = ranks_use
        """Names that may be read by functions that earlier cells defined on the ranks."""
        self._seen = set(left_out)
        self._parts = Parts()
        self._packing = Packing(devices, self._parts)
        self._tokens: dict[str, str] = {}
        self._edited: set[str] = set()
        """Packed names whose object the ranks have in an older state."""
        self._notes: list[str] = []
        self._first: list[str] = []
        """Names that the cell itself uses."""
        self.via: dict[str, str] = {}
        """For names that the cell itself does not use: the name that uses them."""
        self._read: set[str] = set()
        """Names that code in other values reads, perhaps as soon as those are unpickled."""

    def load(self, names: list[str]) -> dict[str, str]:
        """Pack everything; return the names that cannot be packed, each with the reason."""
        space, refused, packed = self._wanted.space, dict[str, str](), list[str]()
        self._first = names
        while names := self._with_what_they_use(names):
            lacking, names = self._lacking(names), []
            for name in lacking:
                try:
                    names += self._try(name)
                except CannotTravel as err:
                    refused[name] = str(err)
            packed += lacking
        self._look_at_deleted()
        if not refused:
            states = {name: State.of(space[name]) for name in packed if name in self._edited}
            for name, state in states.items():
                if state is not None:
                    # Other values in the parcel that hold this object refer to the ranks' object.
                    self._parts.add(name, space[name])
            self._packing = Packing(self._devices, self._parts)
            for name in by_need(packed, space, self._read):
                self._packing.add(name, space[name], states.get(name))
        return refused

    def _try(self, name: str) -> list[str]:
        """Return the new names that the code in a value uses, found by pickling it."""
        space, known = self._wanted.space, self._known
        self._parts.met.clear()
        trial = Packing(self._devices, self._parts, trial=True)
        trial.add(name, space[name])
        reads = dict(trial.uses)
        for part in self._parts.met:
            reads |= known.reads(part)
            if isinstance(space[part], (FunctionType, type)):
                reads[part] = None
        known.found(name, reads)
        return self._new(name, reads)

    def refuses(self, value: object) -> str:
        """Return why a part of a value cannot be pickled alone; '' if it can be."""
        try:
            Packing(self._devices, self._parts, trial=True).add("", value)
        except CannotTravel as err:
            return str(err)
        return ""

    def _new(self, name: str, reads: Iterable[str]) -> list[str]:
        self._read.update(reads)
        new = [each for each in reads if each not in self._seen]
        for each in new:
            self.via.setdefault(each, name)
        return new

    def _with_what_they_use(self, names: list[str]) -> list[str]:
        """Return the names not seen before, and the names that their code uses in turn."""
        found, todo = [], list(reversed(names))
        while todo:
            name = todo.pop()
            if name in self._seen or not (name in self._wanted.forced or self._wanted.has(name)):
                continue
            self._seen.add(name)
            found.append(name)
            todo += self._new(name, self._known.reads(name))
        return found

    def _lacking(self, names: list[str]) -> list[str]:
        space, known = self._wanted.space, self._known
        changes = dict[str, Change]()
        for name in names:
            self._tokens[name], changes[name] = known.version(name, space[name])
            if name in self._wanted.forced:
                self._tokens[name] = known.renew(name, space[name])
        answers = self._ask(names, [name for name, how in changes.items() if how == "edited"])
        answers = self._ask_who_is_behind(changes, answers)
        lacking = []
        for name, change in changes.items():
            token, versions = self._tokens[name], {answer.get(name) for answer in answers}
            if name in self._wanted.forced or versions - {"", token}:
                lacking.append(name)
                if change == "edited" and all(map(known.are_same(name), versions - {""})):
                    self._edited.add(name)
            elif change == "drifted":
                self._notes.append(DRIFTED.format(name))
            if name not in self._wanted.forced and change in CHANGED and "" in versions:
                self._notes.append(CHANGED[change].format(name))
        if lacking:
            self._refer_to_what_is_there()
        return lacking

    def _ask_who_is_behind(
        self, changes: dict[str, Change], answers: list[Mapping[str, str]]
    ) -> list[Mapping[str, str]]:
        """Ask again about edits that only some ranks got, because a cell ran on a part of them."""
        known, wanted = self._known, self._wanted
        behind = [
            name
            for name, change in changes.items()
            if not change and name not in wanted.forced
            for versions in [{answer.get(name) for answer in answers} - {self._tokens[name]}]
            if any(map(known.are_same(name), versions))
        ]
        if not behind:
            return answers
        changes.update(dict.fromkeys(behind, "edited"))
        told = self._ask(behind, behind)
        return [{**before, **now} for before, now in zip(answers, told, strict=True)]

    def _refer_to_what_is_there(self) -> None:
        """Let packed values refer to objects that all ranks have, instead of copying them."""
        space, wanted = self._wanted.space, self._wanted
        there = self._known.kept(space)
        answers = self._ask(list(there), [])
        for name, token in there.items():
            if name not in wanted.forced and all(each.get(name) == token for each in answers):
                self._parts.add(name, space[name])

    def _look_at_deleted(self) -> None:
        """Add messages about names that the cell uses and that were deleted in the notebook."""
        wanted, known = self._wanted, self._known
        used = mentioned(wanted.code) if wanted.code and wanted.automatic else ()
        gone = known.forget(wanted.space, (*self._ranks_use, *self.via, *used))
        if gone:
            answers = self._ask(gone, [])
            there = [name for name in gone if any(answer.get(name) for answer in answers)]
            self._notes += [DELETED.format(name) for name in there]

    def leave(self) -> Bringing | None:
        """Write everything into shared memory, for the ranks."""
        items = self._packing.items
        if not items and not self._notes:
            return None
        wanted, blocks = self._wanted, shared_memory.Blocks()
        try:
            modules = [v for v in map(wanted.space.get, items) if isinstance(v, ModuleType)]
            codes = [*self._packing.codes, *([wanted.code] if wanted.code else [])]
            imports = [submodule for code in codes for submodule in submodules(code, modules)]
            parcel = self._packing.close(
                blocks, self._tokens, wanted.forced, dict.fromkeys(imports)
            )
        except BaseException:  # also an interrupt: no memory may stay mapped
            blocks.close()
            raise
        return Bringing(parcel, blocks, self._as_used(items), self._notes)

    def _as_used(self, items: dict[str, Item]) -> dict[str, Item]:
        """Return the packed names in the order in which the cell and its functions use them."""
        used: dict[str, None] = {}
        todo = list(reversed(self._first))
        while todo:
            name = todo.pop()
            if name not in used:
                used[name] = None
                todo += reversed(self._known.reads(name))
        return {name: items[name] for name in used if name in items}


def devices(gpus: Iterable[int] | None) -> int:
    """Return how many GPUs the ranks see; 0 if the notebook does not use GPUs."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0
    return len(list(gpus)) if gpus is not None else int(torch.cuda.device_count())
