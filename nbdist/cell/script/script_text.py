"""Assembles the text of a script: header, imports, preamble, definitions, data, the cell."""

from __future__ import annotations

import ast
import re
import sys
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import TYPE_CHECKING

from nbdist.cell.script.layout import INDENT, awaits, in_function, indented
from nbdist.cell.script.preamble import Preamble, header, preamble
from nbdist.errors import UsageError
from nbdist.rank.running.lines import FILLER
from nbdist.rank.values import rank_marks

if TYPE_CHECKING:
    from nbdist.cell.script.order import Parts
    from nbdist.cell.script.translate import Translated
    from nbdist.cell.script.value_files import Packer

GUARD = 'if __name__ == "__main__":'
COROUTINE = "_cell"
OWN_NAMES = re.compile(r"\b_(?:name|alone|gpus|atexit|time)\b")
"""Variables of the code around a cell."""
DISPLAY = """
try:
    from IPython.display import display
except ImportError:
    display = print
"""
FIND_MAIN = """
if __name__ == "__mp_main__":  # a spawned worker: unpickling finds its classes here, too
    sys.modules["__main__"] = sys.modules[__name__]
"""
PLACE = """
def {place}(storage, where):
    # Data on a GPU of the notebook go to the rank's own GPU.
    return storage.to(device=device) if where != "cpu" and device.type == "cuda" else storage


"""
PLACE_OWN = """
def {place}(storage, where):
    # Data on a GPU of the notebook go to a GPU here.
    return storage.cuda() if where != "cpu" and torch.cuda.is_available() else storage


"""


def data_folder(name: str) -> str:
    """Return the name of the folder for a script's data."""
    return f"{PurePath(name).stem}_data"


