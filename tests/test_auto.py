"""`%dist auto on`: plain cells run on the ranks, marked ones and commands in the notebook."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.helpers.faults import shown
from tests.helpers.notebook import complete, plain
from tests.helpers.waiting import allowed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.helpers.kernel import Kernel

TERMINAL = """
from IPython.terminal.interactiveshell import TerminalInteractiveShell
shell = TerminalInteractiveShell.instance(simple_prompt=True)

def prompt():
    return "".join(text for _, text in shell.prompts.in_prompt_tokens())

shell.run_cell("%load_ext nbdist")
from nbdist.magics.showing import starting
starting.START_PATIENCE = 600  # on a busy machine the cell would say that it waits
print(prompt())
shell.run_cell("%dist auto on -np 1 --backend none", store_history=True)
print(prompt())
shell.run_cell("where = rank", store_history=True)
shell.run_cell("print('ranks' if 'where' in globals() else 'here')", store_history=True)
shell.run_cell("%%local\\nprint('ranks' if 'where' in globals() else 'here')", store_history=True)
shell.run_cell("exit", store_history=True)
print(shell.keep_running)
shell.run_cell("%dist auto off", store_history=True)
print(prompt())
shell.run_cell("%unload_ext nbdist", store_history=True)
"""


@pytest.fixture
def auto(notebook: Kernel) -> Iterator[Kernel]:
    """Return a kernel whose plain cells run on two ranks."""
    notebook.run("%dist auto on -np 2 --backend ddp")
    yield notebook
    notebook.run("%dist auto off")


def test_plain_cells_run_on_the_ranks(auto: Kernel) -> None:
    cell = auto.run("import os\nwhere = rank\nprint(os.environ['RANK'])\nwhere + 40")
    assert cell.stdout == "0\n"
    assert "On ranks 0-1:" in cell.text
    assert "40" in cell.text
    assert "'where' in globals()" not in auto.run("%%local\n'where' in globals()").text
    assert auto.run("%%local\nprint('where' in globals())").stdout == "False\n"
    assert auto.run("%%time\nprint('where' in globals())").stdout.startswith("True\n")
    assert auto.run("!echo $LOCAL_RANK").stdout.strip() == "0"


def test_marked_cells_are_like_any_other(auto: Kernel) -> None:
    cell = auto.run("%%local\nimport asyncio\nhere = await asyncio.sleep(0, 7)\nhere")
    assert cell.text.strip() == "7"
    failed = auto.run("%%local\n\nhere / 0", check=False)
    assert "line 3" in plain(shown(failed))
    auto.run("%dist auto off")
    assert auto.run("%%local\nprint(here)").stdout == "7\n"


def test_commands_stay_in_the_notebook(auto: Kernel) -> None:
    assert "2 ranks" in auto.run("# how is it?\n%dist status").stdout
    refused = auto.run("unbound = 1\n%dist status", check=False)
    assert "give it a cell of its own" in shown(refused)
    assert auto.run("print('unbound' in globals())").stdout == "False\n"
    assert auto.run("%%bash\necho here ${RANK:-none}").stdout == "here none\n"
    assert "on: plain cells run on the ranks" in auto.run("%dist auto").stdout


def test_a_line_alone_may_be_a_magic_without_its_sign(auto: Kernel) -> None:
    folder = auto.run("import os\nprint(os.getcwd())").stdout.split()[-1]
    assert auto.run("pwd").text.strip().endswith(repr(folder))


def test_errors_name_the_line_of_the_notebook(auto: Kernel) -> None:
    failed = plain(shown(auto.run("a = 1\na / 0", check=False)))
    assert "Ranks 0-1 failed: ZeroDivisionError: division by zero (cell line 2)" in failed
    failed = plain(shown(auto.run("\n\n  \n1 / 0", check=False)))
    assert "ZeroDivisionError: division by zero (cell line 4)" in failed
    wrong = plain(shown(auto.run("a = 1\na = ", check=False)))
    assert "%%distributed cell:2" in wrong
    assert "Nothing was sent to the ranks." in wrong


def test_flags_of_the_cells(auto: Kernel) -> None:
    assert "did you mean --output?" in shown(auto.run("%dist auto on --outptu all", check=False))
    auto.run("%dist auto on --output all --ranks 1")
    cell = auto.run("print('loud')")
    assert cell.stdout == "[1] loud\n"
    assert "On rank 1:" in cell.text


def test_what_a_front_end_asks_for_stays_in_the_notebook(auto: Kernel) -> None:
    auto.run("%%local\nkept = []")
    auto._client.execute("kept.append(1)", silent=True)
    auto._client.execute("kept.append(2)", store_history=False)
    assert auto.run("%%local\nprint(kept)").stdout == "[1, 2]\n"


def test_off_is_off(auto: Kernel) -> None:
    auto.run("%dist auto off")
    assert auto.run("print('rank' in globals())").stdout == "False\n"
    assert auto.run("%dist auto").stdout.startswith("off")


def test_completion(auto: Kernel) -> None:
    auto.run("only_there = [1]")
    auto.run("%%local\nfrom nbdist.notebook import inspecting\ninspecting.COMPLETE_SECONDS = 20")
    assert "only_there" in complete(auto, "x = 1\nonly_th")
    assert "on" in complete(auto, "%dist auto ")
    assert "--whole-cell" not in complete(auto, "%%distributed --")


@pytest.mark.starts_processes
def test_a_terminals_prompt_says_so() -> None:
    command = [sys.executable, "-c", TERMINAL]
    done = subprocess.run(command, capture_output=True, text=True, timeout=allowed(90), check=True)
    lines = [line for line in plain(done.stdout).splitlines() if line.strip()]
    assert lines[0].startswith("In [")
    assert lines[2].startswith("ranks In [")
    assert lines[3:6] == ["ranks", "here", "False"]
    assert lines[-1].startswith("In [")
