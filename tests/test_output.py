"""Everything printed, nothing drowned."""

from __future__ import annotations

import io
import random
import re
from typing import TYPE_CHECKING

import pytest
from tqdm import tqdm

from nbdist.job.events import Notice, Text
from nbdist.job.job import Job
from nbdist.job.merged_output import Merger, Rows
from nbdist.job.output import BACKLOG, Output

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import KernelFactory
    from tests.helpers.kernel import Kernel

LINES = 200_000


@pytest.fixture(scope="module")
def cluster(shared_kernel: Kernel) -> Kernel:
    shared_kernel.run("%load_ext nbdist\nimport nbdist")
    shared_kernel.run("%%distributed -np 2\nimport sys, time\nfrom tqdm import tqdm")
    return shared_kernel


def merged(*prints: tuple[int, str], collapse: bool) -> str:
    merger = Merger((0, 1, 2), collapse=collapse)
    for rank, text in prints:
        merger.feed(rank, text, 0.0)
    return merger.flush(0.0)


def test_lines_are_labelled() -> None:
    assert merged((0, "a\nb"), (1, "a\n"), (0, "c\n"), collapse=False) == "[0] a\n[1] a\n[0] bc\n"


def test_equal_lines_are_shown_once_and_odd_ones_apart() -> None:
    shown = merged((0, "a\nb\nc\n"), (2, "a\nodd\nc\n"), (1, "a\nb\nc\n"), collapse=True)
    assert shown == "[0-2] a\n[2] odd\n[0-1] b\n[0-2] c\n"


@pytest.mark.parametrize("first", [0, 1])
def test_lines_in_common_are_found_whoever_is_heard_first(first: int) -> None:
    prints = [(0, "same\nlate\n"), (1, "same\nodd\n")]
    shown = merged(prints[first], prints[1 - first], (1, "late\n"), collapse=True)
    assert shown == "[0-1] same\n[1] odd\n[0-1] late\n"


def test_a_line_whose_end_is_on_its_way_is_no_bar() -> None:
    merger = Merger((0, 1), collapse=False)
    merger.feed(0, "begun", 10.0)
    assert merger.bars(10.0) == ""
    merger.feed(0, "\n", 10.01)
    assert merger.bars(10.3) == ""
    assert merger.ready(10.3) == "[0] begun\n"
    for step, at in enumerate((11.0, 11.05, 11.2)):  # drawn again and again
        merger.feed(1, f"\r{step} of 3", at)
    merger.feed(0, "at once", 11.2)
    assert merger.bars(11.2) == "[1] 2 of 3"
    assert merger.bars() == "[0] at once\n[1] 2 of 3"


@pytest.mark.parametrize("seed", range(50))
def test_each_ranks_lines_stay_whole_and_in_order(seed: int) -> None:
    drawn = random.Random(seed)  # noqa: S311
    merger, shown = Merger((0, 1, 2), collapse=True), ""
    printed: dict[int, list[str]] = {0: [], 1: [], 2: []}
    for step in range(60):
        rank, letter = drawn.randrange(3), drawn.choice("abcdef")
        printed[rank].append(letter)
        merger.feed(rank, f"{letter}\n", step / 20)
        shown += merger.ready(step / 20)
    found: dict[int, list[str]] = {0: [], 1: [], 2: []}
    lines = re.findall(r"^\[(.*)\] (.)$", shown + merger.flush(3), flags=re.MULTILINE)
    for rank, own in found.items():
        own += [letter for label, letter in lines if label == "0-2" or str(rank) in label]
    assert found == printed


def test_a_late_rank_is_waited_for_and_not_for_ever() -> None:
    merger = Merger((0, 1), collapse=True)
    merger.feed(0, "a\n", 0.0)
    assert merger.ready(0.5) == ""
    merger.feed(1, "a\n", 0.6)
    assert merger.ready(0.7) == "[0-1] a\n"
    merger.feed(0, "b\n", 1.0)
    assert merger.ready(2.5) == "[0] b\n"
    merger.feed(1, "b\n", 3.0)
    assert merger.ready(4.5) == "[1] b\n"


