"""Translates IPython syntax (magics, ``!`` commands) to plain Python, line for line.

The input is the Python code that IPython makes from its syntax: ``!ls`` is then
``get_ipython().system('ls')``. So magics are found in the syntax tree, never in strings or
comments.
"""

from __future__ import annotations

import ast
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from IPython.core.displayhook import DisplayHook
from IPython.utils.text import DollarFormatter

from nbdist.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Container

DROPPED = frozenset({
    "autoreload", "config", "load_ext", "matplotlib", "pdoc", "pfile", "pinfo", "pinfo2", "psearch",
    "psource", "reload_ext", "who", "whos",
})  # fmt: skip
"""Magics that have no effect outside a notebook, and are left out."""
INSTALLERS = frozenset({"conda", "mamba", "micromamba", "pip", "uv"})


@dataclass
class Translated:
    """The plain Python code, with as many lines as the original."""

    text: str
    imports: set[str] = field(default_factory=set)
    """Modules that the translation uses in addition."""
    futures: set[str] = field(default_factory=set)
    """The names imported from `__future__`, which must move to the top of the file."""


@dataclass
class Around:
    """The surroundings of the translated code."""

    known: Container[str]
    """Names that have a value when the code runs."""
    transform: Callable[[str], str]
    """IPython's transformer, from its syntax to calls of `get_ipython()`."""
    where: Callable[[int], str]
    """Describes a line of the code, for messages."""


def shows_value(source: str, cell: str) -> bool:
    """Whether a notebook displays the value of a cell, which IPython transforms to `source`."""
    body = ast.parse(source).body
    last = body[-1] if body else None
    quiet = DisplayHook.semicolon_at_end_of_expression(cell)
    return isinstance(last, ast.Expr) and _call(last.value) is None and not quiet


def translate(source: str, around: Around) -> Translated:
    """Return the code as plain Python, which runs without IPython.

    Raises
    ------
    UsageError
        If something in it has no counterpart; the message names the line.
    """
    done = Translated(source)
    tree = ast.parse(source)
    edits: list[tuple[ast.expr | ast.stmt, str]] = []
    ours: set[int] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Expr():
                call = _call(node.value)
                if call is not None:
                    ours.add(id(call))
                    edits.append((node, _replaced(call, around, done, statement=True)))
            case ast.Call():
                call = _call(node)
                if call is not None and id(call) not in ours:
                    edits.append((call, _replaced(call, around, done, statement=False)))
            case ast.ImportFrom(module="__future__"):
                done.futures.update(alias.name for alias in node.names)
                edits.append((node, "pass"))
    done.text = _edited(source, edits, around)
    for node in ast.walk(ast.parse(done.text)):
        if isinstance(node, ast.Name) and node.id == "get_ipython":
            raise UsageError(
                f"{around.where(node.lineno)} uses get_ipython(), which a plain script does not "
                "have; write what it does in Python"
            )
    return done


def bound_names(tree: ast.AST) -> set[str]:
    """Return all names that code binds, the variables of its functions included."""
    found: set[str | None] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(ctx=ast.Store()):
                found.add(node.id)
            case ast.arg():
                found.add(node.arg)
            case ast.alias():
                found.add(node.asname or node.name.partition(".")[0])
            case ast.Global() | ast.Nonlocal():
                found.update(node.names)
            case _:  # functions, classes, caught exceptions, patterns
                found.add(getattr(node, "name", None))
    return {name for name in found if name}


