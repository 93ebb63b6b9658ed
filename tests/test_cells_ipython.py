"""A cell on the ranks is an IPython cell: magics, await, values, rich display, tracebacks."""

from __future__ import annotations

import base64
import sys
from typing import TYPE_CHECKING

import IPython
import pytest

from tests.helpers.notebook import keep_last_values, on_ranks, plain, printed_by
from tests.helpers.waiting import within

if TYPE_CHECKING:
    from tests.helpers.kernel import Kernel


def test_line_magics_and_shell_commands(notebook: Kernel) -> None:
    code = """
        words = !echo one two; echo $$RANK
        print(words)
        !echo shell {1 + rank} $$LOCAL_RANK
        %timeit -n1 -r1 pass
    """
    here = on_ranks(notebook, code).stdout.replace("\r\n", "\n").splitlines()
    assert here[:2] == ["['one two', '0']", "shell 1 0"]
    assert "per loop" in here[2]
    assert printed_by(notebook, 1).splitlines()[0] == "['one two', '1']"


def test_cell_magics(notebook: Kernel) -> None:
    timed = on_ranks(notebook, "%%time\nkept_by_time = 6 * 7\nprint(kept_by_time)").stdout
    assert timed.startswith("42\n")
    assert "Wall time" in timed
    assert on_ranks(notebook, "kept_by_time").text == "42\n"
    assert on_ranks(notebook, "%%bash\necho bash $RANK").stdout == "bash 0\n"
    captured = on_ranks(notebook, "%%capture taken\nprint('taken away')")
    assert captured.outputs == []
    assert on_ranks(notebook, "taken.stdout").text == "'taken away\\n'\n"


def test_a_magic_around_the_whole_cell(notebook: Kernel) -> None:
    timed = notebook.run("%%time\n%%distributed\nprint('on rank', rank)")
    assert timed.stdout.startswith("on rank 0\n")
    assert "Wall time" in timed.stdout


def test_top_level_await(notebook: Kernel) -> None:
    code = """
        import asyncio
        async def later(value):
            await asyncio.sleep(0.05)
            return value
        print(await asyncio.gather(later(1), later(2)))
        await later(rank + 10)
    """
    cell = on_ranks(notebook, code)
    assert cell.stdout == "[1, 2]\n"
    assert cell.outputs[-1].text == "10"


def test_a_waiting_cell_is_interrupted(notebook: Kernel) -> None:
    cell = notebook.start(
        "%%distributed\nimport asyncio\nkept_awaiting = 1\nprint('waits')\nawait asyncio.sleep(60)"
    )
    notebook.expect("waits")
    notebook.interrupt()
    notebook.wait(20)
    assert cell.error.startswith("CellInterrupted"), cell.seen()
    assert on_ranks(notebook, "await asyncio.sleep(0.01)\nprint(kept_awaiting)").stdout == "1\n"


def test_the_last_expressions_value_is_rank_zeros(notebook: Kernel) -> None:
    keep_last_values(notebook)
    cell = on_ranks(notebook, "10 + rank")
    assert [(out.kind, out.text) for out in cell.events] == [("result", "10")]
    assert on_ranks(notebook, "10 + rank;").events == []
    assert on_ranks(notebook, "value = 10 + rank").events == []
    assert printed_by(notebook, 1).strip().endswith("printed nothing in job " + _last_job(notebook))
    assert on_ranks(notebook, "20 + rank", "--ranks 1").text == "21\n"
    assert on_ranks(notebook, "_ + 1").text == "11\n", "IPython's own _ is each rank's"


def _last_job(kernel: Kernel) -> str:
    return kernel.run("import nbdist\nprint(nbdist.jobs()[-1].id + '.')").stdout.strip()


def test_rich_display_in_the_order_of_the_prints(notebook: Kernel) -> None:
    code = """
        from IPython.display import HTML, Image, Markdown, display
        print("one")
        display(HTML("<b>bold</b>"))
        print("two", flush=True)
        display(Markdown("*three*"), Image(data=bytes([137]) + b"PNG", format="png"))
        print("four")
        HTML("<i>value</i>")
    """
    cell = on_ranks(notebook, code)
    kinds = [(out.kind, out.text.strip()) for out in cell.outputs]
    html, markdown, image, value = (
        "<IPython.core.display.HTML object>",
        "<IPython.core.display.Markdown object>",
        "<IPython.core.display.Image object>",
        "<IPython.core.display.HTML object>",
    )
    assert kinds == [
        ("stdout", "one"),
        ("display", html),
        ("stdout", "two"),
        ("display", markdown),
        ("display", image),
        ("stdout", "four"),
        ("result", value),
    ]
    assert cell.mime("text/html") == ["<b>bold</b>", "<i>value</i>"]
    assert cell.mime("text/markdown") == ["*three*"]
    assert base64.b64decode(cell.mime("image/png")[0]) == b"\x89PNG"


