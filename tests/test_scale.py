"""`--scale`: the same cell on more and more ranks, and a table of how it went."""

from __future__ import annotations

import re
from array import array
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from nbdist.job.job import Job
from nbdist.job.throughput import scaling
from nbdist.metrics.points_file import Column, Frame, framed, points_file
from nbdist.rank.looking.vitals import where
from nbdist.wire.activity import Pace, Vitals
from nbdist.wire.messages import Pulse
from tests.helpers.faults import shown
from tests.helpers.notebook import complete, on_ranks, plain

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import KernelFactory
    from tests.helpers.cell import Cell
    from tests.helpers.kernel import Kernel

TRAIN = """
    import os, time, torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    size, me = dist.get_world_size(), dist.get_rank()
    model = DistributedDataParallel(torch.nn.Linear(8, 2))
    x = torch.randn(64 // size, 8)
    for _ in nbdist.progress(range(24), "train", samples=len(x)):
        loss = model(x).square().mean()
        time.sleep(0.005 + 0.06 * (me == 1))
        loss.backward()
    print(f"trained on {size}")
"""
HOROVOD = """
    import time, torch, horovod.torch as hvd
    for _ in nbdist.progress(range(24), "meet", samples=64 // hvd.size()):
        time.sleep(0.005 + 0.06 * (hvd.rank() == 1))
        hvd.allreduce(torch.ones(4))
"""


# -- the figures -----------------------------------------------------------------------------------


def job_of(folder: Path, *paces: Pace) -> Job:
    """Return a job that has ended, each of whose ranks has told of these loops."""
    ranks = tuple(range(len(paces)))
    job = Job(id=str(len(paces)), code="", ranks=ranks, folder=folder, number=1)
    for rank, pace in enumerate(paces):
        idle = Pace("outer", 4, 9.0, inner=False)
        paced = [replace(each, place=f"at {each.label}") for each in (idle, pace)]
        job.pulses[rank] = Pulse("1", None, where(0), None, Vitals(0), paces=paced)
    return job


def test_the_figures(tmp_path: Path) -> None:
    one = job_of(tmp_path, Pace("train", 100, 10.0, 6400, 1.0, 0.0))
    two = job_of(
        tmp_path,
        Pace("train", 100, 8.0, 3200, 1.0, 4.0),
        Pace("train", 100, 8.0, 3200, 1.0, 1.0),
    )
    found = scaling([two, one], ["a word"])
    (second, first) = found
    assert first.samples_per_second == pytest.approx(640)
    assert second.samples_per_second == pytest.approx(800)
    assert (first.speed_up, first.efficiency) == (1, 1)
    assert second.speed_up == pytest.approx(1.25)
    assert second.efficiency == pytest.approx(0.625)
    assert (second.step_seconds, second.data) == pytest.approx((0.08, 0.01))
    assert (second.communication, second.compute) == pytest.approx((0.025, 0.045))
    assert second.slowest == 1
    assert second.slower_by == pytest.approx(0.03)
    assert first.slowest is None
    words = repr(found).splitlines()
    assert " ".join(words[1].split()) == "2 800 1.25 63 % 80 45 10 25 1 (+30 ms)"
    assert words[-1] == "a word"
    assert found._repr_html_().count("<tr") == 3
    pandas = pytest.importorskip("pandas")
    assert isinstance(found.to_pandas(), pandas.DataFrame)
    assert list(found.to_pandas().ranks) == [2, 1]


def test_what_cannot_be_told_is_not(tmp_path: Path) -> None:
    alone = job_of(tmp_path, Pace("", 100, 1.0, None, 0.1))
    apart = job_of(tmp_path, Pace("", 9, 1.0, 90, 0.1), Pace("", 9, 1.0, 90, 0.1))
    silent = Job(id="9", code="", ranks=(0, 1, 2), folder=tmp_path, number=1)
    found = scaling([alone, apart, silent], [])
    first, second, third = found
    assert (first.samples_per_second, first.speed_up, first.communication) == (None, None, 0.0)
    assert (second.communication, second.compute, second.speed_up) == (None, None, 1.0)
    assert third.step_seconds is None
    assert [note.partition(":")[0] for note in found.notes] == [
        "Samples are unknown, and so is the speed-up", "On 2 ranks",
        "There are no figures for a cell whose loop nbdist does not see",
    ]  # fmt: skip
    assert [line.count("n/a") for line in repr(found).splitlines()[1:4]] == [3, 2, 7]


