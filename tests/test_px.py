"""ipyparallel beside us: the client, `%px` and its whole output, also between our cells."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.helpers.notebook import on_ranks, plain, printed_by
from tests.helpers.waiting import until, within

if TYPE_CHECKING:
    from pathlib import Path

    from tests.helpers.cell import Cell
    from tests.helpers.kernel import Kernel


@pytest.fixture(autouse=True)
def _interface(notebook: Kernel) -> None:
    """Have what cells of the tests use."""
    notebook.run("import nbdist")


def by_rank(cell: Cell, kind: str = "stdout") -> dict[int, str]:
    """Return what ipyparallel shows of each engine's stream."""
    shown = [re.match(rf"\[{kind}:(\d+)\] ", out.text) for out in cell.outputs]
    return {
        int(found[1]): out.text[found.end() :]
        for found, out in zip(shown, cell.outputs, strict=True)
        if found
    }


def begin_in(folder: Path) -> str:
    """Return code that notes in a folder that a rank has begun."""
    return f"open(f'{folder}/{{rank}}', 'w').close()"


def test_the_client_is_ipyparallels(notebook: Kernel) -> None:
    code = """
import ipyparallel, nbdist
client = nbdist.cluster().client
print(isinstance(client, ipyparallel.Client), client.ids)
view = client[:]
print(view.apply_sync(lambda a, b: a + b, 1, 2))
view["pushed"] = 7
print(view["rank"], client[1]["pushed"])
view.scatter("part", [0, 1, 2, 3])
print(view.gather("part").get())
"""
    assert notebook.run(code).stdout.splitlines() == [
        "True [0, 1]",
        "[3, 3]",
        "[0, 1] 7",
        "[0, 1, 2, 3]",
    ]
    assert on_ranks(notebook, "pushed").text == "7\n"


def test_px_is_there_without_any_preparation(kernel: Kernel) -> None:
    kernel.run("%load_ext nbdist")
    early = kernel.run("%px rank", check=False)
    assert early.text == (
        "UsageError: there is no cluster yet: run a %%distributed cell or %dist start\n"
    )
    on_ranks(kernel, "ours = 10 + rank", "-np 2 --backend none")
    assert by_rank(kernel.run("%px print(ours)")) == {0: "10\n", 1: "11\n"}
    on_ranks(kernel, "ours = 20 + rank", "-np 3")
    assert by_rank(kernel.run("%px print(ours)")) == {0: "20\n", 1: "21\n", 2: "22\n"}
    kernel.run("%dist stop")
    late = kernel.run("%px rank", check=False)
    assert "there is no cluster yet" in late.text


def test_nothing_is_lost_while_the_client_subscribes(notebook: Kernel) -> None:
    late = """
import ipyparallel, threading, zmq
plain = ipyparallel.Client
class Late(plain):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.set(zmq.UNSUBSCRIBE)
        threading.Timer(0.5, self.set, [zmq.SUBSCRIBE]).start()
    def set(self, option):
        self._io_loop.add_callback(self._iopub_socket.setsockopt, option, b"")
ipyparallel.Client = Late
"""
    notebook.run(late)
    notebook.run("%dist restart")  # for another client
    assert by_rank(notebook.run("%px print(rank)")) == {0: "0\n", 1: "1\n"}
    notebook.run("ipyparallel.Client = plain")


def test_its_output_is_whole(notebook: Kernel) -> None:
    code = r"""%%px
import ctypes, os, sys
print("python", rank)
libc = ctypes.CDLL(None)
libc.puts(b"C library"); libc.fflush(None)
os.system("echo child")
print("to stderr", file=sys.stderr)
rank + 100
"""
    cell = notebook.run(code)
    for number in (0, 1):
        lines = by_rank(cell)[number].splitlines()
        assert sorted(lines) == ["C library", "child", f"python {number}"]
        assert by_rank(cell, "stderr")[number] == "to stderr\n"
        assert re.search(rf"Out\[{number}:\d+\]: {number + 100}", plain(cell.text))
    assert "C library" not in on_ranks(notebook, "print('ours')").stdout


def test_a_lot_of_output_is_whole(notebook: Kernel) -> None:
    cell = notebook.run("%%px\nfor number in range(2000): print(number)")
    expected = "".join(f"{number}\n" for number in range(2000))
    assert by_rank(cell) == {0: expected, 1: expected}


def test_it_takes_turns_with_our_cells(notebook: Kernel) -> None:
    for number in range(10):
        on_ranks(notebook, f"shared = {number}\nprint('ours', shared)")
        cell = notebook.run("%px print('theirs', shared)")
        assert by_rank(cell) == dict.fromkeys((0, 1), f"theirs {number}\n")
        assert printed_by(notebook, 1) == f"ours {number}\n"


