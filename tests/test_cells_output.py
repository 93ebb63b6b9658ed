"""What ranks print: rank zero's as it comes, every rank's whole in the log, whoever writes it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import nbformat
import pexpect  # type: ignore[import-untyped]
import pytest

from tests.helpers.notebook import distributed, on_ranks, printed_by
from tests.helpers.waiting import allowed, until

if TYPE_CHECKING:
    from tests.conftest import KernelFactory
    from tests.helpers.kernel import Kernel

pytestmark = pytest.mark.repeats

ROOT = Path(__file__).parent.parent
SLOW_LINES = """
    import time
    for number in range(4):
        print("line", number)
        time.sleep(0.1)
"""
AWAITED_LINES = """
    import os, time
    for number in range(4):
        print("line", number)
        while not os.path.exists({folder!r} + f"/{{number}}"):
            time.sleep(0.02)
"""


def test_prints_come_when_they_are_printed(notebook: Kernel, tmp_path: Path) -> None:
    cell = notebook.start(distributed(AWAITED_LINES.format(folder=str(tmp_path))))
    for number in range(4):
        notebook.expect(f"line {number}\n")
        (tmp_path / str(number)).touch()  # only now may it print the next one
    assert notebook.wait().ok, cell.seen()
    assert cell.stdout == "".join(f"line {number}\n" for number in range(4))
    assert {out.kind for out in cell.events} == {"stdout"}


def test_a_log_that_is_cut_to_make_room_hides_nothing_of_what_comes_then(
    notebook: Kernel, tmp_path: Path
) -> None:
    def cut_logs() -> None:
        for log in notebook.home.glob("logs/*/rank*.log"):
            os.truncate(log, 0)

    on_ranks(notebook, "print('x' * 10_000)")
    cut_logs()
    assert on_ranks(notebook, "print('after', rank)").stdout == "after 0\n"
    assert printed_by(notebook, 1) == "after 1\n"
    on_ranks(notebook, "print('x' * 10_000)")
    cell = notebook.start(distributed(AWAITED_LINES.format(folder=str(tmp_path))))
    notebook.expect("line 0\n")
    cut_logs()
    for number in range(4):
        notebook.expect(f"line {number}\n")
        (tmp_path / str(number)).touch()
    assert notebook.wait().ok, cell.seen()
    assert cell.stdout == "".join(f"line {number}\n" for number in range(4))


def test_whoever_writes_to_the_descriptors_is_heard_in_order(notebook: Kernel) -> None:
    code = r"""
        import ctypes, os, subprocess, sys
        libc = ctypes.CDLL(None)
        print("python", rank)
        libc.puts(b"C library"); libc.fflush(None)
        print("to stderr", file=sys.stderr)
        subprocess.run(["echo", "child process"])
        os.system("echo child of the shell 1>&2")
        os.write(1, b"descriptor 1\n")
        os.write(2, b"descriptor 2\n")
        sys.__stdout__.write("the original stream\n"); sys.__stdout__.flush()
        print("last")
    """
    expected = [
        "C library",
        "to stderr",
        "child process",
        "child of the shell",
        "descriptor 1",
        "descriptor 2",
        "the original stream",
        "last",
    ]
    assert on_ranks(notebook, code).stdout.splitlines() == ["python 0", *expected]
    assert printed_by(notebook, 1).splitlines() == ["python 1", *expected]


def test_what_c_prints_without_a_flush_comes_at_once(
    start_kernel: KernelFactory, without_torch: dict[str, str]
) -> None:
    kernel = start_kernel(env=without_torch | {"PYTHONUNBUFFERED": ""})
    kernel.run("%load_ext nbdist")
    code = """
        import ctypes
        libc = ctypes.CDLL(None)
        libc.printf(b"no line end ")
        print("python")
        libc.printf(b"line");
    """
    assert on_ranks(kernel, code, "-np 1 --backend none").stdout == "no line end python\nline"


def test_control_characters_arrive_as_they_are(notebook: Kernel) -> None:
    code = r"""
        import sys
        sys.stdout.write("a\rb\x1b[31mred\x1b[0m\ttab\x08\x00\n")
    """
    assert on_ranks(notebook, code).stdout == "a\rb\x1b[31mred\x1b[0m\ttab\x08\x00\n"


def test_progress_bars_stay_on_their_line(notebook: Kernel) -> None:
    code = """
        from tqdm.auto import tqdm
        for _ in tqdm(range(3), desc="steps"):
            pass
        from tqdm.notebook import trange
        for _ in trange(2, desc="also text"):
            pass
    """
    cell = on_ranks(notebook, code)
    assert {out.kind for out in cell.events} == {"stdout"}, "no widgets, they would stand still"
    bars = cell.stdout.split("\n")
    assert [bar.count("\r") >= 2 for bar in bars] == [True, True, False]
    assert "steps: 100%" in bars[0].rsplit("\r", 1)[1]
    assert "also text: 100%" in bars[1].rsplit("\r", 1)[1]


def test_broken_utf8_is_marked_and_split_characters_are_not(notebook: Kernel) -> None:
    code = r"""
        import os, time
        os.write(1, b"broken \xff\xfe end\n")
        for byte in "häß€🎉\n".encode():
            os.write(1, bytes([byte]))
            time.sleep(0.03)
        print("lone \udc80 surrogate")
    """
    lines = on_ranks(notebook, code).stdout.splitlines()
    assert lines == ["broken \ufffd\ufffd end", "häß€🎉", "lone \\udc80 surrogate"]


def test_half_a_character_at_the_end_is_marked(notebook: Kernel) -> None:
    assert on_ranks(notebook, r"import os; os.write(1, b'cut \xe2\x82');").stdout == "cut \ufffd"
    assert on_ranks(notebook, "print('clean')").stdout == "clean\n"


def test_a_very_long_line_is_whole_in_the_log(notebook: Kernel) -> None:
    cell = on_ranks(notebook, "print('x' * 1_000_000 + 'end')")
    assert cell.stdout.startswith("x" * 100_000)
    assert cell.stdout.endswith("xend\n")
    for rank in (0, 1):
        assert printed_by(notebook, rank) == "x" * 1_000_000 + "end\n"


def test_many_lines_are_whole_and_in_order(notebook: Kernel) -> None:
    cell = on_ranks(notebook, "for number in range(20_000): print(number)")
    assert cell.stdout == "".join(f"{number}\n" for number in range(20_000))


def test_what_stands_in_for_stdout_stays_until_it_is_taken_away(notebook: Kernel) -> None:
    replace = """
        import sys
        class Shout:
            def __init__(self, under): self.under = under
            def write(self, text): return self.under.write(text.upper())
            def flush(self): self.under.flush()
        before = sys.stdout
        sys.stdout = Shout(before)
        print("loud")
    """
    assert on_ranks(notebook, replace).stdout == "LOUD\n"
    assert on_ranks(notebook, "print('still loud')").stdout == "STILL LOUD\n"
    assert on_ranks(notebook, "sys.stdout = before\nprint('quiet')").stdout == "quiet\n"


def test_redirected_prints_stay_where_they_were_sent(notebook: Kernel) -> None:
    code = """
        import contextlib, io
        taken = io.StringIO()
        with contextlib.redirect_stdout(taken):
            print("taken")
        print("left", taken.getvalue().strip())
    """
    assert on_ranks(notebook, code).stdout == "left taken\n"


def test_a_redirected_descriptor_does_not_hide_the_next_cell(notebook: Kernel) -> None:
    on_ranks(notebook, "import os\nos.dup2(os.open(os.devnull, os.O_WRONLY), 1)\nprint('away')")
    assert on_ranks(notebook, "print('here')").stdout == "here\n"


def test_a_closed_stdout_is_open_again_in_the_next_cell(notebook: Kernel) -> None:
    for damage in ("sys.stdout.close()", "sys.stdout = None", "os.close(1)"):
        on_ranks(notebook, f"import os, sys\n{damage}", check=False)
        assert on_ranks(notebook, "print('here')").stdout == "here\n", damage


def test_logging_set_up_in_an_earlier_cell_goes_on(notebook: Kernel) -> None:
    setup = """
        import logging, sys
        log = logging.getLogger("cells")
        log.setLevel("INFO")
        log.handlers[:] = [logging.StreamHandler(), logging.StreamHandler(sys.stdout)]
        log.info("one")
    """
    assert on_ranks(notebook, setup).stdout == "one\none\n"
    assert on_ranks(notebook, "log.info('two')").stdout == "two\ntwo\n"
    notebook.run("%px log.info('in between')")
    assert on_ranks(notebook, "log.info('three')").stdout.endswith("three\nthree\n")
    assert printed_by(notebook, 1).endswith("three\nthree\n")


def test_an_idle_rank_says_nothing_of_an_interrupt(notebook: Kernel) -> None:
    pid = int(on_ranks(notebook, "import os\nprint(os.getpid())").stdout)
    os.kill(pid, signal.SIGINT)
    assert on_ranks(notebook, "print('fine')").stdout == "fine\n"


def test_a_thread_that_outlives_its_cell_is_heard(notebook: Kernel) -> None:
    code = """
        import os, threading, time
        begun, second_cell = threading.Event(), threading.Event()
        def talk():
            for number in range(6):
                while number == 2 and not os.path.exists("cell-over"):
                    begun.set()
                    time.sleep(0.02)
                if number == 4:
                    open(f"between-{rank}", "x").close()
                    second_cell.wait()
                print("late", number)
        talker = threading.Thread(target=talk, daemon=True)
        talker.start()
        begun.wait()
        print("cell over")
    """
    assert on_ranks(notebook, code).stdout == "late 0\nlate 1\ncell over\n"
    notebook.run("import pathlib; pathlib.Path('cell-over').touch()")
    for rank in (0, 1):  # some of it while no cell runs
        until((notebook.home / f"between-{rank}").exists)
    body = "second_cell.set()\ntalker.join()\nprint('second over')"
    second = on_ranks(notebook, body).stdout
    assert second == "".join(f"late {number}\n" for number in range(2, 6)) + "second over\n"


def test_logs_and_jobs_tell_each_ranks_output(notebook: Kernel) -> None:
    on_ranks(notebook, "print('from', rank)")
    assert printed_by(notebook, 0) == "from 0\n"
    assert printed_by(notebook, 1) == "from 1\n"
    read = "import nbdist\njob = nbdist.jobs()[-1]\nprint(repr(job.output(0)), repr(job.output(1)))"
    assert notebook.run(read).stdout == "'from 0\\n' 'from 1\\n'\n"
    on_ranks(notebook, "print('another')", "--ranks 1")
    assert notebook.run("print(repr(job.output(1)))").stdout == "'from 1\\n'\n", "kept by job"
    wrong = notebook.run("%dist logs 0", check=False)
    assert "ran on ranks 1, not on 0" in wrong.error
    named = notebook.run("get_ipython().run_line_magic('dist', f'logs 0 --job {job.id}')")
    assert named.stdout == "from 0\n"


def test_output_before_a_failure_is_there(notebook: Kernel) -> None:
    cell = on_ranks(notebook, "print('before')\nif rank == 1: raise ValueError('no')", check=False)
    assert cell.stdout == "before\n"
    assert printed_by(notebook, 1) == "before\n"


def test_other_ranks_displays_are_text_in_their_log(notebook: Kernel) -> None:
    on_ranks(notebook, "display(f'shown by {rank}')\nrank + 40")
    assert printed_by(notebook, 1) == "'shown by 1'\n41\n"


def test_a_value_with_a_very_long_text_is_shown_in_part(notebook: Kernel) -> None:
    long = "'begun' + 60_000 * '.' + 'ended'"
    shown = on_ranks(notebook, long).text
    assert shown.startswith("'begun..")
    assert shown.strip().endswith("..ended'")
    assert "… 55,012 characters are left out; `print` shows them all …" in shown
    assert len(printed_by(notebook, 1)) < 6_000
    assert len(on_ranks(notebook, f"print({long})").stdout) == 60_011
    assert len(on_ranks(notebook, "15_000 * '.'").text) >= 15_002, "what is not so long is whole"


def test_no_warning_of_ours_is_in_the_output(notebook: Kernel) -> None:
    on_ranks(notebook, "import warnings\nwarnings.simplefilter('always')")
    # The ranks form their group anew, and let go of what was for the old one.
    notebook.run("%dist restart 1")
    assert on_ranks(notebook, "import gc\nfound = gc.collect()").text == ""


@pytest.mark.starts_processes
def test_nbclient_shows_and_keeps_all(without_torch: dict[str, str], tmp_path: Path) -> None:
    cells = ["%load_ext nbdist", distributed(SLOW_LINES, "-np 2 --backend none"), "%dist logs 1"]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbformat.write(book, tmp_path / "book.ipynb")
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "run_notebook.py", "book.ipynb", "done.ipynb"],
        cwd=tmp_path,
        env=os.environ | without_torch,
        capture_output=True,
        text=True,
        timeout=allowed(60),
        check=True,
    )
    lines = "".join(f"line {number}\n" for number in range(4))
    assert lines in done.stdout
    kept = nbformat.read(tmp_path / "done.ipynb", as_version=4).cells
    assert ["".join(out.text for out in cell.outputs) for cell in kept] == ["", lines, lines]


@pytest.mark.starts_processes
def test_terminal_ipython_shows_all_and_interrupts(without_torch: dict[str, str]) -> None:
    with pexpect.spawn(
        sys.executable,
        ["-m", "IPython", "--simple-prompt", "--no-banner", "--colors=nocolor"],
        env=os.environ | without_torch,
        encoding="utf-8",
        timeout=allowed(60),
    ) as terminal:
        terminal.expect(r"In \[1\]: ")
        terminal.sendline("%load_ext nbdist")
        terminal.expect(r"In \[2\]: ")
        _type(terminal, "%%distributed -np 2 --backend none", "print('hello', rank)", "rank + 5")
        terminal.expect("hello 0\r\n")
        terminal.expect(r"Out\[2\]: 5\r\n")
        _type(terminal, "%%distributed", "import time; print('sleeps')", "time.sleep(60)")
        terminal.expect("sleeps\r\n")
        terminal.sendintr()
        terminal.expect("The cell was interrupted")
        terminal.expect(r"In \[4\]: ")
        terminal.sendline("%dist status")
        terminal.expect("2 ranks")
        terminal.expect("idle")
        _type(terminal, "%%distributed --async", "time.sleep(0.5); print('slept')", "1 / 0")
        terminal.expect(r"Out\[5\]: <job 3: \w+ .*on ranks 0-1>")
        terminal.expect("slept\r\n")
        terminal.expect(r"Job 3 on ranks 0-1: failed after")
        terminal.expect("ZeroDivisionError: division by zero")
        terminal.sendline("exit")
        terminal.expect(pexpect.EOF)


def _type(terminal: pexpect.spawn, *lines: str) -> None:
    """Type a cell, and the two blank lines that end it."""
    for line in (*lines, ""):
        terminal.sendline(line)
        terminal.expect(r"\.\.\.: ")
    terminal.sendline("")
