"""Collects the notebook's names that a cell needs, each as a part of a script."""

from __future__ import annotations

import ast
import builtins
import sys
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from nbdist.cell.definitions.defined import Notebook
from nbdist.cell.definitions.definition_text import Remade
from nbdist.cell.definitions.expressions import Again
from nbdist.cell.definitions.find_definition import remade
from nbdist.cell.definitions.literals import containers, written
from nbdist.cell.definitions.subclass_hooks import creation_runs_code
from nbdist.cell.names.used_names import used
from nbdist.cell.script.definition_reads import (
    called_names,
    dotted_names,
    evaluated_at_once,
    flags_of,
    functions_in,
)
from nbdist.cell.script.import_text import import_of, imported
from nbdist.cell.script.order import Circle, Order, Part, Parts, in_place
from nbdist.cell.script.translate import Around, bound_names, translate
from nbdist.cell.script.value_files import Packer
from nbdist.errors import UsageError
from nbdist.rank.looking.rank_names import OURS
from nbdist.rank.values.annotations import is_data
from nbdist.rank.values.culprits import explained
from nbdist.rank.values.kinds import attribute
from nbdist.rank.values.pickles import global_names
from nbdist.rank.values.user_errors import CannotTravel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from nbdist.cell.names.wanted_names import Wanted


