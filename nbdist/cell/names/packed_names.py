"""Packs the notebook's names that a cell needs and the ranks lack. Kernel's main thread."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING

from nbdist.cell.names.bringing import Bringing
from nbdist.cell.names.kept_values import KeptValues
from nbdist.cell.names.names_inside import Inside
from nbdist.cell.names.references import Ask, References
from nbdist.cell.names.sent_versions import Change, Known
from nbdist.cell.names.used_names import bound_anywhere, mentioned
from nbdist.errors import UsageError
from nbdist.rank.looking.likeness import likeness
from nbdist.rank.values.annotations import is_data
from nbdist.rank.values.culprits import explained
from nbdist.rank.values.describe import is_a
from nbdist.rank.values.gradients import Gradients
from nbdist.rank.values.parcels import Item, Packing, by_need
from nbdist.rank.values.pickles import submodules
from nbdist.rank.values.renewed_objects import State
from nbdist.rank.values.shared_parts import Parts
from nbdist.rank.values.user_errors import CannotTravel
from nbdist.wire import shared_memory
from nbdist.wire.inspection import Edited

if TYPE_CHECKING:
    from nbdist.cell.names.kept_values import LookAt
    from nbdist.cell.names.wanted_names import Wanted


def pack(wanted: Wanted, known: Known, ask: Ask, look: LookAt, devices: int) -> Bringing | None:
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
    ranks_use, followed, stay = dict[str, None](), list[str](), list[str]()
    if wanted.code and wanted.automatic:
        ranks_use = known.cells.read_by(wanted.source, wanted.code)
        held, read = known.cells.behind(wanted.code)
        followed = [name for name in sorted(held) if _can_follow(wanted, known, name)]
        others = sorted(filter(wanted.has, held.difference(followed)))
        stay = [name for name in others if known.stays(name, space[name])]
        followed += filter(wanted.has, known.cells.changed_behind(sorted(read), space))
    changed = [name for name in known.cells.changed_behind(ranks_use, space) if wanted.has(name)]
    used = [*wanted.forced, *wanted.surely, *changed]
    sure = dict.fromkeys(name for name in used if name in space)
    left_out: dict[str, str] = {}
    while True:
        trip = _Trip(wanted, known, ask, devices, {*left_out}, ranks_use)
        try:
            refused = trip.load([*sure, *wanted.maybe, *followed])
            if not refused:
                trip.leave_out({n: why for n, why in left_out.items() if n in followed})
                trip.tell_of(stay)
                bringing = trip.end(look)
                known.keep()
                return bringing
        except BaseException:  # a rank is silent, or an interrupt
            known.take_back()
            raise
        known.take_back()  # what has changed is told by the attempt that succeeds
        needed = {name: why for name, why in refused.items() if name in sure or name in trip.needed}
        if needed:
            told = {
                name: explained(name, space[name], why, trip.refuses)
                for name, why in needed.items()
            }
            behind = {name: by for name, by in trip.via.items() if name not in sure}
            raise UsageError(_cannot(told, behind))
        left_out |= refused


def _can_follow(wanted: Wanted, known: Known, name: str) -> bool:
    """Return whether what ranks have made from a name can get the notebook's changes of it."""
    if not wanted.has(name) or not known.edited(name, value := wanted.space[name]):
        return False
    return isinstance(value, (type, ModuleType)) or State.of(value) is not None


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
        ranks_use: Mapping[str, None],
    ) -> None:  # fmt: skip
        self._wanted, self._known, self._ask, self._devices = wanted, known, ask, devices
        self._ranks_use = ranks_use
        """Names that may be read by functions that earlier cells defined on the ranks."""
        self._seen = set(left_out)
        self._references = References(wanted.space, known, ask)
        self._parts = self._references.parts
        self._packing = Packing(devices, self._parts)
        self._tokens: dict[str, str] = {}
        self._edited: dict[str, list[tuple[object, str]]] = {}
        """Packed names whose object the ranks have in an older state, with what they hold there,
        each with its path."""
        self._alike: list[str] = []
        """Names whose objects both ends have edited in the same way, to be read anew."""
        self._drifted: list[str] = []
        """Names of which something inside may be sent by itself."""
        self._graded: set[str] = set()
        """Packed names of which the ranks lack only the gradients."""
        self._kept = KeptValues(wanted, known)
        self._first: list[str] = []
        """Names that the cell itself uses."""
        self.via: dict[str, str] = {}
        """For names that brought values use: one of these."""
        self.needed: set[str] = set()
        """Of these, the names that code uses which is not only mentioned by annotations."""
        self._mentioned: dict[str, None] = dict.fromkeys(wanted.mentions)
        self._inside = Inside(wanted.space, wanted.has)
        self._along: set[str] = set()
        """Packed names whose objects other packed values hold."""
        self._packed: list[str] = []
        self._read: set[str] = set()
        """Names that code in other values reads, perhaps as soon as those are unpickled."""

    def load(self, names: list[str]) -> dict[str, str]:
        """Pack everything; return the names that cannot be packed, each with the reason."""
        wanted, packed = self._wanted, self._packed
        self._first = [*names, *wanted.mentions]
        refused = self._try_all(names)
        self.needed = set(self.via)
        while names := self._worth_mentioning():
            refused |= self._try_all(names)
        refused |= self._try_all(self._trained_along())
        self._pack_along()
        used = mentioned(wanted.code) if wanted.code and wanted.automatic else ()
        self._kept.look_at_deleted(self._ask, (*self._ranks_use, *self.via, *used))
        if not refused:
            self._kept.notes += self._references.notes(packed)
            self._note_shared()
            self._pack()
        return refused

    def _note_shared(self) -> None:
        """Record which others, in the parcel or on the ranks, have the objects in the parcel."""
        for name in self._packed:
            way = self._parts.way_to(self._wanted.space[name])
            there = () if way is None else (way[0],)
            self._known.shares(name, {*self._inside.holders.get(name, ()), *there})

    def _pack(self) -> None:
        """Pack for the ranks what has been tried."""
        space, packed = self._wanted.space, self._packed
        states = {name: State.of(space[name]) for name in packed if name in self._edited}
        states |= {name: Gradients.of(space[name]) for name in packed if name in self._graded}
        self._parts.copied.update(packed)
        self._parts.copied_inside.update(packed)
        for name, state in states.items():
            if state is not None:
                # Other values in the parcel that hold this object refer to the ranks' object.
                self._parts.add(name, space[name])
                self._parts.copied.discard(name)
        for name, parts in self._edited.items():
            if (state := states[name]) is not None:
                renewed = [part for part in parts if State.of(part[0]) is not None]
                state.hold(self._parts.add_earlier(name, renewed))
        self._packing = Packing(self._devices, self._parts)
        for kind in self._known.edited_earlier():
            if not self.refuses(kind):
                self._packing.add_class(kind)
        for name in by_need(packed, space, self._read):
            self._packing.add(name, space[name], states.get(name))

    def _try_all(self, names: list[str]) -> dict[str, str]:
        """Try to pickle what ranks lack of these names, and of what their code uses."""
        refused = dict[str, str]()
        while names := self._with_what_they_use(names):
            lacking, names = self._lacking(names), []
            for name in lacking:
                try:
                    names += self._try(name)
                except CannotTravel as err:
                    refused[name] = str(err)
            for name in self._alike:
                names += self._read_anew(name)
            for name in self._drifted:
                moved = self._known.moves_with_others(name)
                names += [each for each in moved if each not in self._seen]
            self._alike.clear()
            self._drifted.clear()
            self._packed += lacking
        return refused

    def _trained_along(self) -> list[str]:
        """Return the models that ranks lack and that optimizers in the parcel train."""
        models = self._inside.trained(self._parts.updated)
        models = self._inside.lacking(models, self._known, self._ask)
        self._along.update(name for name in models if name not in self._seen)
        return models

    def _pack_along(self) -> None:
        """Pack the names whose objects are pickled anyway, inside of other values."""
        known, inside = self._known, self._inside
        along = inside.lacking(inside.holders, known, self._ask)
        along = self._lacking([name for name in along if name not in self._seen])
        for name in along:
            holder = inside.holders[name][-1]
            reads, mentions = known.reads(holder), known.mentions(holder)
            known.found(name, reads, mentions, known.by_code(holder))
        self._along.update(along)
        self._packed += along

    def _worth_mentioning(self) -> list[str]:
        """Return the names that annotations mention, and that may be meant."""
        space, found = self._wanted.space, [*self._mentioned]
        self._mentioned.clear()
        has = self._wanted.has
        return [n for n in found if n not in self._seen and has(n) and not is_data(space[n])]

    def _try(self, name: str) -> list[str]:
        """Return the new names that the code in a value uses, found by pickling it."""
        space, known = self._wanted.space, self._known
        final = False
        while not final:
            self._parts.forget_met()
            trial = Packing(self._devices, self._parts, trial=True)
            trial.add(name, space[name])
            changed, final = self._references.judge(name)
        if name not in self._graded:
            self._inside.meet(name, trial.met)
        reads, mentions, by_code = dict(trial.uses), dict(trial.mentions), {*trial.read}
        for part in self._parts.met:
            reads |= known.reads(part)
            by_code |= known.by_code(part)
            mentions |= known.mentions(part)
            if isinstance(space[part], (FunctionType, type)):
                reads[part] = None
        known.found(name, reads, mentions, by_code, {*self._parts.met} - {name})
        known.found_code(name, trial.codes)
        self._mentioned |= mentions
        return self._new(name, [*reads, *changed])

    def _read_anew(self, name: str) -> list[str]:
        """Return the new names that code in an edited value reads, which ranks have as it is."""
        known = self._known
        trial = Packing(self._devices, Parts(), trial=True)
        with suppress(CannotTravel):
            trial.add(name, self._wanted.space[name])
        reads = {**known.reads(name), **trial.uses}
        mentions = {**known.mentions(name), **trial.mentions}
        known.found(name, reads, mentions, {*known.by_code(name), *trial.read})
        known.found_code(name, trial.codes)
        self._mentioned |= mentions
        return self._new(name, reads)

    def refuses(self, value: object) -> str:
        """Return why a part of a value cannot be pickled alone; '' if it can be."""
        try:
            Packing(self._devices, self._parts, trial=True).add("", value)
        except CannotTravel as err:
            return str(err)
        return ""

    def _new(self, name: str, reads: Collection[str]) -> list[str]:
        self._read.update(reads)
        space, known = self._wanted.space, self._known
        there = known.cells.changed_behind(known.cells.read_there(reads), space)
        found = (*reads, *there)
        for each in found:
            self.via.setdefault(each, name)
        return [each for each in found if each not in self._seen]

    def _with_what_they_use(self, names: list[str]) -> list[str]:
        """Return the names not seen before, and the names that their code uses in turn."""
        found, todo = [], list(reversed(names))
        while todo:
            name = todo.pop()
            if name in self._seen or not (name in self._wanted.forced or self._wanted.has(name)):
                continue
            self._seen.add(name)
            found.append(name)
            self._mentioned |= self._known.mentions(name)
            todo += self._new(name, self._known.reads(name))
        return found

    def _lacking(self, names: list[str]) -> list[str]:
        space, known = self._wanted.space, self._known
        changes = dict[str, Change]()
        for name in names:
            self._tokens[name], changes[name] = known.version(name, space[name])
            if name in self._wanted.forced:
                self._tokens[name] = known.renew(name, space[name])
        answers = self._ask_about(names, [n for n, how in changes.items() if how == "edited"])
        answers = self._ask_who_is_behind(changes, answers)
        lacking = []
        for name, change in changes.items():
            versions = {answer.get(name) for answer in answers}
            if self._lacks(name, change, versions):
                lacking.append(name)
            told_apart = name in self._wanted.forced or name in known.there
            if "" in versions and change != "drifted" and not told_apart:
                self._kept.found(name, change)
        if lacking:
            self._references.look(self._wanted.forced)
        return lacking

    def _lacks(self, name: str, change: Change, versions: set[str | None]) -> bool:
        """Return whether ranks with these versions lack ours; record what they lack of it."""
        token = self._tokens[name]
        if name in self._wanted.forced or versions - {"", token}:
            if change == "edited" and all(map(self._known.are_same(name), versions - {""})):
                self._edited[name] = self._known.inside_before(name, versions)
            return True
        if change == "graded" and versions == {token}:
            self._graded.add(name)
            return True
        if change == "edited" and token in versions:
            self._alike.append(name)
        elif change == "drifted":
            self._kept.found(name, change)
            self._drifted.append(name)
        return False

    def _ask_about(self, names: list[str], edited: list[str]) -> list[Mapping[str, str]]:
        """Ask ranks for their versions, which may have the same edits as the notebook."""
        told = {}
        for name in edited:
            value = self._wanted.space[name]
            # Of an optimizer only the settings count, and to read its parameters may take long.
            alike = "" if _is_optimizer(value) else likeness(value)
            told[name] = Edited(self._tokens[name], alike)
        return self._ask(names, told)

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
        told = self._ask_about(behind, behind)
        return [{**before, **now} for before, now in zip(answers, told, strict=True)]

    def leave_out(self, refused: Mapping[str, str]) -> None:
        """Say which changed names, which what cells have made may read, cannot be brought."""
        for name, why in refused.items():
            value = self._wanted.space[name]
            if name in self._known and self._known.cells.left_out(name, value):
                self._kept.left_out(name, explained(name, value, why, self.refuses))

    def tell_of(self, stay: Iterable[str]) -> None:
        """Say once which changed names do not follow to what cells have made from them."""
        for name in stay:
            if self._known.cells.left_out(name, self._wanted.space[name]):
                self._kept.stays(name)

    def end(self, look: LookAt) -> Bringing | None:
        """Write what is packed for the ranks, with the notes, and record the cell."""
        wanted, known = self._wanted, self._known
        if wanted.code and wanted.automatic:
            known.cells.ran(wanted.code, self._ranks_use)
            known.cells.made(wanted.source, wanted.space)
        self._kept.look_at_newer(look)
        bringing = self._leave()
        if wanted.python is not None:
            uses = {*mentioned(wanted.python), *self.via, *self._ranks_use}
            binds = {*bound_anywhere(wanted.python)}.union(*map(known.binds, self._seen))
            known.there.ran(wanted.python, binds, uses, wanted.space)
        return bringing

    def _leave(self) -> Bringing | None:
        """Write everything into shared memory, for the ranks."""
        items = self._packing.items
        if not items and not self._kept.notes and not self._packing.classes:
            return None
        wanted, blocks = self._wanted, shared_memory.Blocks()
        try:
            modules = [v for v in map(wanted.space.get, items) if isinstance(v, ModuleType)]
            codes = [*self._packing.codes, *([wanted.code] if wanted.code else [])]
            imports = [submodule for code in codes for submodule in submodules(code, modules)]
            reloads = self._known.reloads(self._packing.modules)
            parcel = self._packing.close(
                blocks, self._tokens, wanted.forced, dict.fromkeys(imports), reloads
            )
        except BaseException:  # also an interrupt: no memory may stay mapped
            blocks.close()
            raise
        for name in self._graded:
            self._known.sent_gradients(name, wanted.space[name])
        self._known.there.brought(items)
        # An optimizer has the gradients of its model, which is told of.
        models = {n for n in self._graded if not _is_optimizer(wanted.space[n])}
        graded = models or self._graded
        return Bringing(parcel, blocks, self._as_used(items), self._kept.notes, self._along, graded)

    def _as_used(self, items: dict[str, Item]) -> dict[str, Item]:
        """Return the packed names in the order in which the cell and its functions use them.

        What the cell has only within other values comes last.
        """
        used: dict[str, None] = {}
        todo = list(reversed(self._first))
        while todo:
            name = todo.pop()
            if name not in used:
                used[name] = None
                todo += reversed([*self._known.reads(name), *self._known.mentions(name)])
        return {name: items[name] for name in (*used, *items) if name in items}


def _is_optimizer(value: object) -> bool:
    return is_a(value, "torch.optim", "Optimizer")


def devices(gpus: Iterable[int] | None) -> int:
    """Return how many GPUs the ranks see; 0 if the notebook does not use GPUs."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0
    return len(list(gpus)) if gpus is not None else int(torch.cuda.device_count())
