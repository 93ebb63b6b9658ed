"""Looks through the notebook's own decorators, and checks that they would wrap the same again."""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import sys
from collections.abc import Iterator, Mapping
from types import FunctionType
from typing import Any, Protocol

from nbdist.cell.definitions.defined import Notebook, codes_in
from nbdist.cell.definitions.equal_values import same
from nbdist.cell.definitions.expressions import Unsure
from nbdist.rank.values.kinds import attribute

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Whole(Protocol):
    """The comparison to which a decorator belongs; see `compared_functions.Comparison`."""

    notebook: Notebook

    def find(self, node: ast.expr, local: Mapping[str, Any]) -> Any:
        """Return the present value of a name or an attribute."""

    def expression(self, node: ast.expr, now: Any, local: Mapping[str, Any]) -> None:
        """Make an expression have the value that it had at the definition."""

    def is_fixed(self, node: ast.expr, local: Mapping[str, Any]) -> bool:
        """Return whether an expression certainly had the same value at the definition."""


def unwrapped(whole: Whole, decorator: ast.expr, value: Any, local: Mapping[str, Any]) -> Any:
    """Return the function that a decorator of the notebook has wrapped.

    The decorator must only define and return a wrapper, and the wrapper must hold only the wrapped
    function and the decorator's arguments.
    """
    call = decorator if isinstance(decorator, ast.Call) else None
    root = call.func if call else decorator
    maker = whole.find(root, local)
    if not (isinstance(root, ast.Name) and isinstance(maker, FunctionType)):
        raise Unsure
    outer = _source_of(whole, root.id, maker)
    node = outer if call is None else _returned(outer)
    wrapper = _returned(node)
    if not _is_made_by(value, wrapper, maker) or (node is not outer and node.decorator_list):
        raise Unsure
    contents = list(_closed_over(value))
    if len(contents) != len(value.__code__.co_freevars) or len(node.args.args) != 1:
        raise Unsure
    held = dict(zip(value.__code__.co_freevars, contents, strict=True))
    inner = held.pop(node.args.args[0].arg, None)
    if not callable(inner) or (held and call is None):
        raise Unsure
    if call is not None:
        _compare_arguments(whole, call, maker, held, local)
    _compare_wrapping(whole, wrapper, value, inner)
    return inner


def _source_of(whole: Whole, name: str, function: FunctionType) -> Function:
    """Return the definition of a decorator, if no code changes the decorator's variables."""
    for each in whole.notebook.definitions(name):
        if each.code == function.__code__ and isinstance(each.node, ast.FunctionDef):
            outer = (ast.Nonlocal, ast.Global)
            binds = any(isinstance(node, outer) for node in ast.walk(each.node))
            if not (binds or each.node.decorator_list or function.__closure__):
                return each.node
    raise Unsure


def _is_made_by(value: Any, wrapper: Function, maker: FunctionType) -> bool:
    plain = not (wrapper.args.defaults or any(wrapper.args.kw_defaults))
    return (
        plain
        and isinstance(value, FunctionType)
        and value.__code__ in set(codes_in(maker.__code__))
        and value.__code__.co_name == wrapper.name
        and not (value.__defaults__ or value.__kwdefaults__)
    )


def _compare_arguments(
    whole: Whole,
    call: ast.Call,
    maker: FunctionType,
    held: dict[str, Any],
    local: Mapping[str, Any],
) -> None:
    """Compare a decorator's arguments with the values that its wrapper holds."""
    signature = inspect.signature(maker)
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    if any(each.kind in several for each in signature.parameters.values()):
        raise Unsure
    keywords = {each.arg: each.value for each in call.keywords if each.arg}
    starred = any(isinstance(each, ast.Starred) for each in call.args)
    if starred or len(keywords) < len(call.keywords):
        raise Unsure
    try:
        given = signature.bind(*call.args, **keywords).arguments
    except TypeError as err:
        raise Unsure from err
    for name, now in held.items():
        if name in given:
            whole.expression(given[name], now, local)
        elif name not in signature.parameters or not same(signature.parameters[name].default, now):
            raise Unsure
    if not all(whole.is_fixed(given[name], local) for name in given.keys() - held.keys()):
        raise Unsure


def _compare_wrapping(whole: Whole, wrapper: Function, value: Any, inner: Any) -> None:
    """Compare the wrapper's attributes with those that `functools.wraps`, if used, sets."""
    for each in wrapper.decorator_list:
        call = each if isinstance(each, ast.Call) and not each.keywords else None
        if call is None or whole.find(call.func, {}) is not functools.wraps:
            raise Unsure
    copied = bool(wrapper.decorator_list)
    then = {**getattr(inner, "__dict__", {}), "__wrapped__": inner} if copied else {}
    name = getattr(inner, "__name__", "") if copied else wrapper.name
    now = vars(value)
    if value.__name__ != name or now.keys() != then.keys():
        raise Unsure
    if any(now[key] is not then[key] for key in now):
        raise Unsure


def doc_of(node: Function | ast.Lambda | ast.ClassDef) -> str | None:
    """Return the docstring of a definition, as Python stores it."""
    if isinstance(node, ast.Lambda):
        return None
    text = ast.get_docstring(node, clean=False)
    # Python 3.13 removes the indentation.
    return inspect.cleandoc(text) if text is not None and sys.version_info >= (3, 13) else text


def _returned(node: Function) -> Function:
    """Return the inner function, if `node` only defines it and returns it."""
    body = node.body[1:] if doc_of(node) is not None else node.body
    if len(body) != 2:  # noqa: PLR2004 - the definition, and its return
        raise Unsure
    inner, last = body
    if not isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef)):
        raise Unsure
    if not isinstance(last, ast.Return) or getattr(last.value, "id", "") != inner.name:
        raise Unsure
    return inner


def inside(value: Any) -> list[Any]:
    """Return the functions inside a property, a class method or a static method."""
    if isinstance(value, (staticmethod, classmethod)):
        return [value.__func__]
    if isinstance(value, property):
        return [each for each in (value.fget, value.fset, value.fdel) if each is not None]
    return []


def functions_in(value: Any, depth: int = 4) -> Iterator[FunctionType]:
    """Yield the functions that decorators have wrapped into a value."""
    if depth < 0:
        return
    parts = [attribute(value, "__wrapped__"), attribute(value, "__func__")]
    parts += [attribute(value, name) for name in ("fget", "fset", "fdel", "func")]
    if isinstance(value, FunctionType):
        yield value
        parts += _closed_over(value)
    for part in parts:
        if callable(part) and part is not value:
            yield from functions_in(part, depth - 1)


def _closed_over(function: FunctionType) -> Iterator[object]:
    """Yield the values of a function's closure."""
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # an empty cell
            yield cell.cell_contents