def test_displays_are_updated_in_place(notebook: Kernel) -> None:
    first = on_ranks(
        notebook, "handle = display('one', display_id='it')\nprint('below')\nhandle.update('two')"
    )
    assert first.text == "'two'\nbelow\n"
    on_ranks(notebook, "handle.update('three')")
    assert first.text == "'three'\nbelow\n"


def test_output_is_cleared(notebook: Kernel) -> None:
    code = """
        from IPython.display import clear_output
        for number in range(4):
            clear_output(wait=True)
            print("step", number)
    """
    cell = on_ranks(notebook, code)
    assert cell.text == "step 3\n"
    assert [out.data for out in cell.events if out.kind == "clear"] == 4 * [{"wait": True}]
    cell = on_ranks(notebook, "print('away')\nclear_output()\nprint('stays')")
    assert cell.text == "stays\n"


@pytest.mark.parametrize("show", ["plt.show()", "pass", "display(figure)\nplt.close()"])
def test_a_matplotlib_figure_is_shown_once(notebook: Kernel, show: str) -> None:
    code = "import matplotlib.pyplot as plt\nfigure = plt.figure()\nplt.plot([1, 2, 3]);\n"
    cell = on_ranks(notebook, code + show)
    (picture,) = cell.mime("image/png")
    assert base64.b64decode(picture).startswith(b"\x89PNG")
    assert [out.text for out in cell.outputs] == ["<Figure size 640x480 with 1 Axes>"]


def test_a_traceback_has_the_notebooks_own_lines(notebook: Kernel) -> None:
    on_ranks(notebook, "def inner(x):\n    return 1 / x")
    cell = on_ranks(notebook, "\nvalue = 0\nfor _ in range(2):\n    inner(value)", check=False)
    said = plain(cell.text)
    assert said.splitlines()[0] == (
        "Ranks 0-1 failed: ZeroDivisionError: division by zero (cell line 4)"
    )
    assert "----> 4     inner(value)" in said
    assert "----> 3     return 1 / x" in said, "the line in the cell that defined it"
    assert said.count("ZeroDivisionError: division by zero") == 2
    assert "nbdist" not in said.replace("nbdist.", ""), "none of our own frames"


def test_lines_are_counted_under_a_cell_magic(notebook: Kernel) -> None:
    timed = on_ranks(notebook, "%%time\nx = 1\nraise KeyError('here')", check=False)
    if IPython.version_info >= (9,):  # before, %%time shows an error and the cell has none
        assert "KeyError: 'here' (cell line 4)" in timed.error
    assert "File <timed exec>:4" in plain(timed.text)
    captured = on_ranks(notebook, "%%capture taken\n\nraise KeyError('here')")
    assert "----> 4 raise KeyError('here')" in plain(captured.text)
    script = on_ranks(notebook, "%%bash\nexit 3", check=False)
    assert "CalledProcessError" in script.error
    assert "(cell line 2)" in script.error


@pytest.mark.parametrize("code", ["import sys; sys.exit(3)", "exit(3)", "quit(3)"])
def test_exit_ends_the_cell_and_not_the_rank(notebook: Kernel, code: str) -> None:
    pid = on_ranks(notebook, "import os\nos.getpid()").text
    cell = on_ranks(notebook, code, check=False)
    assert "SystemExit: 3" in cell.error, cell.seen()
    assert on_ranks(notebook, "os.getpid()").text == pid


