"""Checks that a class statement, run again, would create the notebook's present class."""

from __future__ import annotations

import ast
import dataclasses
import enum
import types
import typing
from abc import ABCMeta
from collections import Counter
from types import CodeType
from typing import TYPE_CHECKING, Any

from nbdist.cell.definitions.class_bodies import bound, defines, mangled, pairs
from nbdist.cell.definitions.compared_functions import MISSING
from nbdist.cell.definitions.decorated import Function, doc_of
from nbdist.cell.definitions.defined import codes_in, first_line
from nbdist.cell.definitions.expressions import Unsure
from nbdist.cell.definitions.subclass_hooks import creation_runs_code

if TYPE_CHECKING:
    from nbdist.cell.definitions.compared_functions import Comparison

GIVEN = frozenset(
    """
    __module__ __qualname__ __doc__ __dict__ __weakref__ __annotations__ __firstlineno__
    __static_attributes__ __orig_bases__ __parameters__ __abstractmethods__ _abc_impl __annotate__
    __annotate_func__ __annotations_cache__ __classdictcell__ __type_params__ __slotnames__ __hash__
    __match_args__ __slots__
    """.split()  # noqa: SIM905 - as a list it would be a page
)
"""Attributes that Python itself adds to a class."""
IMPLICIT = frozenset({"__new__", "__init_subclass__", "__class_getitem__"})
"""Methods that Python turns into class methods or static methods without a decorator."""
LOCKS = frozenset({"lock", "RLock", "Condition", "Event", "Semaphore", "BoundedSemaphore"})


