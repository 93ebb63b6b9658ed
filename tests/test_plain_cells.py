"""Cells that are Python already are left as IPython would leave them, without its help."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

import nbdist
from nbdist.rank.running import plain_cells
from nbdist.rank.running.plain_cells import transformed
from tests.helpers.notebook import on_ranks

if TYPE_CHECKING:
    from tests.helpers.kernel import Kernel

pytestmark = pytest.mark.repeats

FOLDERS = (Path(nbdist.__file__).parent, Path(sysconfig.get_path("stdlib")))
CELLS = {
    "empty": "",
    "without a line's end": "x = 1",
    "empty lines first": "\n\nx = 1\n",
    "indented": "    x = 1\n    y = 2\n",
    "a magic": "x = %time 1\n",
    "a line magic": "%who\nx = 1\n",
    "a cell magic": "%%time\nx = 1\n",
    "a command": "!ls\nfiles = !ls\n",
    "help": "x?\n",
    "a prompt of IPython's": "In [3]: x = 1\n",
    "a prompt that is Python by chance": "In [1]: x\n",
    "a prompt of vi's": "[ins] In [1]: x = 1\n",
    "a prompt below": "# why\n[nav] In [1]: x = 1\n",
    "one line": "pwd\n",
    "two lines": "x = 1\npwd\n",
    "a line's end of another kind": "'''a\u2028>>> b'''\nx\ry\n",
    "prompts of Python's": ">>> x = 1\n>>> y = 2\n",
    "per cent signs": "x = (7\n% 3)\ny = '''\n%time x\n!ls\n'''\n",
    "await": "await something()\nasync with x: pass\n",
    "no Python": "x = = 1\n",
    "a null byte": "x = '\0'\n",
    "no valid text": "x = '\udce4'\n",
    "a prompt in a text": "'''\n   ...: hi\n'''\n",
    "questions": "# really?\nx = 1  # why?\n",
    "marks within lines": "print('%d!' % 3, x != 1, x / 2); y = 1\n",
    "deep": "(" * 300 + ")" * 300 + "\n",
}


@pytest.fixture(scope="module")
def shell() -> InteractiveShell:
    main = sys.modules["__main__"]
    made = InteractiveShell()
    sys.modules["__main__"] = main  # a shell makes itself that
    return made


def outcome(transform: Any, *arguments: Any) -> Any:
    """Return what is made of a cell, or why nothing can be."""
    try:
        return transform(*arguments)
    except Exception as err:
        return type(err)


@pytest.mark.filterwarnings("ignore::SyntaxWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("cell", CELLS.values(), ids=CELLS)
def test_a_cell_becomes_what_ipython_makes_of_it(shell: InteractiveShell, cell: str) -> None:
    assert outcome(transformed, shell, cell) == outcome(shell.transform_cell, cell)


@pytest.mark.filterwarnings("ignore::SyntaxWarning", "ignore::DeprecationWarning")
def test_whole_modules_stay_as_they_are(shell: InteractiveShell) -> None:
    files = [path for folder in FOLDERS for path in sorted(folder.glob("*.py"))[::4]]
    assert len(files) > 40
    for path in files:
        text = path.read_text(encoding="utf-8")
        assert transformed(shell, text) == shell.transform_cell(text), path


def test_transformers_of_the_users_own_see_every_cell(shell: InteractiveShell) -> None:
    def shout(lines: list[str]) -> list[str]:
        return [line.replace("quiet", "LOUD") for line in lines]

    for kind in (shell.input_transformers_cleanup, shell.input_transformers_post):
        kind.append(shout)
        assert transformed(shell, "x = 'quiet'\n") == "x = 'LOUD'\n"
        kind.remove(shout)
        assert transformed(shell, "x = 'quiet'\n") == "x = 'quiet'\n"


def test_ours_in_the_notebook_is_known(notebook: Kernel) -> None:
    known = notebook.run(
        "from nbdist.rank.running import plain_cells\nprint(plain_cells.harmless)"
    ).stdout
    assert "strip_local" in known
    assert not any(
        "strip_local" in str(each) for each in plain_cells.harmless
    )  # it is not ours here
    for body in ("print('once')", "print('once')\n%who_ls Path"):  # Python alone, and not alone
        assert on_ranks(notebook, body).stdout.startswith("once\n")


def test_warnings_of_libraries_are_told_once(notebook: Kernel) -> None:
    first = on_ranks(
        notebook,
        """
        import types
        library = types.ModuleType("library")
        exec("import warnings\\ndef old(): warnings.warn('it is old')", vars(library))
        library.old()
        """,
    )
    assert "UserWarning: it is old" in first.text
    assert "UserWarning" not in on_ranks(notebook, "library.old()").text