@dataclass
class Assembly:
    """A script under construction."""

    name: str
    backend: str
    np: int
    futures: set[str]
    cell: Translated
    parts: Parts
    packer: Packer | None
    arguments: list[str] = field(default_factory=list)
    """The script's command-line arguments."""
    saved: bool = False
    """Whether the user keeps the script, to run it anywhere."""
    data: dict[str, bytes] = field(default_factory=dict)
    """The script's data files, filled in by `text`."""

    def text(self, number: int) -> tuple[str, int]:
        """Return the script, and the line on which the cell begins.

        Raises
        ------
        UsageError
            If names conflict, or the cell is not valid in a script.
        """
        body = self._definitions()
        imports = self._imports(around := self._apart(self._preamble()))
        head = header(
            self.name, self.backend, self.np, self.arguments,
            data=data_folder(self.name) if self.data else "",
            by_value=self.parts.by_value,
            modules={_module(line) for line in imports.splitlines() if line} | self._imported(),
        )  # fmt: skip
        text = head + imports
        if self._shows():
            text += DISPLAY
        text += around.anywhere and "\n" + around.anywhere.lstrip("\n")
        text += (FIND_MAIN if self.data else "") + body
        text, line = self._with_cell(text.rstrip("\n") + "\n\n\n", around, number)
        try:
            compile(text, self.name, "exec", dont_inherit=True)
        except SyntaxError as err:
            within = f": {err.text.strip()}" if err.text else ""
            raise UsageError(f"this cell is not valid in a script: {err.msg}{within}") from None
        return text, line

    def _with_cell(self, text: str, around: Preamble, number: int) -> tuple[str, int]:
        joining = _step(around.joining + self._own_parts())
        leaving = _step(around.leaving)
        top = f"{INDENT}{FILLER.strip()}, In [{number}] of the notebook:\n"
        if awaits(self.cell.text):
            name = self._free(COROUTINE)
            head, body = in_function(self.cell.text, name)
            text += f"{head}\n{top}"
            line = text.count("\n") + 1
            text += f"{body}\n\n\n{GUARD}\n{joining}{INDENT}asyncio.run({name}())\n"
        else:
            text += f"{GUARD}\n{joining or INDENT + 'pass' + chr(10)}\n{top}"
            line = text.count("\n") + 1
            text += f"{indented(self.cell.text)}\n"
        return text + (leaving and f"\n{leaving}"), line

    def _own_parts(self) -> str:
        """Return code that lets each rank take its own part of the data, not the notebook's."""
        if self.backend == "own":
            return ""
        found = rank_marks.paths_by_size(self.parts.every, self.parts.dealing)
        return "".join(
            f"if world_size == {size}:  # each rank takes its own part of the data\n"
            + "".join(f"{INDENT}{path} = rank\n" for path in paths)
            for size, paths in found.items()
        )

    def _trees(self) -> list[ast.Module]:
        sources = [part.text for part in self.parts.ordered if part.kind == "source"]
        return [ast.parse(text) for text in (self.cell.text, *sources)]

    def _imported(self) -> set[str]:
        """Return the top-level modules that the cell and its definitions import."""
        found = set()
        for node in (node for tree in self._trees() for node in ast.walk(tree)):
            match node:
                case ast.Import(names=names):
                    found |= {alias.name.partition(".")[0] for alias in names}
                case ast.ImportFrom(module=str(module), level=0):
                    found.add(module.partition(".")[0])
        return found

    def _shows(self) -> bool:
        """Return whether the code uses the notebook's built-in `display`."""
        names = {n.id for tree in self._trees() for n in ast.walk(tree) if isinstance(n, ast.Name)}
        return "display" in names and "display" not in self.parts.every

    def _preamble(self) -> Preamble:
        calls = [
            n.func for tree in self._trees() for n in ast.walk(tree) if isinstance(n, ast.Call)
        ]
        names = {getattr(func, "attr", getattr(func, "id", "")) for func in calls}
        modules = {_module(line) for line in self.parts.imports}
        return preamble(
            self.backend, modules, forms_group="init_process_group" in names, lingers=self.saved
        )

    def _imports(self, around: Preamble) -> str:
        ours = {*around.imports, *(f"import {name}" for name in self.cell.imports)}
        if self.data:
            ours |= {"import os", "import sys"}
            ours |= {"import io"} if self._opener == "io.open" else set()
            ours |= {"import torch" if f.endswith(".pt") else "import pickle" for f in self.data}
        if awaits(self.cell.text):
            ours.add("import asyncio")
        for line in ours:
            bound = line.split()[-1].partition(".")[0]
            module = line.split()[1] if " as " in line else bound
            if bound in self.parts.every and self.parts.every[bound] is not sys.modules.get(module):
                raise UsageError(
                    f"the script needs `{line}`, but in the notebook `{bound}` is something "
                    "else; rename it there"
                )
        lines = sorted(ours | set(self.parts.imports), key=_import_order)
        blocks = [
            [line for line in lines if _module(line) in sys.stdlib_module_names],
            [line for line in lines if _module(line) not in sys.stdlib_module_names],
        ]
        if self.futures:
            blocks.insert(0, [f"from __future__ import {', '.join(sorted(self.futures))}"])
        return "".join("\n" + "\n".join(block) + "\n" for block in blocks if block)

    def _definitions(self) -> str:
        """Return the code for values, functions and classes; fill in `data`."""
        text, before = "", ""
        for part in self.parts.ordered:
            text += {"written": "\n" if before != "written" else ""}.get(part.kind, "\n\n")
            names = part.together or [part.name]
            text += self._load(names, part.name) if part.kind == "value" else part.text + "\n"
            before = part.kind
        if self.parts.late:
            text += "\n\n" + self._load(self.parts.late, "values")
        if self.parts.again:
            text += "\n\n# The notebook's values, which the code above may have changed.\n"
            text += "".join(f"{statement}\n" for statement in self.parts.again)
        return text

    def _load(self, names: list[str], stem: str) -> str:
        """Put values into a data file; return the code that loads them."""
        assert self.packer is not None
        values = {name: self.parts.every[name] for name in names}
        ending, content = self.packer.dump(values)
        # Values that are pickled later refer to these objects by name.
        self.packer.loaded.update({id(value): name for name, value in values.items()})
        file, text = f"{stem}.{ending}", ""
        self.data[file] = content
        data = self._free("_data")
        if len(self.data) == 1:
            folder = data_folder(self.name)
            text += (
                f'{data} = os.path.join(os.path.dirname(os.path.abspath(__file__)), "{folder}")\n'
            )
        path, loaded = f'os.path.join({data}, "{file}")', self._free("_values")
        if ending == "pt":
            place = self._free("_place")
            where = f", map_location={place}" if self.packer.gpu else ""
            loads = PLACE_OWN if self.backend == "own" else PLACE
            text = (loads.lstrip("\n").format(place=place) if where else "") + text
            text += f"{loaded} = torch.load({path}, weights_only=False{where})\n"
        else:
            opened, handle = self._opener, self._free("_file")
            text += f'with {opened}({path}, "rb") as {handle}:\n'
            text += f"{INDENT}{loaded} = pickle.load({handle})\n"
        text += "".join(f'{name} = {loaded}["{name}"]\n' for name in names)
        return text + f"del {loaded}\n"

    @property
    def _opener(self) -> str:
        return "io.open" if "open" in self.parts.every else "open"

    def _apart(self, around: Preamble) -> Preamble:
        """Return the code around a cell, with its variables renamed where the notebook has them."""

        def free(text: str) -> str:
            return OWN_NAMES.sub(lambda found: self._free(found[0]), text)

        return replace(
            around, anywhere=free(around.anywhere), joining=free(around.joining),
            leaving=free(around.leaving),
        )  # fmt: skip

    def _free(self, name: str) -> str:
        """Return this name with underscores added until it is not a name of the notebook."""
        while name in self.parts.every:
            name = f"_{name}"
        return name


def _module(line: str) -> str:
    """Return the top-level module of an import line."""
    return line.split()[1].partition(".")[0]


def _import_order(line: str) -> tuple[bool, str]:
    return line.startswith("from"), line


def _step(text: str) -> str:
    """Indent lines; none of them may be inside a multi-line string."""
    return "".join(INDENT + line for line in text.splitlines(keepends=True))