def test_a_slow_viewer_is_waited_for_and_gets_all(tmp_path: Path) -> None:
    """What he has not taken waits in the logs, not in memory."""
    job = Job(id="7", code="", ranks=(0,), folder=tmp_path, number=1)
    assert job.output() == "", "a rank that has not printed yet"
    lines = [f"line {number}\n" for number in range(150_000)]
    job.log(0).write_text("".join(lines))
    job.parts = {0: (0, job.log(0).stat().st_size)}
    output = Output(job, "rank0")
    output.begin()
    for _ in range(BACKLOG):
        job.events.put(Notice("bars", "not looked at yet"))
    assert not output.finish()
    assert job.events.qsize() == BACKLOG
    seen, finished = "", False
    while not finished or job.events.qsize():
        event = job.events.get_nowait()
        seen += event.text if isinstance(event, Text) else ""
        finished = finished or output.finish()
        assert job.events.qsize() <= BACKLOG + 3
    assert seen.startswith("".join(lines[:1000]))
    assert seen.endswith(lines[-1])


def test_bars_stay_one_line_each() -> None:
    rows, printed = Rows(), io.StringIO()
    done: list[str] = []
    for _ in tqdm(range(3), file=printed, mininterval=0, ascii=True):
        for _ in tqdm(range(5), file=printed, mininterval=0, leave=False, ascii=True):
            done += rows.feed(printed.getvalue())
            printed.seek(0)
            printed.truncate()
            assert rows.open().count("\n") <= 1
    done += rows.feed(printed.getvalue() + "after\n")
    done += rows.rest()
    assert len([line for line in done if "3/3" in line]) == 1
    assert done[-1] == "after"
    assert not any("/5" in line for line in done)


def test_all_labels_every_rank(cluster: Kernel) -> None:
    text = cluster.run("%%distributed --output all\nprint('from', rank)\nprint('x', end='')").text
    assert sorted(text.split("\n")) == ["", "[0] from 0", "[0] x", "[1] from 1", "[1] x"]


def test_collapse_over_late_ranks(cluster: Kernel) -> None:
    # However slow the machine, rank 0's lines are held back for those of rank 1.
    cluster.run(
        "from nbdist.job import merged_output\n"
        "late, merged_output.LATE_SECONDS = merged_output.LATE_SECONDS, 600"
    )
    text = cluster.run(
        "%%distributed --output collapse\n"
        "print('same')\nif rank: print('odd')\ntime.sleep(0.3 * rank)\nprint('late but same')"
    ).text
    cluster.run("merged_output.LATE_SECONDS = late")
    assert text == "[0-1] same\n[1] odd\n[0-1] late but same\n"


def test_one_bar_a_rank(cluster: Kernel) -> None:
    cell = cluster.run("%%distributed --output all\nfor _ in tqdm(range(20)): time.sleep(0.05)")
    bars = [line for line in cell.seen().splitlines() if "20/20" in line]
    assert len([line for line in cell.text.splitlines() if "20/20" in line]) <= 2
    assert bars


@pytest.mark.parametrize("how", ["rank0", "all", "collapse"])
def test_a_loud_cell_is_bounded_here_and_whole_in_the_log(cluster: Kernel, how: str) -> None:
    cell = cluster.run(
        f"%%distributed --output {how}\nfor i in range({LINES}): print('line', i)", timeout=100
    )
    assert len(cell.text) < 400_000
    assert "line 0\n" in cell.text
    assert f"line {LINES - 1}\n" in cell.text
    assert re.search(r"… [\d,]+ lines \(.* MB\) hidden; `%dist logs 0`", cell.seen())
    counted = cluster.run(
        "import nbdist\njob = nbdist.jobs()[-1]\n"
        f"whole = [f'line {{i}}' for i in range({LINES})]\n"
        "print([job.output(rank).splitlines() == whole for rank in (0, 1)])"
    )
    assert "[True, True]" in counted.text