class ClassComparison:
    """Compares one class with its definition.

    Parameters
    ----------
    whole
        The comparison to which this one belongs.
    node
        The class statement.
    code
        The code of the class's body.
    cls
        The class in the notebook.
    path
        The class's qualified name.
    """

    def __init__(
        self,
        whole: Comparison,
        node: ast.ClassDef,
        code: CodeType,
        cls: Any,
        path: str,
    ) -> None:
        if not isinstance(cls, type) or cls.__module__ != "__main__" or cls.__qualname__ != path:
            raise Unsure
        self._whole, self._node, self._path = whole, node, path
        self._cls: Any = cls
        self._codes = list(codes_in(code))
        self._local: dict[str, Any] = {}
        self._own = dict(vars(cls))
        self._kind = _kind(cls)
        self._annotations: dict[str, ast.expr] = {}
        self._several = {name for name, n in Counter(bound(node.body)).items() if n > 1}
        self._computed: set[str] = set()
        """Names that statements other than a single assignment bind."""
        self._by_library = any(
            "__init_subclass__" in vars(base) and base.__module__ not in ("__main__", "typing")
            for base in cls.__mro__[1:-1]
        )
        """Whether a library may have added attributes to the class."""
        self._creation_runs_code = creation_runs_code(cls)

    def compare(self) -> None:
        """Raise `Unsure` if the class statement would create something else."""
        self._decorators()
        self._bases()
        for part in self._node.body:
            self._statement(part)
        for name in self._computed:
            if not self._whole.is_same(self._local.get(name, MISSING), self._now(name)):
                raise Unsure
        if self._whole.evaluates_annotations:
            own = self._own.get("__annotations__", {})
            self._whole.annotations(self._annotations, own, self._local)
        self._attribute("__doc__", doc_of(self._node), self._own.get("__doc__"))
        self._rest()

    # -- around the body -----------------------------------------------------------------------

    def _decorators(self) -> None:
        for decorator in self._node.decorator_list:
            if self._whole.is_imported(decorator, {}):
                self._by_library = True
                self._whole.fixed(decorator, {})
            else:
                # The decorator has returned the class itself, which is compared below.
                self._whole.drop(decorator)
        if self._kind == "type" and "__dataclass_fields__" in self._own:
            self._kind = "dataclass"

    def _bases(self) -> None:
        now = self._own.get("__orig_bases__", self._cls.__bases__)
        nodes = self._node.bases
        then = tuple(self._whole.value(base, {}) for base in nodes) or (object,)
        if then != now and then not in ((typing.NamedTuple,), (typing.TypedDict,)):
            raise Unsure
        for keyword in self._node.keywords:
            if keyword.arg == "metaclass":
                if self._whole.value(keyword.value, {}) is not type(self._cls):
                    raise Unsure
            elif keyword.arg is None or not self._whole.is_fixed(keyword.value, {}):
                raise Unsure

    # -- the body ------------------------------------------------------------------------------

    def _statement(self, part: ast.stmt) -> None:
        match part:
            case ast.Pass() | ast.Expr(value=ast.Constant()):
                pass
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._method(part)
            case ast.ClassDef():
                self._inner_class(part)
            case ast.Import() | ast.ImportFrom():
                self._import(part)
            case ast.AnnAssign(target=ast.Name(id=name)):
                self._annotations[mangled(name, self._cls)] = part.annotation
                if part.value is not None:
                    self._assign(name, part.value, part)
            case ast.If() if defines(part):
                taken = part.body if self._whole.value(part.test, self._local) else part.orelse
                for each in taken:
                    self._statement(each)
            case _:
                self._assignments(part)

    def _assignments(self, part: ast.stmt) -> None:
        assigned = pairs(part)
        for name, value in assigned:
            self._assign(name, value, part)
        if not assigned:
            self._whole.run(part, self._local)
            self._computed.update(bound([part]))

    def _assign(self, name: str, node: ast.expr, part: ast.stmt) -> None:
        if name in self._several:
            if isinstance(part, ast.AnnAssign):
                raise Unsure
            self._whole.run(part, self._local)
            self._computed.add(name)
            return
        now = self._now(name)
        self._value(name, node, now)
        # Only now: in `items = [*items]` the value reads the notebook's `items`.
        own = self._own.get(mangled(name, self._cls), now)
        self._local[name] = now if self._kind == "enum" else own

    def _value(self, name: str, node: ast.expr, now: Any) -> None:
        if isinstance(node, ast.Lambda):
            self._lambda(node, now)
        elif self._kind == "dataclass" and self._is_field(node):
            self._field(node, now)
        elif self._kind == "enum" and self._is_settled(node):
            pass
        elif self._kind == "other" and now is MISSING:
            if not (self._is_made_by_library(node) or self._whole.is_fixed(node, self._local)):
                raise Unsure
        elif not self._is_made_by_library(node) and not _is_lock(node, now):
            self._whole.expression(node, now, self._local, may_edit=self._may_edit(name))

    def _lambda(self, node: ast.Lambda, now: Any) -> None:
        code = self._code("<lambda>", node.lineno)
        self._whole.function(node, code, now, f"{self._path}.<lambda>", self._local)

    def _may_edit(self, name: str) -> bool:
        if self._creation_runs_code:
            return False
        if self._kind == "enum":
            own = any(base.__module__ == "__main__" for base in self._cls.__mro__[1:])
            return not own and "__new__" not in bound(self._node.body)
        return name != "__slots__" and self._kind != "other"

    def _now(self, name: str) -> Any:
        """Return the class's present value for a name that its body has bound."""
        if self._kind == "dataclass" and name in (fields := self._cls.__dataclass_fields__):
            held = fields[name]
            if held.default is not dataclasses.MISSING:
                now = self._own.get(name, held.default)
                if now is not held.default and not isinstance(now, types.MemberDescriptorType):
                    raise Unsure
                return held.default
            return held
        if self._kind == "enum" and name in self._cls._member_map_:
            return self._cls._member_map_[name]._value_
        if self._kind == "named tuple" and name in self._cls._field_defaults:
            return self._cls._field_defaults[name]
        return self._own.get(mangled(name, self._cls), MISSING)

    def _is_settled(self, node: ast.expr) -> bool:
        """Return whether a member's value contains no names, which could have changed."""
        names = [n for n in ast.walk(node) if isinstance(n, ast.Name)]
        if not names:
            return not any(isinstance(n, ast.Call) for n in ast.walk(node))
        return (
            isinstance(node, ast.Call)
            and not node.args
            and self._whole.value(node.func, self._local) is enum.auto
        )

    def _is_field(self, node: ast.expr) -> bool:
        if not isinstance(node, ast.Call):
            return False
        return self._whole.find(node.func, self._local) is dataclasses.field

    def _field(self, node: Any, now: Any) -> None:
        """Compare `field(default=..., default_factory=...)`."""
        if node.args:
            raise Unsure
        for keyword in node.keywords:
            if keyword.arg == "default":
                self._whole.expression(keyword.value, now, self._local)
            elif keyword.arg == "default_factory":
                if not isinstance(now, dataclasses.Field):
                    raise Unsure  # another class has this name now
                self._factory(keyword.value, now.default_factory)
            elif keyword.arg is None or not self._whole.is_fixed(keyword.value, self._local):
                raise Unsure

    def _factory(self, node: ast.expr, now: Any) -> None:
        if isinstance(node, ast.Lambda):
            self._lambda(node, now)
        elif self._whole.value(node, self._local) is not now:
            raise Unsure

    def _is_made_by_library(self, node: ast.expr) -> bool:
        """Return whether the class's own library makes the value, such as `pydantic.Field(3)`."""
        if (self._kind != "other" and not self._by_library) or not isinstance(node, ast.Call):
            return False
        makers = [type(self._cls), *(b for b in self._cls.__mro__ if b.__module__ != "__main__")]
        places = {each.__module__.partition(".")[0] for each in makers}
        places -= {"builtins", "__main__"}
        try:
            place = str(getattr(self._whole.find(node.func, self._local), "__module__", ""))
            given = [*node.args, *(each.value for each in node.keywords)]
            fixed = all(self._whole.is_fixed(each, self._local) for each in given)
        except Unsure:
            return False
        return place.partition(".")[0] in places and fixed

    def _method(self, node: Function) -> None:
        member = self._own.get(mangled(node.name, self._cls), MISSING)
        code = self._code(node.name, first_line(node))
        self._local[node.name] = member
        if node.name in IMPLICIT and isinstance(member, (classmethod, staticmethod)):
            explicit = any(isinstance(each, ast.Name) for each in node.decorator_list)
            member = member if explicit else member.__func__
        self._whole.decorated(node, code, member, f"{self._path}.{node.name}", self._local)

    def _inner_class(self, node: ast.ClassDef) -> None:
        cls = self._own.get(mangled(node.name, self._cls), MISSING)
        code = self._code(node.name, first_line(node))
        ClassComparison(self._whole, node, code, cls, f"{self._path}.{node.name}").compare()
        self._local[node.name] = cls

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            name = alias.asname or alias.name.partition(".")[0]
            found = self._whole.imported(node, alias)
            if self._own.get(mangled(name, self._cls), MISSING) is not found:
                raise Unsure
            self._local[name] = found

    def _code(self, name: str, line: int) -> CodeType:
        found = [c for c in self._codes if c.co_name == name and c.co_firstlineno == line]
        if len(found) != 1:
            raise Unsure
        return found[0]

    # -- other attributes ------------------------------------------------------------------------

    def _attribute(self, name: str, then: Any, now: Any) -> None:
        plain = self._kind in ("type", "dataclass") and not self._creation_runs_code
        if self._kind == "dataclass" and name == "__doc__" and then is None:
            return  # the dataclass made it from the fields
        if self._kind == "named tuple" and name == "__doc__" and then is None:
            return
        self._whole.attribute(self._path if plain else "", name, then, now)

    def _rest(self) -> None:
        """Compare the attributes that the body has not bound."""
        if self._kind not in ("type", "dataclass"):
            return
        ours = {mangled(name, self._cls) for name in bound(self._node.body)}
        slots = self._own.get("__slots__", ())
        given = ours | GIVEN | ({slots} if isinstance(slots, str) else set(slots))
        for name, now in self._own.items():
            if name not in given and not self._is_given(name, now):
                self._attribute(name, MISSING, now)

    def _is_given(self, name: str, value: Any) -> bool:
        """Return whether Python or a library has added this attribute."""
        if name in ("_is_protocol", "_is_runtime_protocol", "__protocol_attrs__"):
            return True
        place = getattr(value, "__module__", "__main__")
        if self._by_library or self._kind == "dataclass":
            return name.startswith("_") or place != "__main__"
        return name in ("__init__", "__subclasshook__") and place != "__main__"


def _kind(cls: type) -> str:
    if isinstance(cls, enum.EnumMeta):
        return "enum"
    if issubclass(cls, tuple) and hasattr(cls, "_field_defaults") and cls.__bases__ == (tuple,):
        return "named tuple"
    if type(cls) in (type, ABCMeta, type(typing.Protocol)):
        return "type"
    return "typed dict" if typing.is_typeddict(cls) else "other"


def _is_lock(node: ast.expr, now: Any) -> bool:
    """Return whether a value is a lock, which each process needs for itself."""
    func = node.func if isinstance(node, ast.Call) else None
    own = type(now).__module__ in ("threading", "_thread", "_io")
    return own and getattr(func, "attr", getattr(func, "id", "")) in {"Lock", *LOCKS}
