"""Reads the body of a class statement: which names its statements bind."""

from __future__ import annotations

import ast


def defines(part: ast.stmt) -> bool:
    """Return whether a statement contains definitions or imports."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
    return any(isinstance(each, kinds) for each in ast.walk(part))


def pairs(part: ast.stmt) -> list[tuple[str, ast.expr]]:
    """Return the names of an assignment with their values, `a, b = 1, 2` included."""
    match part:
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            return [(name, value)]
        case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
            names = [each.id for each in targets if isinstance(each, ast.Name)]
            starred = any(isinstance(each, ast.Starred) for each in values)
            if starred or not len(set(names)) == len(targets) == len(values):
                return []
            return list(zip(names, values, strict=True))
        case _:
            return []


def bound(body: list[ast.stmt]) -> list[str]:
    """Return the names that statements bind, a name as often as it is bound."""
    found: list[str] = []
    for part in body:
        match part:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.append(name)
            case ast.ClassDef(name=name):
                found.append(name)
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                found += [a.asname or a.name.partition(".")[0] for a in names]
            case _:
                found += _stored(part)
    return found


def _stored(part: ast.stmt) -> list[str]:
    """Return the names that another statement binds, first those of its assignments."""
    declares = isinstance(part, ast.AnnAssign) and part.value is None
    names = [
        each.id
        for each in ast.walk(part)
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store) and not declares
    ]
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return names + [each.name for each in ast.walk(part) if isinstance(each, definitions)]


def mangled(name: str, cls: type) -> str:
    """Return the name of an attribute as Python stores it: private names carry the class's."""
    private = name.startswith("__") and not name.endswith("__")
    return f"_{cls.__name__.lstrip('_')}{name}" if private else name