def test_a_loop_that_a_rank_lacks_is_none_to_compare(tmp_path: Path) -> None:
    job = job_of(tmp_path, Pace("train", 100, 8.0, 90), Pace("other", 100, 8.0, 90))
    (row,) = scaling([job], [])
    assert row.step_seconds is None


def test_steps_are_known_from_what_was_logged(tmp_path: Path) -> None:
    job = Job(id="7", code="", ranks=(0,), folder=tmp_path, number=1)
    times = array("d", [0.0, 90.0, 100.0, 100.5, 101.0, 101.5])
    steps = array("q", range(6))
    logged = Frame(0, [Column("loss", steps.tobytes(), times.tobytes(), times.tobytes())])
    points_file(tmp_path, "7", 0).write_bytes(framed(logged))
    found = scaling([job], [])
    (row,) = found
    assert (row.step_seconds, row.steps) == (0.5, 2)  # of the last half
    assert row.speed_up is None
    assert found.notes[0].startswith("Steps are what nbdist.log was called for")


# -- series of real runs ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def notebook(notebook: Kernel) -> Kernel:
    """Return the module's kernel, whose new ranks need not import what DDP takes seconds to."""
    notebook.run("%dist preload torch._dynamo")
    return notebook


@pytest.fixture
def loaded(notebook: Kernel) -> Kernel:
    """Return a kernel with nbdist and two ranks, where its cells run if they do not say more."""
    notebook.run("import nbdist, os")
    on_ranks(notebook, "pass", "-np 2 --backend ddp --launcher engines")
    return notebook


def table(kernel: Kernel) -> list[str]:
    """Return the fields of each row of the last job's table."""
    asked = "for row in nbdist.jobs()[-1].scaling: print(row.ranks, row.slowest, row.steps, "
    return kernel.run(
        f"{asked}all([row.samples_per_second, row.speed_up, row.compute, row.data]))"
    ).stdout.splitlines()


def pictures(cell: Cell) -> list[str]:
    """Return the text of each table with a picture that a cell shows."""
    return [
        out.text
        for out in cell.outputs
        if "image/png" in out.data and "efficiency" in out.data["text/html"]
    ]


def test_engines_are_new_at_each_size_and_as_many_as_before_in_the_end(loaded: Kernel) -> None:
    on_ranks(loaded, "%reset -f", "-np 2 --backend ddp")
    on_ranks(loaded, "precious = rank")
    cell = on_ranks(loaded, TRAIN, "--scale 2,1")
    texts = [out.text for out in cell.outputs]
    assert texts[0] == ("The cell gets new ranks for each run. Lost with the old ranks: precious.")
    assert texts.index("On 2 ranks, run 1 of 2:") < texts.index("On 1 rank, run 2 of 2:")
    assert re.findall(r"trained on (\d)", cell.stdout) == ["2", "1"]
    assert any("train: 24 of 24" in text for text in texts)  # its own live metrics
    (told,) = pictures(cell)
    assert told.startswith("ranks  samples/s  speed-up")
    two, one = table(loaded)
    assert re.fullmatch(r"2 1 \d+ True", two)
    assert re.fullmatch(r"1 None \d+ True", one)
    asked = loaded.run("print(nbdist.cluster().np, len(nbdist.cluster().ranks))")
    assert asked.stdout == "2 2\n"
    after = on_ranks(loaded, "print(world_size, 'precious' in globals())")
    assert after.stdout == "2 False\n"


def test_without_a_cluster_there_is_none_afterwards(
    start_kernel: KernelFactory, without_torch: dict[str, str]
) -> None:
    kernel = start_kernel(env=without_torch)
    kernel.run("%load_ext nbdist\nimport nbdist")
    on_ranks(kernel, "for _ in nbdist.progress(range(3)): pass", "--scale 1 --backend none")
    refused = kernel.run("%dist status", check=False)
    assert "there is no cluster yet" in shown(refused)


