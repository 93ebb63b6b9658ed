"""Makes a Python script from a cell and the notebook's names that it needs.

The script has, in this order: a docstring with launch commands, imports, the rank's numbers and
device, the notebook's small values, its functions and classes as source, its other values (loaded
from files beside the script), and the cell, line for line. The cell is under ``if __name__ ==
"__main__":``, since a worker that multiprocessing spawns runs the script again for its functions
and classes.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nbdist.cell.definitions.defined import Notebook, cell_number
from nbdist.cell.names.used_names import used
from nbdist.cell.names.wanted_names import IPYTHONS, Parsed, wanted_by
from nbdist.cell.script import script_files
from nbdist.cell.script.definition_reads import flags_of
from nbdist.cell.script.order import Parts
from nbdist.cell.script.parts import Gathering
from nbdist.cell.script.script_text import Assembly, data_folder
from nbdist.cell.script.translate import Around, Translated, bound_names, shows_value, translate
from nbdist.errors import UsageError
from nbdist.rank.looking.rank_names import OURS
from nbdist.rank.running.lines import MAGIC, align
from nbdist.rank.values import rank_marks

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

USES_NBDIST = re.compile(r"^\s*(?:import|from) nbdist\b", re.MULTILINE)
ABOVE = 1
"""Lines inserted above the cell's code, because IPython removes leading empty lines."""


@dataclass(frozen=True)
class Script:
    """A script, not yet written to disk."""

    name: str
    """The script's file name, from which the name of its data folder is derived."""
    text: str
    data: dict[str, bytes] = field(repr=False)
    """Files by name, in a folder beside the script."""
    cell_line: int
    """The script's line on which the cell's text begins; the cell keeps its line count."""
    shows_last: bool = False
    """Whether the cell ends with an expression whose value a notebook displays."""
    saved: bool = False
    """Whether the user keeps the script; otherwise it belongs to a job and is private."""
    notes: list[str] = field(default_factory=list)
    """What becomes of values of the notebook, for the user."""

    @property
    def folder(self) -> str:
        """The name of the data folder."""
        return data_folder(self.name)

    @property
    def without_nbdist(self) -> bool:
        """Whether the script runs without nbdist: the cell itself may import nbdist."""
        return not USES_NBDIST.search(self.text)

    def write(self, path: Path) -> None:
        """Write the script to `path`, and its data beside it.

        Raises
        ------
        UsageError
            If a file cannot be written, or would overwrite a file that nbdist has not written. No
            partial file is left behind.
        """
        assert path.name == self.name, "the script knows its data by its own name"
        script_files.write(path, self.text, path.with_name(self.folder), self.data, keep=self.saved)


@dataclass(frozen=True)
class ScriptOptions:
    """How `make_script` writes a cell."""

    name: str
    """The script's file name."""
    saved: bool
    """Whether the user keeps the script."""
    backend: str
    """`ddp`, `horovod`, `xla`, `none`, or `own` for a program that makes its own workers."""
    np: int
    """The number of ranks in the launch commands."""
    forced: Sequence[str] = ()
    """Names of the notebook to include even if the cell does not use them."""
    automatic: bool = True
    """Whether to include the names that the cell uses."""
    lines: int = 1
    """How many lines of the notebook's cell come before its text."""
    arguments: Sequence[str] = ()
    """The script's arguments in the launch commands."""

    @property
    def given(self) -> frozenset[str]:
        """The names that the script's preamble defines."""
        if self.backend == "own":
            return frozenset()
        return OURS | {"hvd"} if self.backend == "horovod" else OURS


def make_script(shell: Any, parsed: Parsed, cell: str, options: ScriptOptions) -> Script:
    """Return a cell as a script, without writing or starting it. Kernel's main thread.

    Parameters
    ----------
    shell
        The notebook's IPython shell.
    parsed
        The cell as IPython transforms and compiles it.
    cell
        The cell's text, below the line of ``%%distributed``.
    options
        How the script is written.

    Raises
    ------
    UsageError
        If something cannot be put into a script.
    """
    done = _plain(shell, parsed, cell, options.lines)
    futures = done.futures | _futures_of(shell)
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | flags_of(futures)
    plain = Parsed(done.text, compile(done.text, "<cell>", "exec", flags, dont_inherit=True))
    wanted = wanted_by(shell, plain, forced=options.forced, automatic=options.automatic)
    parts = Parts()
    packer = None
    if wanted is not None:
        gathering = Gathering(wanted, Notebook(shell), shell.transform_cell, done.text, futures)
        parts, packer = gathering.gather(), gathering.packer
    if options.automatic:
        _check_known(plain, parts, done.imports | options.given)
    made = Assembly(
        options.name, options.backend, options.np, futures, done, parts, packer,
        list(options.arguments), options.saved,
    )  # fmt: skip
    text, line = made.text(cell_number(shell))
    shows = not options.saved and shows_value(parsed.source, cell)
    ranks = 1 if options.backend == "own" else options.np
    notes = rank_marks.notes(parts.every, parts.dealing, ranks)
    return Script(options.name, text, made.data, line, shows, options.saved, notes)


