"""Digests of values and code, to compare a name's value in the notebook and on a rank.

Main thread, of the kernel or of an idle rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

from nbdist.rank.looking.digests import Digester, TooMuch, Unknown, hashed
from nbdist.rank.values.describe import PLAIN, describe, is_a
from nbdist.rank.values.kinds import VALUES, is_open
from nbdist.rank.values.opened_objects import WRAPS, attributes_of_model, members

SECONDS = 0.05
"""How long one value may take."""
DIGEST_SECONDS = 1.0
"""The longest that a value may take for which the packing of names waits."""
WIDE = 40
"""The most characters of a container that is shown."""


def likeness(value: Any) -> str:
    """Return a digest that only equal values or definitions have; '' if that is not decided."""
    try:
        return "/".join(_Likeness(SECONDS).digests(value)).strip("/")
    except TooMuch:
        return ""


def alike(value: Any) -> str:
    """Return what is the same for equal values of two processes; '' if that cannot be decided.

    Takes up to a second: the packing of names waits for it. A class is compared without its bases,
    which have names of their own.
    """
    try:
        found = _Likeness(DIGEST_SECONDS, bases=not isinstance(value, type)).digests(value)
    except TooMuch:
        return ""
    modules = value.modules() if is_a(value, "torch.nn", "Module") else ()
    modes = "".join("ft"[one.training] for one in modules)
    return f"{'/'.join(found)} {modes}" if found[0] else ""


def text_of(value: Any) -> str:
    """Return the text of a plain value or a small container of such; '' for others."""
    if type(value) not in (list, tuple, set, dict):
        return describe("", value, anything=False).value
    if len(value) > WIDE:
        return ""
    inside = [*value, *value.values()] if type(value) is dict else value
    text = repr(value) if all(type(each) in PLAIN for each in inside) else ""
    return text if len(text) <= WIDE else ""


class _Likeness(Digester):
    """Also digests functions, classes, modules, and objects that consist of their attributes."""

    def __init__(self, seconds: float, *, bases: bool = True) -> None:
        super().__init__(seconds)
        self._met: set[int] = set()
        self._bases = bases
        """Whether a class is digested with its bases, not only with their names."""

    def digests(self, value: Any) -> tuple[str, str]:
        found = super().digests(value)
        if found[0] and is_a(value, "torch.nn", "Module"):
            return found[0] + self._of_structure(value).hex(), found[1]
        return found

    def _of_data(self, value: Any) -> bytes:
        kind = type(value)
        if isinstance(value, ModuleType):
            return hashed("module", value.__name__)
        if isinstance(value, (type, FunctionType, BuiltinFunctionType)) or kind in WRAPS:
            return self._of_definition(value)
        if isinstance(value, VALUES) or value is ...:
            return hashed(kind.__name__, repr(value))
        if is_a(value, "torch.optim", "Optimizer"):
            settings = [
                {name: one for name, one in group.items() if name != "params"}
                for group in value.param_groups
            ]
            return hashed(super()._of_data(value), self._of(settings, 4))
        if is_a(value, "numpy", "generic") or not is_open(kind):
            found = super()._of_data(value)
            is_model = is_a(value, "torch.nn", "Module")
            return hashed(found, self._of_structure(value)) if is_model else found
        return self._of_pickled(value)

    def _of_structure(self, model: Any) -> bytes:
        """Digest a model's modules: their classes and attributes, without their modes."""
        if id(model) in self._met:
            return hashed("again")
        self._met.add(id(model))
        found = []
        for (name, module), held in zip(
            model.named_modules(), attributes_of_model(model), strict=True
        ):
            held.pop("training", None)
            plain = sorted((key, one) for key, one in held.items() if type(one) in PLAIN)
            others = sorted(held.keys() - {key for key, _ in plain})
            parts = (part for key in others for part in (key, held[key]))
            kind = self._of_parts([type(module)])
            found.append(hashed(name, kind, repr(plain), self._of_parts(parts)))
        return hashed(*found)

    def _of_pickled(self, value: Any) -> bytes:
        """Digest what a pickle of an object would hold, which is more than its attributes."""
        found = value.__reduce_ex__(4)
        if isinstance(found, str):
            return hashed("global", found)
        others = (part for part in found if part is not value)  # a dict may be its own `__dict__`
        parts = [[*part] if isinstance(part, Iterator) else part for part in others]
        return self._of(parts, 10)

    def _of_definition(self, value: Any) -> bytes:
        name = getattr(value, "__qualname__", "")
        if id(value) in self._met:
            return hashed("again", name)
        self._met.add(id(value))
        owner = getattr(value, "__self__", None)
        if owner is not None and not isinstance(owner, ModuleType):
            return hashed("method", name, self._of(owner, 8))
        if type(value) in WRAPS:
            inner = WRAPS[type(value)](value)
            return self._of_parts(inner if isinstance(inner, tuple) else (inner,))
        if getattr(value, "__module__", None) != "__main__":
            return hashed("import", str(value.__module__), name)
        if isinstance(value, type):
            inside = (
                part for pair in sorted(members(value), key=lambda one: one[0]) for part in pair
            )
            bases = [base if self._bases else base.__qualname__ for base in value.__bases__]
            return hashed(name, self._of_parts((*bases, *inside)))
        return hashed(name, self._of_function(value))

    def _of_function(self, function: FunctionType) -> bytes:
        cells = []
        for cell in function.__closure__ or ():
            try:
                cells.append(cell.cell_contents)
            except ValueError:  # not bound yet
                cells.append(None)
        defaults = function.__defaults__, function.__kwdefaults__
        parts = (*defaults, *cells, *sorted(vars(function).items()))
        return hashed(self._of_code(function.__code__), self._of_parts(parts))

    def _of_code(self, code: CodeType) -> bytes:
        names = " ".join((*code.co_names, "", *code.co_varnames, "", *code.co_freevars))
        return hashed(code.co_code, names, self._of_parts(code.co_consts))

    def _of_parts(self, parts: Any) -> bytes:
        """Digest what a definition holds; of what cannot be compared, only the type counts."""
        found = []
        for part in parts:
            if isinstance(part, CodeType):
                found.append(self._of_code(part))
                continue
            try:
                found.append(self._of(part, 4))
            except Unknown:
                owner = getattr(part, "__self__", None)
                found.append(hashed("a", type(part).__qualname__, type(owner).__qualname__))
        return hashed(*found)