QUESTIONS = {
    "input('Your name? ')": "input('Your name? ') was called on a rank",
    "breakpoint()": "breakpoint() was called on a rank",
    "import getpass; getpass.getpass('Token: ')": "input('Token: ') was called on a rank",
    "import pdb; pdb.set_trace()": "breakpoint() was called on a rank",
    "import sys; assert sys.stdin.readline() == ''; raise EOFError": "EOFError",
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_never_hangs(notebook: Kernel, question: str) -> None:
    cell = on_ranks(notebook, question, check=False, timeout=20)
    said = plain(cell.text)
    assert not cell.ok
    assert QUESTIONS[question] in said
    assert len(said.splitlines()) < 40
    if "called on a rank" in said:
        assert "questions.py" not in said, "the traceback ends in the cell"
    assert on_ranks(notebook, "print('alive')").stdout == "alive\n"


def test_debugging_after_a_failure_never_hangs(notebook: Kernel) -> None:
    on_ranks(notebook, "1 / 0", check=False)
    debug = on_ranks(notebook, "%debug", check=False, timeout=20)
    assert "breakpoint() was called on a rank" in debug.error
    automatic = on_ranks(notebook, "%pdb on\n1 / 0", check=False, timeout=20)
    assert "ZeroDivisionError: division by zero (cell line 3)" in automatic.error
    assert on_ranks(notebook, "%pdb off\nprint('alive')").stdout.endswith("alive\n")


ODD_ERRORS = {
    "class Odd(Exception):\n    def __str__(self): raise ValueError\nraise Odd": (
        "Odd: (its text cannot be shown: ValueError())"
    ),
    "class Odd(Exception):\n    def _render_traceback_(self): raise ValueError\nraise Odd": "Odd",
    "raise BaseException('base')": "BaseException: base",
    "raise KeyboardInterrupt": "KeyboardInterrupt",
    "import asyncio\nraise asyncio.CancelledError('mine')": "CancelledError: mine",
    "raise StopIteration": "StopIteration",
    "assert False, 'a\\nb'": "AssertionError: a",
    "get_ipython().run_line_magic('no_such_magic', '')": "UsageError",
    "%no_such_magic": "UsageError",
}


if sys.version_info >= (3, 11):
    ODD_ERRORS["raise ExceptionGroup('both', [KeyError(1)])"] = "ExceptionGroup: both"


@pytest.mark.parametrize("code", ODD_ERRORS)
def test_an_odd_error_ends_the_cell_too(notebook: Kernel, code: str) -> None:
    cell = on_ranks(notebook, code, check=False, timeout=20)
    assert cell.error.startswith(f"CellFailed: Ranks 0-1 failed: {ODD_ERRORS[code]}")
    assert on_ranks(notebook, "print('alive')").stdout == "alive\n"


def test_a_broken_input_transformer_is_told(notebook: Kernel) -> None:
    code = """
        def broken(lines):
            get_ipython().input_transformers_post.remove(broken)
            1 / 0
        get_ipython().input_transformers_post.append(broken)
    """
    on_ranks(notebook, code)
    cell = on_ranks(notebook, "print('not reached')", check=False, timeout=20)
    assert cell.error.startswith("CellFailed: Ranks 0-1 failed: ZeroDivisionError")
    assert on_ranks(notebook, "print('alive')").stdout == "alive\n"


def test_endless_recursion_is_told_shortly_and_of_all_ranks(notebook: Kernel) -> None:
    endless = "def deeper(): deeper()\ndeeper()"
    with within(20):
        cell = on_ranks(notebook, endless, check=False)
    assert cell.error.startswith("CellFailed: Ranks 0-1 failed: RecursionError")
    assert "stopped" not in cell.error
    assert len(cell.text.splitlines()) < 200


def test_what_opens_a_pager_stands_in_the_output(notebook: Kernel) -> None:
    on_ranks(notebook, 'def documented():\n    """What it does."""\n    return "its source"')
    assert "What it does." in plain(on_ranks(notebook, "documented?").text)
    assert "its source" in plain(on_ranks(notebook, "documented??").text)
    assert "function calls" in on_ranks(notebook, "%prun -l 3 sum(range(10))").text
    assert "What it does." in plain(on_ranks(notebook, "help(documented)").text)


def test_names_are_there_again_after_a_reset(notebook: Kernel) -> None:
    on_ranks(notebook, "mine = 1")
    assert on_ranks(notebook, "%who_ls int").text.strip() != "[]"
    on_ranks(notebook, "%reset -f")
    code = "print(rank, local_rank, world_size, device, 'mine' in globals())"
    assert on_ranks(notebook, code).stdout == "0 0 2 cpu False\n"
    ended = on_ranks(notebook, "exit(3)", check=False)
    assert "SystemExit: 3" in ended.error, "not IPython's own, which would end the rank"
    on_ranks(notebook, "40 + rank")
    assert on_ranks(notebook, "_ + 2").text == "42\n"
    on_ranks(notebook, "rank = 'my own'")
    assert on_ranks(notebook, "print(rank)").stdout == "my own\n"
    on_ranks(notebook, "del rank")
    assert on_ranks(notebook, "print(rank)").stdout == "0\n"
    assert on_ranks(notebook, "%who").stdout.split() == ["Interactive", "namespace", "is", "empty."]


def test_children_of_a_cell_end_without_a_word(notebook: Kernel) -> None:
    pool = """
        import multiprocessing
        def square(x): return x * x
        with multiprocessing.get_context("fork").Pool(2) as workers:
            print(workers.map(square, range(4)))
    """
    assert on_ranks(notebook, pool).stdout == "[0, 1, 4, 9]\n"
    for leave, code in (("os._exit(3)", 3), ("sys.exit(0)", 0), ("1 / 0", 1), ("pass", 0)):
        fork = f"""
            import os, sys
            pid = os.fork()
            if pid == 0:
                {leave}
            else:
                print("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        """
        assert f"child {code}\n" in on_ranks(notebook, fork, timeout=20).stdout
    assert on_ranks(notebook, "rank").text == "0\n"


def test_a_magic_that_captures_the_whole_cell(notebook: Kernel) -> None:
    notebook.run("%%capture taken\n%%distributed\nprint('one')\ndisplay('two')\nrank + 3")
    assert notebook.cell.outputs == []
    said = notebook.run("print(repr(taken.stdout), [str(o) for o in taken.outputs])").stdout
    assert said.startswith("'one\\n' ")
    assert notebook.run("taken.show()").text.splitlines() == ["one", "'two'", "3"]


def test_history_is_the_ranks_own(notebook: Kernel) -> None:
    on_ranks(notebook, "remembered = 'in the history'")
    assert "remembered" in on_ranks(notebook, "print(In[-2])").stdout
