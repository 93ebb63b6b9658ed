"""Evaluates an expression of a definition again, if that has no side effects."""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from enum import EnumMeta
from types import ModuleType
from typing import Any

from nbdist.cell.definitions.equal_values import CONTAINERS, is_plain

PURE_BUILTINS = frozenset(
    """
    abs all any bin bool bytes chr complex dict divmod enumerate float frozenset hex int len list
    max min oct ord pow range repr reversed round set slice sorted str sum tuple type zip
    """.split()  # noqa: SIM905 - as a list it would be a page
)
PURE_MODULES = frozenset({"math", "cmath"})
PURE = frozenset({
    ("datetime", "date"), ("datetime", "datetime"), ("datetime", "timedelta"),
    ("decimal", "Decimal"), ("fractions", "Fraction"), ("pathlib", "Path"),
    ("pathlib", "PurePath"), ("pathlib", "PurePosixPath"), ("re", "compile"),
    ("torch", "Size"), ("torch", "device"), ("typing", "NewType"), ("typing", "TypeVar"),
})  # fmt: skip
"""Functions and classes that return the same result for the same plain arguments."""
HOLDING = frozenset({
    ("functools", "partial"), ("dataclasses", "field"), ("enum", "auto"), ("logging", "getLogger"),
})  # fmt: skip
"""Functions and classes that only hold their arguments, or return the same object again."""
SAFE_METHODS = frozenset(
    name
    for kind in (str, bytes, int, float, tuple, frozenset)
    for name in dir(kind)
    if not name.startswith("_") and name != "replace"
) | {"get", "keys", "values", "items", "copy"}
"""Methods of Python's own types without side effects; `replace` is not here: `Path` has it."""
RUN = (ast.Assign, ast.AugAssign, ast.For, ast.If, ast.Pass, ast.Delete)
_MISSING = object()


class Unsure(Exception):
    """It is unknown what this code would return or do if it ran again."""


class Again:
    """Evaluates expressions of definitions again.

    Parameters
    ----------
    space
        The notebook's namespace.
    has
        Whether the script will have a name of this namespace.
    """

    def __init__(self, space: Mapping[str, Any], has: Callable[[str], bool]) -> None:
        self._space, self._has = space, has

    def value(self, node: ast.expr, local: Mapping[str, Any]) -> Any:
        """Return the present value of an expression.

        Parameters
        ----------
        node
            The expression.
        local
            The names that the body of the class has bound so far.

        Raises
        ------
        Unsure
            If its evaluation might have side effects, or fails now.
        """
        _Check(self, local).visit(node)
        return self._run(ast.Expression(node), "eval", local)

    def run(self, node: ast.stmt, local: dict[str, Any]) -> None:
        """Run a statement of a class's body, which binds names in `local`.

        Raises
        ------
        Unsure
            If it may have effects outside `local`.
        """
        stored = (n for n in ast.walk(node) if isinstance(getattr(n, "ctx", None), ast.Store))
        targets = list(stored)
        parts = [each for each in ast.walk(node) if isinstance(each, ast.stmt)]
        names = {each.id for each in targets if isinstance(each, ast.Name)}
        own = all(isinstance(each, (ast.Name, ast.Tuple, ast.Starred)) for each in targets)
        if not own or not all(isinstance(each, RUN) for each in parts):
            raise Unsure
        for each in parts:
            check = _Check(self, local, set() if isinstance(each, ast.Assign) else names)
            for part in ("value", "iter", "test"):
                if hasattr(each, part):
                    check.visit(getattr(each, part))
        self._run(ast.Module([node], []), "exec", local)

    def _run(self, tree: Any, mode: str, local: Mapping[str, Any]) -> Any:
        names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}
        there = {n: self._space[n] for n in names if n in self._space}
        try:
            code = compile(tree, "<again>", mode, dont_inherit=True)
            return eval(code, {"__builtins__": builtins, **there}, local)  # noqa: S307
        except Exception as err:  # the user's code may raise anything
            raise Unsure from err

    def find(self, node: ast.AST, local: Mapping[str, Any]) -> Any:
        """Return the value of a name, or of a name's attribute.

        Raises
        ------
        Unsure
            If the value cannot be found without running code.
        """
        match node:
            case ast.Name(id=name) if name in local:
                return local[name]
            case ast.Name(id=name) if name in self._space:
                if name != "__name__" and not self._has(name):
                    raise Unsure
                return self._space[name]
            case ast.Name(id=name):
                found = getattr(builtins, name, _MISSING)
            case ast.Attribute(value=owner, attr=name):
                found = _attribute(self.find(owner, local), name)
            case _:
                found = _MISSING
        if found is _MISSING:
            raise Unsure
        return found