def test_displays_keep_their_place_among_prints(cluster: Kernel) -> None:
    cell = cluster.run(
        "%%distributed\n"
        "from IPython.display import display, HTML\n"
        "for i in range(3):\n    print('before', i)\n    display(HTML(f'<b>{i}</b>'))\nprint('end')"
    )
    kinds = [out.kind for out in cell.outputs]
    assert kinds == ["stdout", "display", "stdout", "display", "stdout", "display", "stdout"]


def test_logs_in_part_and_as_they_come(cluster: Kernel) -> None:
    cluster.run("%%distributed\nfor i in range(50): print('line', i, 'of', rank)")
    assert cluster.run("%dist logs 1 --tail 2").text == "line 48 of 1\nline 49 of 1\n"
    assert cluster.run("%dist logs 1 --grep 'line 4 '").text == "line 4 of 1\n"
    assert "no regular expression" in cluster.run("%dist logs 1 --grep '['", check=False).seen()
    followed = cluster.start(
        "job = nbdist.cluster().submit('import os, time\\nfor i in range(5):\\n"
        '    print("tick", i, flush=True)\\n'
        '    while not os.path.exists("ticked"): time.sleep(0.05)\')\n'
        "get_ipython().run_line_magic('dist', 'logs 1 -f')"
    )
    cluster.expect("tick 0")
    assert "tick 1" not in followed.text
    assert not followed.done
    (cluster.home / "ticked").touch()
    assert "tick 4" in cluster.wait(60).text


def test_logs_go_on_in_new_files_and_old_ones_go(start_kernel: KernelFactory) -> None:
    limits = {"NBDIST_LOG_MEGABYTES": "0.01", "NBDIST_LOG_GIGABYTES": "0.0001"}
    kernel = start_kernel(env=limits)
    kernel.run("%load_ext nbdist\nimport nbdist")
    kernel.run("%%distributed -np 2 --backend none\nprint('x' * 20_000)")
    kernel.run(
        "slow = nbdist.cluster().submit('import os, time\\nprint(1)\\n'\n"
        "    'while not os.path.exists(\"over\"): time.sleep(0.05)\\nprint(2)', ranks=[1])"
    )
    for number in range(8):
        cell = kernel.run(f"%%distributed --ranks 0\nprint({number}, 'x' * 20_000)")
        assert kernel.run("%dist logs 0").stdout == cell.stdout == f"{number} {'x' * 20_000}\n"
    said = kernel.run("for job in nbdist.jobs():\n    print(job.id, job.folder.exists())").stdout
    kept = [line.endswith("True") for line in said.splitlines()]
    assert kept[1], "a rank still writes there"
    assert not kept[3]
    assert kept[-1]
    gone = kernel.run("%dist logs 0 --job 4", check=False)
    assert "the logs of job 4 have been cleared away" in gone.text
    kernel.run("open('over', 'w').close()\nslow.wait(200)\nprint(repr(slow.output(1)))")
    assert kernel.cell.stdout == "'1\\n2\\n'\n"
    for _ in range(4):
        kernel.run("%%distributed\nprint('x' * 20_000)")
    assert kernel.run("print(slow.folder.exists())").stdout == "False\n"
    left = sum(file.stat().st_size for file in (kernel.home / "logs").rglob("*"))
    assert left < 250_000


def test_a_cell_that_waits_for_busy_ranks_says_so_and_can_be_stopped(cluster: Kernel) -> None:
    cluster.run("slow = nbdist.cluster().submit('import time; time.sleep(600)')")
    try:
        waiting = cluster.start("%%distributed\nprint('late')")
        cluster.expect("The ranks are busy with job", 10)
        cluster.interrupt()
        cluster.wait(5)
        assert "The cell was interrupted" in waiting.seen()
        assert "running" in cluster.run("print(slow.state)").text
    finally:
        cluster.stop()
        cluster.run("slow.cancel()\ntry: slow.wait(100)\nexcept nbdist.errors.Interrupted: pass")
    assert "next" in cluster.run("%%distributed\nprint('next')").text