def test_it_waits_for_a_job_that_runs(notebook: Kernel) -> None:
    code = """
job = nbdist.cluster().submit(
    "import asyncio, os\\n"
    "while not os.path.exists('px'):\\n"
    "    await asyncio.sleep(0.02)\\n"
    "for step in range(5):\\n"
    "    print('step', step)\\n"
    "    await asyncio.sleep(0.1)\\n"
    "over = True\\n"
)
"""
    notebook.run(code)
    cell = notebook.run("open('px', 'w').close()\n%px print('over:', over)")
    assert by_rank(cell) == {0: "over: True\n", 1: "over: True\n"}
    steps = "".join(f"step {number}\n" for number in range(5))
    assert notebook.run("print(job.output(0) == job.output(1), job.output(1))").stdout == (
        f"True {steps}\n"
    )


def test_ours_wait_for_theirs(notebook: Kernel, tmp_path: Path) -> None:
    notebook.run(
        f"%%px --noblock\n{begin_in(tmp_path)}\nimport time\ntime.sleep(1)\nleft_by_px = 'there'"
    )
    until(lambda: len(list(tmp_path.iterdir())) == 2)  # theirs takes the longer way to the ranks
    with within(20):
        assert on_ranks(notebook, "left_by_px").text == "'there'\n"


def test_an_error_in_it_is_ipyparallels_own(notebook: Kernel) -> None:
    cell = notebook.run("%px 1 / 0", check=False)
    assert "ZeroDivisionError" in plain(cell.text)
    assert "2 errors" in cell.error
    assert on_ranks(notebook, "'still here'").text == "'still here'\n"


def test_it_is_interrupted(notebook: Kernel, tmp_path: Path) -> None:
    cell = notebook.start(f"%%px\n{begin_in(tmp_path)}\nimport time\ntime.sleep(600)")
    until(lambda: len(list(tmp_path.iterdir())) == 2, told=cell.seen)
    notebook.interrupt()
    notebook.wait(10)
    assert "Received Keyboard Interrupt" in cell.stderr
    assert on_ranks(notebook, "'awake'", timeout=5).text == "'awake'\n"


def test_its_targets_and_results(notebook: Kernel) -> None:
    one = notebook.run("%%px --targets 1 --noblock\nprint('only', rank)")
    assert one.outputs[0].kind == "result"
    assert "only 1" in plain(notebook.run("%pxresult").text)
    notebook.run("x = 'the notebook'\n%px x = 'a rank'")
    assert by_rank(notebook.run("%px print('$x {x}', x)"))[0] == "$x {x} a rank\n"


def test_autopx_goes_on_and_off(notebook: Kernel) -> None:
    notebook.run("%autopx")
    try:
        assert by_rank(notebook.run("print('automatic', rank)")) == {
            0: "automatic 0\n",
            1: "automatic 1\n",
        }
    finally:
        notebook.run("%autopx")
    assert notebook.run("print('here')").stdout == "here\n"


def test_a_client_of_the_users_own_keeps_its_magics(notebook: Kernel) -> None:
    notebook.run("one = nbdist.cluster().client[[1]]\none.block = True\none.activate('_one')")
    assert by_rank(notebook.run("%px_one print('one', rank)")) == {1: "one 1\n"}
    assert set(by_rank(notebook.run("%px print('all', rank)"))) == {0, 1}


def test_a_rank_that_was_replaced_just_now_is_waited_for(notebook: Kernel) -> None:
    assert set(by_rank(notebook.run("%px print(rank)"))) == {0, 1}
    for _ in range(3):
        notebook.run("%dist restart 1")
        assert set(by_rank(notebook.run("%px print(rank)"))) == {0, 1}


def test_nobody_listens_to_hearts_of_engines_that_are_there(notebook: Kernel) -> None:
    told = notebook.run("print(nbdist.cluster().hub.host.warm.pid)").stdout
    monitors = [
        monitor
        for child in psutil.Process(int(told)).children()
        for monitor in child.children()
        if monitor.name() == child.name()
    ]
    assert len(monitors) == 1, "ipyparallel's controller has one child, its heart monitor"
    notebook.run("%px pass")

    def rests() -> bool:
        before = monitors[0].num_ctx_switches().voluntary
        time.sleep(2)
        return monitors[0].num_ctx_switches().voluntary - before < 10  # twenty beats, each some

    until(rests, 10)