class _Check(ast.NodeVisitor):
    """Raises `Unsure` where an evaluation may have side effects.

    Otherwise a visit returns whether the expression's value is plain, so that operators may be
    applied to it.

    Parameters
    ----------
    again
        Finds the values of names.
    local
        The names that the body of the class has bound so far.
    bound
        Names that the expression itself binds to plain values.
    """

    def __init__(self, again: Again, local: Mapping[str, Any], bound: Iterable[str] = ()) -> None:
        self._again, self._local, self._bound = again, local, set(bound)

    def generic_visit(self, _node: ast.AST) -> bool:
        raise Unsure

    def _find(self, node: ast.AST) -> Any:
        if isinstance(node, ast.Name) and node.id in self._bound:
            return None
        return self._again.find(node, self._local)

    def _plain(self, nodes: Iterable[ast.AST | None]) -> bool:
        for node in nodes:
            if node is not None and not self.visit(node):
                raise Unsure
        return True

    def visit_Constant(self, _node: ast.Constant) -> bool:
        return True

    def visit_Name(self, node: ast.Name) -> bool:
        return node.id in self._bound or is_plain(self._find(node))

    def visit_Attribute(self, node: ast.Attribute) -> bool:
        try:
            return is_plain(self._find(node))
        except Unsure:
            # Allowed for a value like `Path("x")`. A named value's attributes may be code.
            if isinstance(node.value, ast.Name):
                raise
            return self._plain([node.value])

    def visit_Lambda(self, node: ast.Lambda) -> bool:
        for each in (*node.args.defaults, *node.args.kw_defaults):
            if each is not None:
                self.visit(each)
        return False

    # -- operators, displays -------------------------------------------------------------------

    def _operator(self, node: ast.AST) -> bool:
        return self._plain(n for n in ast.iter_child_nodes(node) if isinstance(n, ast.expr))

    visit_BinOp = visit_UnaryOp = visit_BoolOp = visit_Compare = _operator  # noqa: N815
    visit_JoinedStr = visit_FormattedValue = visit_Slice = visit_Starred = _operator  # noqa: N815

    def visit_IfExp(self, node: ast.IfExp) -> bool:
        self._plain([node.test])
        return all([self.visit(node.body), self.visit(node.orelse)])

    def _display(self, node: ast.Tuple | ast.List) -> bool:
        plain = [self.visit(each) for each in node.elts]
        return all(plain)

    visit_Tuple = visit_List = _display  # noqa: N815

    def visit_Set(self, node: ast.Set) -> bool:
        return not self._plain(node.elts)

    def visit_Dict(self, node: ast.Dict) -> bool:
        self._plain(node.keys)
        values = [self.visit(each) for each in node.values]
        return all(values) if None not in node.keys or all(values) else self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> bool:
        self._plain([node.slice])
        if self.visit(node.value):
            return True
        if type(self._find(node.value)) in CONTAINERS:
            return False
        raise Unsure

    def _comprehension(self, node: Any) -> bool:
        before = set(self._bound)
        for each in node.generators:
            self._plain([each.iter])
            self._bound |= {n.id for n in ast.walk(each.target) if isinstance(n, ast.Name)}
            self._plain(each.ifs)
        self._plain([node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt])
        self._bound = before
        return not isinstance(node, ast.SetComp)

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension  # noqa: N815

    # -- calls ---------------------------------------------------------------------------------

    def visit_Call(self, node: ast.Call) -> bool:
        args = [*node.args, *(each.value for each in node.keywords)]
        try:
            func = self._find(node.func)
        except Unsure:
            func = None
        place = getattr(func, "__module__", None), getattr(func, "__qualname__", None)
        if place in HOLDING:
            for each in args:
                self.visit(each)
            return False
        if func is not None and is_pure(func):
            self._plain(args)
            self._no_class(args)
            return func not in (set, frozenset)
        if isinstance(node.func, ast.Attribute) and node.func.attr in SAFE_METHODS:
            return self._method(node.func.value, args)
        raise Unsure

    def _method(self, owner: ast.expr, args: list[ast.expr]) -> bool:
        if isinstance(owner, (ast.Name, ast.Attribute)) and isinstance(
            self._find(owner), (ModuleType, type)
        ):
            raise Unsure
        return self._plain([owner, *args])

    def _no_class(self, args: list[ast.expr]) -> None:
        """Raise if an argument is a class other than Python's own: the function may call it."""
        for node in (node for arg in args for node in ast.walk(arg)):
            if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
                try:
                    found = self._find(node)
                except Unsure:
                    continue
                if isinstance(found, type) and found.__module__ != "builtins":
                    raise Unsure


def is_pure(func: Any) -> bool:
    """Return whether a function has no side effects and depends on its arguments only."""
    place, name = getattr(func, "__module__", None), getattr(func, "__qualname__", None)
    if place == "builtins":
        return name in PURE_BUILTINS and getattr(builtins, name) is func
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and (
        isinstance(func, numpy.ufunc)
        or (isinstance(func, type) and issubclass(func, numpy.generic))
    ):
        return True
    return place in PURE_MODULES or (str(place).removesuffix("._local"), name) in PURE


def _attribute(owner: Any, name: str) -> Any:
    """Return an attribute, if it can be read without running code."""
    match owner:
        case ModuleType():
            return vars(owner).get(name, _MISSING)
        case EnumMeta():
            return owner._member_map_.get(name, _MISSING)
        case type():
            found = inspect.getattr_static(owner, name, _MISSING)
            return _MISSING if hasattr(type(found), "__get__") else found
        case _:
            return _attribute_of_instance(owner, name)


def _attribute_of_instance(owner: Any, name: str) -> Any:
    kind: Any = type(owner)
    if kind.__getattribute__ is not object.__getattribute__:
        return _MISSING
    if hasattr(type(inspect.getattr_static(kind, name, None)), "__set__"):
        return _MISSING  # for example a property
    return getattr(owner, "__dict__", {}).get(name, _MISSING)