def test_torchruns_jobs_leave_the_cluster_alone(loaded: Kernel) -> None:
    on_ranks(loaded, "here = 1", "-np 2 --launcher engines")
    on_ranks(loaded, TRAIN, "--launcher torchrun --scale 1,2 --env OMP_NUM_THREADS=1")
    one, two = table(loaded)
    assert re.fullmatch(r"1 None \d+ True", one)
    assert re.fullmatch(r"2 1 \d+ True", two)
    still = on_ranks(loaded, "print(world_size, here)", "--launcher engines")
    assert still.stdout == "2 1\n"


@pytest.mark.horovod
def test_horovodruns_jobs(loaded: Kernel) -> None:
    on_ranks(loaded, HOROVOD, "--backend horovod --launcher horovodrun --scale 1,2")
    assert [row.split()[:2] for row in table(loaded)] == [["1", "None"], ["2", "1"]]


def test_a_run_that_fails_ends_the_series_with_what_there_is(loaded: Kernel) -> None:
    failed = on_ranks(
        loaded,
        """
        for _ in nbdist.progress(range(3), samples=1): pass
        if rank == 1: raise ValueError("no two")
        """,
        "--backend ddp --launcher engines --scale 1,2,3",
        check=False,
    )
    assert "ValueError: no two" in plain(shown(failed))
    assert "On 3 ranks" not in shown(failed)
    assert len(pictures(failed)) == 1
    assert len(table(loaded)) == 1


def test_an_interrupt_ends_the_series_and_keeps_the_size(loaded: Kernel) -> None:
    on_ranks(loaded, "pass", "-np 2 --backend ddp --launcher engines")
    cell = loaded.start(
        "%%distributed --scale 1,3\nimport time\n"
        "for _ in nbdist.progress(range(3), samples=1): pass\n"
        "print('at', world_size)\n"
        "while world_size == 3: time.sleep(0.1)"
    )
    loaded.expect("at 3", 60, cell)
    loaded.interrupt()
    loaded.wait(60, cell)
    assert not cell.ok
    assert "Interrupted" in shown(cell)
    assert "3 ranks on" in shown(cell) or "cores" not in shown(cell)
    assert len(pictures(cell)) == 1
    assert on_ranks(loaded, "print(world_size)").stdout == "2\n"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--scale 0,1", "at least one rank"),
        ("--scale 1,2,1", "names a number of ranks twice"),
        ("--scale two", "is not a list of numbers of ranks such as 1,2,4"),
        ("--scale 1,-2", "is not a list of numbers"),
        ("--scale 1,99999999", "that many ranks need"),
        ("--scale 1,2 --detach", "leave out --detach"),
        ("--scale 1,2 --async", "leave out --async"),
        ("--scale 1,2 --ranks 0", "leave out --ranks"),
        ("--scale 1,2 --save x.py", "leave out --save"),
        ("--scale 1,2 -np 2", "leave out -np"),
        ("--scale 1,2 --launcher engines --cold", "--cold is for scripts"),
        ("--scale 1,3 --launcher torchrun -H localhost:2", "the hosts have 2 slots"),
    ],
)
def test_what_cannot_be_is_told_before_anything_starts(
    loaded: Kernel, flags: str, words: str
) -> None:
    before = loaded.run("print(len(nbdist.jobs()), os.path.exists('x.py'))").stdout
    refused = on_ranks(loaded, "pass", flags, check=False)
    assert words in shown(refused)
    assert "new ranks" not in shown(refused)
    assert loaded.run("print(len(nbdist.jobs()), os.path.exists('x.py'))").stdout == before


def test_help_and_tab_know_it(loaded: Kernel) -> None:
    assert "--scale 1,2,4" in loaded.run("%distributed -h").stdout
    assert complete(loaded, "%%distributed --sc") == ["--scale"]


def test_a_function_may_be_scaled_too(loaded: Kernel) -> None:
    body = "\n".join(TRAIN.splitlines())
    loaded.run(f"def train():\n{body}\n    return size")
    asked = loaded.run("found = nbdist.scale(train, np=(1, 2))\nprint(found)")
    assert re.findall(r"trained on (\d)", asked.stdout) == ["1", "2"]
    rows = loaded.run("print([row.ranks for row in found], found[1].slowest, len(found))")
    assert rows.stdout == "[1, 2] 1 2\n"
    refused = loaded.run("nbdist.scale(train, np=(2, 2))", check=False)
    assert "must be different numbers of ranks" in shown(refused)