class Gathering:
    """Finds the parts that a cell needs, name by name. Kernel's main thread.

    Parameters
    ----------
    wanted
        The names that the cell needs.
    notebook
        The definitions in the notebook's cells.
    transform
        IPython's transformer, for magics in functions.
    cell
        The cell as plain Python.
    futures
        The names that the script imports from `__future__`.
    """

    def __init__(
        self, wanted: Wanted, notebook: Notebook, transform: Any, cell: str, futures: set[str]
    ) -> None:
        self._wanted, self._notebook, self._transform = wanted, notebook, transform
        self._cell, self._futures = cell, futures
        self._space: Any = wanted.space  # not a copy: it is the `__globals__` of functions
        self._no_source: set[str] = set()
        """Names whose definition cannot be in the script as source."""
        self._again = Again(self._space, self._has)
        self._remade: dict[str, Remade | None] = {}
        self.packer = Packer(self._stands, self._space)
        self._begin()

    def _begin(self) -> None:
        self._sources: dict[int, str] = {}
        """For the id of a function or class with source in the script, its name."""
        self._written: dict[int, str] = {}
        """For the id of a list, dict or set written as source, also a nested one, its name."""
        self._held: dict[int, str] = {}
        """For the id of a container that a definition creates, the name of the definition."""
        self._parts: dict[str, Part] = {}
        self._via: dict[str, str] = {}
        """For names that the cell itself does not use: the name that uses them."""
        self._values = dict(self._space)
        """All names with their values, in the notebook or only in the script."""
        self._mentioned: dict[str, None] = {}
        """Names that annotations mention and that may become parts."""
        self._siblings: dict[str, list[str]] = {}
        """For names that are only in the script: all names for the same definition."""
        self._extra: set[str] = set()
        self._by_value: list[str] = []
        self._dealing: list[str] = []

    def gather(self) -> Parts:
        """Return the parts in order.

        Raises
        ------
        UsageError
            If a name, given in the message, cannot be put into a script.
        """
        for name in self._wanted.forced:
            if name not in self._space:
                raise UsageError(f"there is no `{name}` in the notebook that could be brought")
        while True:
            try:
                self._find()
                return self._ordered()
            except Circle as circle:
                # Pickled as a value, the class or function is loaded together with its users.
                self._no_source.add(circle.name)
                self._begin()

    def _find(self) -> None:
        wanted = self._wanted
        sure = {*wanted.forced, *wanted.surely}
        names = [*wanted.forced, *wanted.surely, *wanted.maybe]
        self._take(names, lambda name: name in sure or name in self._via)
        needed = set(self._parts)
        self._mentioned.update(dict.fromkeys(wanted.mentions))
        while self._mentioned:
            names = [n for n in self._mentioned if self._has(n) and not is_data(self._values[n])]
            self._mentioned.clear()
            self._take(names, lambda _: False)
        self._leave_out_broken(needed)
        self._keep_shared()
        self._keep_together()

    def _take(self, todo: list[str], is_needed: Callable[[str], bool]) -> None:
        """Make parts of names and of what these need; leave out what cannot be one if it may."""
        while todo:
            name = todo.pop(0)
            if name in self._parts or not (name in self._wanted.forced or self._has(name)):
                continue
            try:
                part = self._part(name, self._values[name])
            except (CannotTravel, UsageError) as err:
                if not is_needed(name):
                    continue
                user = f", which `{self._via[name]}` uses," if name in self._via else ""
                why = str(err)
                if isinstance(err, CannotTravel):
                    why = explained(name, self._values[name], why, self.packer.refuses)
                raise UsageError(f"`{name}`{user} cannot be put into a script: {why}.") from err
            self._parts[name] = part
            self._mentioned.update(part.mentions)
            for needed in (*part.at_once, *part.later):
                if needed not in self._parts:
                    self._via.setdefault(needed, name)
                    todo.append(needed)

    def _leave_out_broken(self, needed: set[str]) -> None:
        """Leave out parts for annotations alone which need at once what cannot be in the script."""
        while True:
            broken = [
                part
                for name, part in self._parts.items()
                if name not in needed
                and any(self._has(each) and each not in self._parts for each in part.at_once)
            ]
            if not broken:
                return
            for part in broken:
                del self._parts[part.name]
                self._sources.pop(id(self._values[part.name]), None)

    def _has(self, name: str) -> bool:
        if name not in self._space and name in self._values:
            return True
        return self._wanted.has(name) and name not in OURS

    # -- one name ------------------------------------------------------------------------------

    def _part(self, name: str, value: Any) -> Part:
        statement = import_of(name, value, self._notebook)
        if statement:
            return Part(name, "import", statement)
        other = self._sources.get(id(value)) or self._written.get(id(value))
        if other and other != name and self._space.get(other) is value:
            return Part(name, "written", f"{name} = {other}", at_once={other: None}, alias=other)
        found = self._definition(name, value)
        if found is not None and self._is_alone(name, found):
            return self._source(name, found, value)
        text = written(value)
        inner = containers(value) if text is not None else []
        # An object inside two values must stay one object, so these are pickled together.
        if not {*self._written, *self._held}.isdisjoint(inner):
            text = None
        if text is not None:
            self._written.update(dict.fromkeys(inner, name))
            return Part(name, "written", f"{name} = {text}")
        return self._value(name, value)

    def _value(self, name: str, value: Any) -> Part:
        needs, _ = self.packer.look(value)
        if self.packer.by_value:
            self._by_value.append(name)
        if self.packer.deals:
            self._dealing.append(name)
        needs.pop(name, None)
        runs = {each for each in needs if _runs_when_loaded(self._space.get(each))}
        return Part(name, "value", at_once=needs, calls=runs, mentions=self.packer.mentions)

    def _keep_shared(self) -> None:
        """Pickle containers that are written as source but also contained in other values."""
        values = [part.name for part in self._parts.values() if part.kind == "value"]
        watched = {**self._held, **self._written}
        for name in values if watched else ():
            _, met = self.packer.look(self._values[name], watched)
            for holder in {watched[each] for each in met}:
                if self._parts[holder].kind == "source":
                    raise Circle(holder)
                self._parts[holder] = Part(holder, "value")
        for part in self._parts.values():
            # An alias of a pickled value is pickled with it.
            if part.alias and self._parts[part.alias].kind == "value":
                part.kind = "value"

    def _keep_together(self) -> None:
        """Group each value that is needed early with all values that share objects with it."""
        values = {part.name: part for part in self._parts.values() if part.kind == "value"}
        sources = [part for part in self._parts.values() if part.kind == "source"]
        needed = {n for part in sources for n in (*part.at_once, *part.later)}
        early = {n for part in sources for n in part.at_once}
        early |= needed if any(part.calls for part in sources) else set()
        called = (
            self._parts[n] for part in values.values() for n in part.calls if n in self._parts
        )
        early |= {n for part in called for n in (*part.at_once, *part.later)}
        names = sorted(early & values.keys())
        for name in names:  # which grows meanwhile
            if values[name].together:
                continue
            group = self._sharing(name, values)
            for each in group if len(group) > 1 else ():
                values[each].together = group
            # Code of these may run while the values are loaded, or soon after.
            found = self._needed_by(each for one in group for each in values[one].at_once)
            names += sorted((found & values.keys()).difference(names))

    def _sharing(self, name: str, values: Mapping[str, Part]) -> list[str]:
        """Return the names of all values that share objects with one, also through others."""
        group = list(self._siblings.get(name, [name]))
        todo, held = list(group), dict[int, object]()
        while todo:
            held.update(self.packer.held(self._values[todo.pop()]))
            for other in values.keys() - set(group):
                if self.packer.look(self._values[other], held)[1]:
                    group.append(other)
                    todo.append(other)
        return group

    def _needed_by(self, names: Iterable[str]) -> set[str]:
        """Return the names of the parts that the code under these names may need, and these."""
        found, todo = set[str](), [*names]
        while todo:
            name = todo.pop()
            if name in self._parts and name not in found:
                found.add(name)
                todo += [*self._parts[name].at_once, *self._parts[name].later]
        return found

    def _definition(self, name: str, value: Any) -> Remade | None:
        if name in self._no_source or not (callable(value) or attribute(value, "__wrapped__")):
            return None
        if name not in self._remade:
            annotations = "annotations" not in self._futures
            self._remade[name] = remade(
                name, value, self._notebook, self._again, annotations=annotations
            )
        return self._remade[name]

    def _is_alone(self, name: str, found: Remade) -> bool:
        """Return whether only this definition holds the containers it creates; record them."""
        held = [id(each) for each in found.held]
        others = {*self._written, *(each for each, n in self._held.items() if n != name)}
        taken = not found.carried.keys().isdisjoint(self._values)
        if taken or len(set(held)) < len(held) or not others.isdisjoint(held):
            self._no_source.add(name)
            return False
        for value in found.carried.values():
            self.packer.look(value)  # an error here names the definition
        self._values.update(found.carried)
        self._siblings.update({each: list(found.carried) for each in found.carried})
        self._held.update(dict.fromkeys(held, name))
        return True

    def _source(self, name: str, found: Remade, value: Any) -> Part:
        definition = found.definition
        where = f"the definition of `{name}` (In [{definition.number}])"
        known = {*self._space, *vars(builtins), *OURS, *bound_names(definition.node)}
        around = Around(known, self._transform, lambda _: where)
        done = translate(found.text, around)
        self._extra |= done.imports
        code = compile(done.text, "<source>", "exec", flags_of(self._futures), dont_inherit=True)
        reads = used(done.text, code)
        every = {each: None for each in (*reads.surely, *reads.maybe) if each != name}
        later = dict.fromkeys(each for inner in functions_in(code) for each in global_names(inner))
        head = evaluated_at_once(done.text, annotations="annotations" not in self._futures)
        at_once = used(head, compile("", "", "exec"))
        now = {each: None for each in (*at_once.surely, *at_once.maybe) if each != name}
        rest = {each: None for each in (*every, *later) if each not in now and each != name}
        calls = called_names(head)
        if isinstance(value, type) and creation_runs_code(value):
            calls |= set(now)
        place = definition.number, definition.line
        self._sources[id(value)] = name
        mentions = {each: None for each in reads.mentions if each != name}
        part = Part(name, "source", done.text, place, now, rest, mentions, calls)
        part.rebinds = {
            each
            for node in ast.walk(ast.parse(done.text))
            if isinstance(node, ast.Global)
            for each in node.names
        }
        return part

    def _stands(self, obj: Any) -> str:
        """Return the name of a function or class whose source is or will be in the script."""
        path = str(attribute(obj, "__qualname__", ""))
        if path == "<lambda>":
            path = next((name for name, value in self._space.items() if value is obj), "")
        name = path.partition(".")[0]
        if attribute(obj, "__module__") != "__main__" or name not in self._space:
            return ""
        if not (name in self._wanted.forced or self._has(name)):
            return ""  # such as `_`, which is IPython's: `@f.register` functions are called so
        found: Any = self._values[name]
        if _reached(found, path) is not obj:
            return ""
        if id(found) in self._sources:
            return name if self._sources[id(found)] == name else ""
        return name if self._definition(name, found) is not None else ""

    # -- all of them ---------------------------------------------------------------------------

    def _ordered(self) -> Parts:
        parts = Parts()
        for part in self._parts.values():
            if part.kind == "import":
                parts.imports.append(part.text)
        parts.imports += self._submodules()
        parts.imports += [f"import {name}" for name in self._extra]
        parts.imports = list(dict.fromkeys(parts.imports))
        parts.every = {name: self._values[name] for name in self._parts}
        parts.by_value, parts.dealing = self._by_value, self._dealing
        Order(self._parts, parts).order()
        parts.again += self._restored_attributes()
        return parts

    def _restored_attributes(self) -> list[str]:
        """Return statements that restore class attributes which creating a subclass may change."""
        every = [self._values[name] for name in self._parts]
        told = [each for each in every if isinstance(each, type) and creation_runs_code(each)]
        bases = dict.fromkeys(base for each in told for base in each.__mro__[1:])
        return [
            in_place(f"{base.__name__}.{name}", value, text)
            for base in bases
            if id(base) in self._sources and type(base) is type
            for name, value in vars(base).items()
            if name.isidentifier() and not name.startswith("__")
            if (text := written(value)) is not None
        ]

    def _submodules(self) -> list[str]:
        """Return imports of the submodules that the code uses as attributes of modules."""
        modules = {
            name: value.__name__
            for name, value in self._space.items()
            if name in self._parts and isinstance(value, ModuleType)
        }
        found: dict[str, None] = {}
        texts = [part.text for part in self._parts.values() if part.kind == "source"]
        for text in (self._cell, *texts):
            for node in ast.walk(ast.parse(text)):
                for dotted in dotted_names(node, modules):
                    if dotted in sys.modules and imported(dotted) is sys.modules[dotted]:
                        found[f"import {dotted}"] = None
        return list(found)


LOADING = ("__new__", "__setstate__", "__setattr__", "__setitem__", "__hash__", "__eq__")
"""Methods that may run when an object is unpickled."""


def _runs_when_loaded(cls: object) -> bool:
    """Return whether the notebook's code runs when objects of a class are unpickled."""
    return isinstance(cls, type) and any(
        base.__module__ == "__main__"
        and isinstance(vars(base).get(name), (FunctionType, staticmethod))
        for base in cls.__mro__
        for name in LOADING
    )


def _reached(found: Any, qualname: str) -> Any:
    for part in qualname.split(".")[1:]:
        found = getattr(found, part, None)
    return found
