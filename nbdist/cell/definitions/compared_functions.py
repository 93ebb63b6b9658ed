"""Checks that a function definition, run again, would create the notebook's present function.

Running a `def` or `class` statement evaluates defaults, annotations, decorators, bases, and the
body of the class. An expression stays in the source if its value now equals its value at the
definition, which the function or class still holds. Otherwise this old value replaces the
expression, if the value can be written as source.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from nbdist.cell.definitions.decorated import Function, doc_of, functions_in, inside, unwrapped
from nbdist.cell.definitions.defined import Notebook
from nbdist.cell.definitions.definition_text import Remade
from nbdist.cell.definitions.equal_values import mutable, same
from nbdist.cell.definitions.expressions import Again, Unsure
from nbdist.cell.definitions.literals import written
from nbdist.rank.values.kinds import attribute

MISSING: Any = object()
FUNCTIONS = FunctionType, BuiltinFunctionType, MethodType, staticmethod, classmethod, property


class Comparison:
    """Compares one definition with the value that the notebook has."""

    def __init__(
        self, made: Remade, notebook: Notebook, again: Again, *, annotations: bool
    ) -> None:
        self._made, self.notebook, self._again = made, notebook, again
        self._annotations = annotations and sys.version_info < (3, 14)
        """Since Python 3.14 annotations are evaluated only when they are read."""
        self.evaluates_annotations = self._annotations
        self.value, self.run, self.find = again.value, again.run, again.find

    # -- functions -----------------------------------------------------------------------------

    def decorated(
        self, node: Function, code: CodeType, value: Any, path: str, local: Mapping[str, Any]
    ) -> None:
        """Compare a function inside the wrappers that its decorators have made."""
        todo = list(node.decorator_list)
        while todo and not _is_it(value, code):
            decorator = todo.pop(0)
            if not self.is_imported(decorator, local):
                value = unwrapped(self, decorator, value, local)
                continue
            self.fixed(decorator, local)
            parts = [each for each in inside(value) if _made_of(each, code)]
            if all(self.is_imported(each, local) for each in todo):
                found = [each for each in functions_in(value) if _is_it(each, code)]
                value = found[0] if found and not hasattr(value, "registry") else None
                break
            value = parts[0] if parts else None
        for decorator in todo:
            if self.is_imported(decorator, local):
                self.fixed(decorator, local)
            elif getattr(_root_of(decorator), "id", "") in local:
                raise Unsure  # it may change the class: `f.register` of a `singledispatchmethod`
            else:
                self.drop(decorator)  # the decorator has returned the function itself
        bare = all(each in self._made.dropped for each in node.decorator_list)
        reached = path if bare and "." not in path else ""
        self.function(node, code, value, path, local, path=reached)

    def function(
        self,
        node: Function | ast.Lambda,
        code: CodeType,
        value: Any,
        qualname: str,
        local: Mapping[str, Any],
        *,
        path: str = "",
    ) -> None:
        """Compare a function without its decorators.

        Parameters
        ----------
        node
            The definition.
        code
            The code compiled from this definition.
        value
            The notebook's value.
        qualname
            The function's qualified name.
        local
            The names that the body of the enclosing class has bound.
        path
            The expression for the function after the definition, '' if there is none.
        """
        if not isinstance(value, FunctionType) or not _is_it(value, code):
            raise Unsure
        if value.__module__ != "__main__" or set(code.co_freevars) - {"__class__"}:
            raise Unsure
        self._defaults(node.args, value, local)
        if self._annotations and not isinstance(node, ast.Lambda):
            self._signature(node, value, local)
        told = {
            "__name__": qualname.rpartition(".")[2],
            "__qualname__": qualname,
            "__doc__": doc_of(node),
        }
        for name, then in told.items():
            self.attribute(path, name, then, getattr(value, name))
        for name, now in vars(value).items():
            if not (name == "__isabstractmethod__" or (not path and name.startswith("_"))):
                self.attribute(path, name, MISSING, now)

    def attribute(self, path: str, name: str, then: Any, now: Any) -> None:
        """Give an attribute the notebook's value, by a statement after the definition if needed."""
        if then is not MISSING and same(then, now):
            return
        text = written(now)
        if not path or text is None or not name.isidentifier():
            raise Unsure
        self._made.after.append(f"{path}.{name} = {text}")
        self._made.held += mutable(now)

    def _defaults(self, args: ast.arguments, value: FunctionType, local: Mapping[str, Any]) -> None:
        now, by_name = value.__defaults__ or (), value.__kwdefaults__ or {}
        then = {
            arg.arg: node
            for arg, node in zip(args.kwonlyargs, args.kw_defaults, strict=True)
            if node is not None
        }
        if len(now) != len(args.defaults) or set(then) != set(by_name):
            raise Unsure
        for node, each in zip(args.defaults, now, strict=True):
            self.expression(node, each, local)
        for name, node in then.items():
            self.expression(node, by_name[name], local)

    def _signature(self, node: Function, value: FunctionType, local: Mapping[str, Any]) -> None:
        args = node.args
        every = [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]
        then = {arg.arg: arg.annotation for arg in every if arg is not None and arg.annotation}
        if node.returns is not None:
            then["return"] = node.returns
        self.annotations(then, value.__annotations__, local)

    def annotations(
        self, then: Mapping[str, ast.expr], now: Mapping[str, Any], local: Mapping[str, Any]
    ) -> None:
        """Compare annotations; the name of a class that was defined again means the new class."""
        if set(then) != set(now):
            raise Unsure
        for name, node in then.items():
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                continue  # a string: evaluated only by its readers
            try:
                found = self._again.find(node, local)
            except Unsure:
                found = None
            if not (isinstance(found, type) and _same_name(found, now[name])):
                self.expression(node, now[name], local)

    def expression(
        self, node: ast.expr, now: Any, local: Mapping[str, Any], *, may_edit: bool = True
    ) -> None:
        """Make an expression have the value that it had at the definition."""
        try:
            then = self._again.value(node, local)
        except Unsure:
            then = MISSING
        if self.is_same(then, now):
            return
        if not may_edit or now is MISSING:
            raise Unsure
        text = written(now)
        if text is None:
            text = self._carry(now)
        else:
            self._made.held += mutable(now)
        self._made.edits.append((node, text))

    def _carry(self, value: Any) -> str:
        """Return the name under which the script gets an object."""
        if isinstance(value, (type, *FUNCTIONS)) or hasattr(type(value), "__set_name__"):
            raise Unsure
        defines = getattr(self._made.definition.node, "name", "lambda")
        # One underscore only: two would be mangled in a class.
        name = f"_{defines.strip('_')}_{len(self._made.carried) + 1}"
        self._made.carried[name] = value
        return name

    def is_same(self, then: Any, now: Any) -> bool:
        """Return whether a value equals the notebook's value and may replace it."""
        if then is MISSING or not same(then, now):
            return False
        ours = {id(each) for each in mutable(then)}
        self._made.held += [each for each in mutable(now) if id(each) not in ours]
        return True

    def drop(self, decorator: ast.expr) -> None:
        """Leave a decorator out of the script."""
        self._made.dropped.append(decorator)

    def imported(self, node: ast.Import | ast.ImportFrom, alias: ast.alias) -> Any:
        """Return the object that an import statement binds."""
        if isinstance(node, ast.Import):
            name = alias.name if alias.asname else alias.name.partition(".")[0]
            return sys.modules.get(name, MISSING)
        return getattr(sys.modules.get(node.module or ""), alias.name, MISSING)

    # -- decorators ----------------------------------------------------------------------------

    def is_imported(self, node: ast.expr, local: Mapping[str, Any]) -> bool:
        """Return whether a decorator comes from a module."""
        root = self._again.find(_root_of(node), local)
        if isinstance(root, (ModuleType, property)):
            return True
        return callable(root) and hasattr(root, "__qualname__") and (
            getattr(root, "__module__", None) not in ("__main__", None)
            or (isinstance(root, type) and root.__module__ != "__main__")
        )  # fmt: skip

    def fixed(self, decorator: ast.expr, local: Mapping[str, Any]) -> None:
        """Raise unless the arguments of a decorator are certainly the same as at the definition."""
        if not isinstance(decorator, ast.Call):
            return
        for node in (*decorator.args, *(each.value for each in decorator.keywords)):
            if not self.is_fixed(node, local):
                raise Unsure

    def is_fixed(self, node: ast.expr, local: Mapping[str, Any]) -> bool:
        """Return whether an expression consists of literals and names from modules."""
        for each in ast.walk(node):
            if isinstance(each, (ast.Call, ast.Lambda)):
                return False
            if isinstance(each, ast.Name):
                found = self._again.find(each, local)
                if not isinstance(found, ModuleType) and not _is_from_module(found):
                    return False
        return True


def _made_of(value: Any, code: CodeType) -> bool:
    return any(_is_it(each, code) for each in functions_in(value))


def _is_it(value: Any, code: CodeType) -> bool:
    return isinstance(value, FunctionType) and value.__code__ == code


def _is_from_module(value: Any) -> bool:
    if isinstance(value, (ModuleType, type)):
        return str(attribute(value, "__module__")) != "__main__"
    place = attribute(value, "__module__", "__main__")
    return callable(value) and str(place) not in ("__main__", "None")


def _same_name(found: type, now: Any) -> bool:
    return (
        isinstance(now, type)
        and found.__module__ == now.__module__ == "__main__"
        and found.__qualname__ == now.__qualname__
    )


def _root_of(decorator: ast.expr) -> ast.expr:
    """Return the name, or another expression, at the left of a decorator's dots and calls."""
    while isinstance(decorator, (ast.Attribute, ast.Call)):
        decorator = decorator.func if isinstance(decorator, ast.Call) else decorator.value
    return decorator