def _call(node: ast.AST) -> ast.Call | None:
    """Return the node if it calls a method of ``get_ipython()``."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Name(id="get_ipython")))):
            return node
        case _:
            return None


def _edited(
    source: str, edits: list[tuple[ast.expr | ast.stmt, str]], around: Around
) -> str:  # fmt: skip
    lines = source.split("\n")
    for node, text in sorted(edits, key=lambda edit: -edit[0].col_offset):
        if node.lineno != node.end_lineno:
            where = around.where(node.lineno)
            raise UsageError(f"{where} continues over several lines; write it on one line")
        raw = lines[node.lineno - 1].encode()
        before, after = raw[: node.col_offset].decode(), raw[node.end_col_offset :].decode()
        code, hash_sign, note = text.partition("  # ")
        lines[node.lineno - 1] = (
            before + code + after + (hash_sign + note if not after.strip() else "")
        )
    return "\n".join(lines)


def _replaced(node: ast.Call, around: Around, done: Translated, *, statement: bool) -> str:
    """Return the replacement of a `get_ipython()` call, perhaps with a comment (``  # ``)."""
    assert isinstance(node.func, ast.Attribute)
    method, where = node.func.attr, around.where(node.lineno)
    texts = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
    if len(texts) != len(node.args) or not texts or not all(isinstance(t, str) for t in texts):
        raise UsageError(
            f"{where} uses get_ipython(), which a plain script does not have; "
            "write what it does in Python"
        )
    words = [str(text) for text in texts]
    if method in ("system", "getoutput"):
        done.imports.add("subprocess")
        return _shell(expanded(words[0], around.known), keep=method == "getoutput")
    if method == "run_line_magic":
        return _Magic(words[0], words[-1].strip(), where, around, done, statement).replaced()
    name = words[0] if method == "run_cell_magic" else method
    raise UsageError(
        f"{where}: `%%{name}` has no counterpart in a plain script; take it out, or write what it "
        "does in Python"
    )


def _shell(command: str, *, keep: bool) -> str:
    if not keep:
        return f"subprocess.run({command}, shell=True, check=False)"
    # IPython's getoutput returns both streams, too.
    return (
        f"subprocess.run({command}, shell=True, check=False, text=True, "
        "stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout.splitlines()"
    )


@dataclass
class _Magic:
    """A line magic."""

    name: str
    text: str
    where: str
    around: Around
    done: Translated
    statement: bool

    def replaced(self) -> str:
        """Return the replacement of this magic."""
        own = getattr(self, f"_{self.name}", None)
        if own is not None:
            return str(own())
        line = f"%{self.name} {self.text}".strip()
        if self.statement and self.name in DROPPED:
            return f"pass  # {line}: nothing to do in a script"
        if self.name in INSTALLERS:
            hint = "install what the script needs before it is run"
        elif self.name == "timeit":
            hint = "use `%time`, or the module timeit"
        else:
            hint = "take it out, or write what it does in Python"
        raise UsageError(f"{self.where}: `{line}` has no counterpart in a plain script; {hint}")

    def _time(self) -> str:
        code = self.around.transform(self.text).strip()
        if "\n" in code:
            raise UsageError(
                f"{self.where}: `%time` with several lines; write them without `%time`"
            )
        inner = translate(code, self.around)
        self.done.imports |= inner.imports
        return inner.text if not self.statement else f"{inner.text}  # %time"

    def _cd(self) -> str:
        words = [word for word in shlex.split(self.text) if word != "-q"]
        if len(words) > 1 or (words and words[0].startswith("-")):
            raise UsageError(f"{self.where}: write `%cd {self.text}` with os.chdir")
        self.done.imports.add("os")
        where = expanded(words[0] if words else "~", self.around.known)
        return f"os.chdir(os.path.expanduser({where}))" if "~" in where else f"os.chdir({where})"

    def _env(self) -> str:
        self.done.imports.add("os")
        name, mark, value = self.text.partition("=" if "=" in self.text else " ")
        if not name:
            return "dict(os.environ)"
        if not mark:
            return f"os.environ[{name.strip()!r}]"
        return f"os.environ[{name.strip()!r}] = {expanded(value.strip(), self.around.known)}"

    _set_env = _env

    def _pwd(self) -> str:
        self.done.imports.add("os")
        return "os.getcwd()"

    def _matplotlib(self) -> str:
        if not self.statement:
            raise UsageError(f"{self.where}: write `%matplotlib` on a line of its own")
        return f"import matplotlib; matplotlib.use('Agg')  # %matplotlib {self.text}"


def expanded(text: str, known: Container[str]) -> str:
    """Return a Python expression for a text with IPython's ``{expression}`` and ``$name``.

    As in IPython, the text stays as it is if one of them has no value, and ``$$`` means ``$``.
    """
    parts: list[tuple[str, str, str]] = []
    try:
        # As in FullEvalFormatter, a colon belongs to the expression.
        for literal, name, spec, conversion in DollarFormatter().parse(text):
            code = f"{name}:{spec}" if spec else name or ""
            if name is not None and not _has_value(code, known):
                return repr(text)
            parts.append((literal, code, f"!{conversion}" if conversion else ""))
    except ValueError:  # unbalanced braces
        return repr(text)
    if not any(code for _, code, _ in parts):
        return repr("".join(literal for literal, _, _ in parts))
    if any(set(code) & set("'\"\\{}!:#") for _, code, _ in parts):
        # An f-string before Python 3.12 cannot contain these characters.
        made = "".join(_braced(lit) + (f"{{{how}}}" if code else "") for lit, code, how in parts)
        return f"{made!r}.format({', '.join(code for _, code, _ in parts if code)})"
    made = "".join(_braced(lit) + (f"{{{code}{how}}}" if code else "") for lit, code, how in parts)
    return f"f{made!r}"


def _braced(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _has_value(code: str, known: Container[str]) -> bool:
    try:
        tree = ast.parse(code.strip(), mode="eval")
    except SyntaxError:
        return False
    own = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return all(n.id in known or n.id in own for n in ast.walk(tree) if isinstance(n, ast.Name))