def _futures_of(shell: Any) -> set[str]:
    """Return the features of `__future__` that the notebook's cells have switched on."""
    return {
        each
        for each in __future__.all_feature_names
        if getattr(__future__, each).compiler_flag & shell.compile.flags
    }


def _plain(shell: Any, parsed: Parsed, cell: str, above: int) -> Translated:
    """Return the cell with IPython's syntax translated to plain Python."""
    magic = MAGIC.match(cell)
    if cell.strip() and not parsed.source.strip():
        name = magic[1] if magic else "this"
        raise UsageError(
            f"`%%{name}` has no counterpart in a plain script; write what it does in Python, or "
            "with `!` commands"
        )
    if magic and magic[1] not in ("time", "capture"):
        raise UsageError(f"`%%{magic[1]}` has no counterpart in a plain script; take it out")
    lines = _line_for_line(shell, cell).split("\n")
    if magic:
        end = ABOVE + magic[0].count("\n") - 1
        lines[ABOVE : end + 1] = [
            *[""] * (end - ABOVE),
            f"# {magic[0].strip()}: in a notebook only",
        ]
    source = "\n".join(lines[ABOVE:]).rstrip("\n")
    known = {*shell.user_ns, *vars(builtins), *OURS, *bound_names(ast.parse(source))}
    around = Around(known, shell.transform_cell, lambda line: f"line {line + above} of the cell")
    return translate(source, around)


def _line_for_line(shell: Any, cell: str) -> str:
    """Return the cell's Python code, with as many lines as the cell.

    IPython joins the lines of a magic or command that end with a backslash; empty lines are added.
    """
    aligned = align(cell, ABOVE).python
    source: str = shell.transform_cell(aligned)
    if source.rstrip("\n").count("\n") >= aligned.rstrip("\n").count("\n"):
        return source
    same = ast.dump(ast.parse(source))
    lines = aligned.split("\n")
    for number in range(len(lines) - 1):
        if lines[number].rstrip().endswith("\\") and set(lines[number]) & set("!%"):
            kept, end = list(lines), number
            while lines[number].rstrip().endswith("\\") and end + 1 < len(lines):
                end += 1
                lines[number] = f"{lines[number].rstrip()[:-1]} {lines[end].rstrip()}"
                lines[end] = ""
            if ast.dump(ast.parse(shell.transform_cell("\n".join(lines)))) != same:
                lines = kept
    joined: str = shell.transform_cell("\n".join(lines))
    return joined


def _check_known(plain: Parsed, parts: Parts, imports: set[str]) -> None:
    """Raise if the cell certainly reads a name that has no value in the script."""
    tree = ast.parse(plain.source)
    stars = (node.names for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    if any(alias.name == "*" for names in stars for alias in names):
        return
    # Names that a function in the cell may bind as globals.
    declared = {n for g in ast.walk(tree) if isinstance(g, ast.Global) for n in g.names}
    there = {*parts.every, *imports, *declared, *vars(builtins), "display", "exit", "quit"}
    for name in used(*plain).surely:
        if name in there or (name.startswith("__") and name.endswith("__")):
            continue
        if IPYTHONS.fullmatch(name):
            raise UsageError(f"`{name}` belongs to IPython, and a plain script does not have it")
        if name in OURS:
            raise UsageError(
                f"`{name}` is defined on ranks only: a program that starts its own workers "
                "(--launcher python) gets it from the function that starts them"
            )
        raise UsageError(
            f"`{name}` has no value in the notebook or in the cell, so the script would not have "
            f"it; if the ranks have it, `%dist pull {name}` brings it to the notebook"
        )
