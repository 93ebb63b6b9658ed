"""`nbdist.compare`: the same training in different ways, in one table."""

from __future__ import annotations

import time
from array import array
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

import nbdist
from nbdist.errors import LaunchError, UsageError
from nbdist.job.job import Job
from nbdist.job.throughput import comparison, measured
from nbdist.launchers.scripts import horovodrun
from nbdist.metrics.points_file import Column, Frame, framed, points_file
from nbdist.rank.looking.vitals import where
from nbdist.rank.metrics import pace, progress
from nbdist.widgets.comparison_picture import Compared
from nbdist.wire.activity import Pace, Vitals
from nbdist.wire.messages import Pulse
from tests.helpers.faults import shown
from tests.helpers.notebook import on_ranks, plain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.helpers.kernel import Kernel


# -- the figures -----------------------------------------------------------------------------------


def job_of(folder: Path, name: str, *paces: Pace, **last: float) -> Job:
    """Return a job that has ended well; its ranks tell of these loops and log these values."""
    ranks = tuple(range(len(paces)))
    job = Job(id=name, code="", ranks=ranks, folder=folder, number=1, state="done")
    for rank, each in enumerate(paces):
        paced = replace(each, place=each.place or f"at {each.label}")
        job.pulses[rank] = Pulse(name, None, where(0), None, Vitals(0), paces=[paced])
        columns = [
            Column(
                metric, numbers("q", [1, 2]), numbers("d", [3.0, 3.0]),
                numbers("d", [9.0, value + rank]),
            )
            for metric, value in last.items()
        ]  # fmt: skip
        points_file(folder, name, rank).write_bytes(framed(Frame(0, columns)))
    return job


def of_paces(folder: Path, *paces: list[Pace]) -> Job:
    """Return a job whose ranks tell of several loops each."""
    job = Job(id="9", code="", ranks=tuple(range(len(paces))), folder=folder, number=1)
    for rank, each in enumerate(paces):
        job.pulses[rank] = Pulse("9", None, where(0), None, Vitals(0), paces=each)
    return job


def numbers(kind: str, values: list[Any]) -> bytes:
    """Return them as they travel."""
    return array(kind, values).tobytes()


def test_the_figures(tmp_path: Path) -> None:
    one = job_of(tmp_path, "1", Pace("t", 100, 10.0, 6400, 1.0, 0.0, True, 4, 2.5), acc=0.5, b=1)
    two = job_of(
        tmp_path, "2",
        Pace("t", 100, 8.0, 3200, 1.0, 4.0, True, 4, 2.0),
        Pace("t", 100, 8.0, 3200, 1.0, 1.0, True, 4, 2.25), acc=0.25,
    )  # fmt: skip
    found = comparison({"one process": one, "DDP": two}, None, ["a word"])
    assert found.way("DDP").pace.speed_up == pytest.approx(1.25)
    assert found.way("DDP").pace.epoch_seconds == 2.25  # the slowest rank's
    assert found.way("DDP").metrics == {"acc": 0.75}  # the mean over ranks
    assert found.metrics == ["acc"]  # what all have
    words = [" ".join(line.split()) for line in repr(found).splitlines()]
    assert words[1] == "one process 1 640 1 2.5 100 90 10 0 0.5"
    assert words[2] == "DDP 2 800 1.25 2.25 80 45 10 25 0.75"
    assert words[3:] == ["a word"]
    assert found._repr_html_().count("<tr") == 3
    pandas = pytest.importorskip("pandas")
    frame = found.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame.index) == ["one process", "DDP"]
    assert frame.loc["DDP", "acc"] == 0.75


def test_what_cannot_be_told_is_not(tmp_path: Path) -> None:
    known = job_of(tmp_path, "1", Pace("t", 100, 10.0, 6400, 1.0, 0.0), acc=0.5)
    silent = Job(id="2", code="", ranks=(0, 1), folder=tmp_path, number=1, state="done")
    found = comparison({"known": known, "silent": silent}, ["acc"], [])
    assert repr(found).splitlines()[1].split().count("n/a") == 1  # s/epoch: never through
    assert repr(found).splitlines()[2].split().count("n/a") == 8
    assert found.notes[0].startswith(
        "silent: There are no figures for a cell whose loop nbdist does not see"
    )
    assert comparison({"a": known, "b": silent}, None, []).metrics == []


def test_an_evaluation_within_is_not_the_training(tmp_path: Path) -> None:
    epochs = Pace("epochs", 10, 9.0, inner=False, place="a")
    train = Pace("train", 100, 8.0, 400, 0.1, inner=False, place="b", outer="a")
    within = Pace("val", 100, 2.0, 9000, place="c", outer="b")
    after = Pace("test", 100, 1.0, 900, place="d", outer="a")
    row, told = measured(of_paces(tmp_path, [epochs, train, within, after]))
    assert row.samples_per_second == pytest.approx(50)
    assert told == ["The figures are those of the loop train."]
    # An outer loop of a few steps has the training within, whatever its items are.
    folds = Pace("folds", 5, 9.0, 500, inner=False, place="a")
    inner = Pace("train", 100, 8.0, 400, place="b", outer="a")
    row, told = measured(of_paces(tmp_path, [folds, inner]))
    assert row.samples_per_second == pytest.approx(50)
    assert told == ["The figures are those of the loop train."]
    # Parts of a batch are no steps.
    batches = Pace("", 100, 8.0, 400, inner=False, place="x.py:3")
    parts = Pace("", 400, 7.0, 400, place="x.py:4", outer="x.py:3")
    row, told = measured(of_paces(tmp_path, [batches, parts]))
    assert row.step_seconds == pytest.approx(0.08)
    assert told == ["The figures are those of the loop x.py:3."]


def test_ranks_are_compared_by_the_loop_that_all_have(tmp_path: Path) -> None:
    train = Pace("", 100, 1.0, 400, place="x.py:3")
    only_zero = Pace("", 100, 9.0, 9000, place="x.py:7")
    row, _ = measured(of_paces(tmp_path, [train, only_zero], [train]))
    assert row.samples_per_second == pytest.approx(800)
    row, told = measured(of_paces(tmp_path, [only_zero], [train]))
    assert row.samples_per_second is None
    assert told == ["There are no figures: no loop is at the same place on all ranks."]


def test_passes_of_different_length_tell_no_epoch(tmp_path: Path) -> None:
    mixed = Pace("t", 100, 8.0, 400, 0.1, place="a", passes=4, pass_seconds=2.0, uneven=True)
    row, told = measured(of_paces(tmp_path, [mixed]))
    assert row.epoch_seconds is None
    assert "far more items than others" in told[0]


def test_the_last_value_of_a_metric_is_what_was_logged_last(tmp_path: Path) -> None:
    job = job_of(tmp_path, "1", Pace("t", 100, 10.0, 6400), steps=0.0)
    columns = [
        Column("steps", numbers("q", [9, 1]), numbers("d", [3.0, 4.0]), numbers("d", [5.0, 0.5]))
    ]
    points_file(tmp_path, "1", 0).write_bytes(framed(Frame(0, columns)))
    found = comparison({"a": job}, ["steps", "acc"], [])
    assert found.way("a").metrics == {"steps": 0.5}
    assert found.notes == ["No run has logged 'acc'; logged metrics: steps."]
    pytest.importorskip("pandas")
    assert found.to_pandas().loc["a", "steps (metric)"] == 0.5
    assert found.to_pandas().loc["a", "steps"] == 100


def test_it_says_so_where_steps_are_of_other_sizes(tmp_path: Path) -> None:
    small = job_of(tmp_path, "1", Pace("t", 100, 10.0, 6400, 1.0, 0.0))
    large = job_of(tmp_path, "2", *2 * [Pace("t", 100, 10.0, 6400, 1.0, 0.0)])
    found = comparison({"small": small, "large": large}, None, [])
    told = "These are not the same training, since samples per step differ: small 64, large 128."
    assert found.notes == [told]


def test_a_notebook_shows_it_with_a_picture(tmp_path: Path) -> None:
    one = job_of(tmp_path, "1", Pace("t", 100, 10.0, 6400, 1.0, 0.0, True, 4, 2.5), acc=0.5)
    silent = Job(id="2", code="", ranks=(0,), folder=tmp_path, number=1, state="done")
    shown_as = comparison({"a long name of a way that goes on": one, "silent": silent}, None, [])
    data, _ = Compared(shown_as.rows, [], shown_as.metrics)._repr_mimebundle_()
    assert data["text/html"].count("<img ") == 1
    assert "<b>" not in data["text/html"]
    assert data["image/png"]
    nothing, _ = Compared(shown_as.rows[1:])._repr_mimebundle_()
    assert "image/png" not in nothing


# -- passes through a loop -------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _no_loops() -> Iterator[None]:
    progress.end()
    yield
    progress.end()


def loops_of(epochs: int, items: list[int] | Iterator[int]) -> Pace:
    """Go through items so often, and return what the loop tells."""
    for _ in range(epochs):
        for _ in progress.progress(items, samples=1):
            pass
    (found,) = pace.paces()
    return found


@pytest.mark.parametrize(("epochs", "passes"), [(1, 1), (3, 2)])
def test_an_epoch_is_a_whole_pass_and_the_first_counts_only_alone(epochs: int, passes: int) -> None:
    assert loops_of(epochs, [1, 2]).passes == passes


def test_what_starts_a_loader_is_part_of_an_epoch_and_waited_for() -> None:
    class Slow(list[int]):
        def __iter__(self) -> Iterator[int]:
            time.sleep(0.05)
            return super().__iter__()

    found = loops_of(2, Slow([1, 2]))
    assert found.pass_seconds >= 0.05
    assert found.waited >= 0.05


def test_one_loop_for_training_and_evaluation_is_two_where_it_is_called_from_two_lines() -> None:
    def run(items: list[int]) -> None:
        for _ in progress.progress(items, samples=1):
            pass

    for _ in range(3):
        run([1, 2, 3, 4])
        run([1, 2])
    assert [(found.passes, found.uneven) for found in pace.paces()] == [(2, False), (2, False)]
    for items in ([1, 2, 3, 4], [1, 2]):
        run(items)
    assert pace.paces()[2].uneven


def test_a_loop_of_unknown_length_that_ends_was_a_pass() -> None:
    assert loops_of(1, iter([1, 2])).passes == 1


def test_a_loop_that_is_left_is_none() -> None:
    for _ in progress.progress([1, 2, 3], samples=1):
        break
    for _ in progress.progress([], samples=1):
        pass
    assert all(found.passes == 0 for found in pace.paces())


def test_a_bar_through_several_epochs_tells_each() -> None:
    loop = progress.open_loop("train", 4, 2)
    loop.end_pass(whole=True)  # it began in the middle of one
    loop.begin_pass()
    loop.end_pass(whole=False)  # it was left
    loop.count(3)
    loop.end()
    (found,) = pace.paces()
    assert found.passes == 0
    whole = progress.open_loop("whole", 4)
    for _ in range(2):
        whole.begin_pass()
        whole.count(whole.done + 2)
        whole.end_pass(whole=True)
    whole.end()
    assert pace.paces()[1].passes == 1  # the first does not count


# -- what cannot be --------------------------------------------------------------------------------


def test_what_cannot_be_is_told_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = Job(id="7", code="", ranks=(0,), folder=tmp_path, number=1, state="failed")
    call: Any = nbdist.Call  # as people may call it
    good = nbdist.Call(print, np=1)
    for ways, words in (
        ({}, "compare takes a dict of names and calls or jobs"),
        ([good], "compare takes a dict of names and calls or jobs"),
        ({1: good}, "1 is given as a name, but is not a string"),
        ({"a": call(None, np=1)}, "None is not a function"),
        ({"a": nbdist.Call(print, (i for i in ""), np=1)}, "cannot be sent"),
        ({"a": nbdist.Call(print, launcher="python", backend="none")}, "python is for cells"),
        ({"a": call(print, np="2")}, "np='2' is not a number of ranks"),
        ({"a": call(print, timeout="3")}, "timeout=3 is not a number of seconds"),
        ({"a": good, "b": print}, "b is <built-in function print>: give an nbdist.Call, or a job"),
        ({"a": good, "b": failed}, "b: job 7 is failed, so it has no figures"),
        ({"a": good, "b": nbdist.Call(print, np=0)}, "at least one rank"),
        ({"a": good, "b": nbdist.Call(print, launcher="pigeon")}, "unknown launcher 'pigeon'"),
    ):
        with pytest.raises(UsageError, match=words):
            nbdist.compare(ways)  # type: ignore[arg-type]  # what a person may give

    def missing(torch: str) -> None:
        raise LaunchError(f"there is no Horovod beside {torch}")

    monkeypatch.setattr(horovodrun, "check", missing)
    with pytest.raises(LaunchError, match="there is no Horovod"):
        nbdist.compare({"a": good, "b": nbdist.Call(print, np=2, backend="horovod")})


# -- real runs -------------------------------------------------------------------------------------

TRAIN = """
def train(way, rate=0.1):
    import torch
    import torch.distributed as dist
    import nbdist

    torch.manual_seed(0)
    model, rank, size = torch.nn.Linear(8, 1), 0, 1
    if way == "ddp":
        rank, size = dist.get_rank(), dist.get_world_size()
        model = torch.nn.parallel.DistributedDataParallel(model)
    elif way == "horovod":
        import horovod.torch as hvd
        rank, size = hvd.rank(), hvd.size()
    elif way == "parallel":
        model = torch.nn.DataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    if way == "horovod":
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    x = torch.arange(256.0).reshape(32, 8) / 256
    for epoch in range(4):
        parts = [each[rank::size] for each in x.split(4)] * 2
        for part in nbdist.progress(parts, samples=len(parts[0])):
            loss = (model(part) - 1).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    if way == "fails":
        raise ValueError("no way")
    nbdist.log(loss=loss)
    print("trained by", way)
"""


@pytest.fixture(scope="module")
def trainer(shared_kernel: Kernel) -> Kernel:
    """Return a kernel that knows how to train."""
    shared_kernel.run(
        f"import nbdist, os\nfrom nbdist import Call\nos.environ['OMP_NUM_THREADS'] = '1'{TRAIN}"
    )
    # Each optimizer imports it for its first step, which takes seconds.
    shared_kernel.run("nbdist.preload('torch._dynamo')", 120)
    return shared_kernel


def test_one_process_data_parallel_and_ddp(trainer: Kernel) -> None:
    cell = trainer.run("""
        found = nbdist.compare({
            "one process": Call(train, "plain", np=1, backend="none"),
            "DataParallel": Call(train, "parallel", np=1, backend="none"),
            "DDP": Call(train, "ddp", np=2),
        })
        found
    """)
    lines = cell.stdout.splitlines()
    assert lines[0] == "one process (1 of 3):"
    assert lines[-2:] == ["DDP (3 of 3):", "trained by ddp"]
    (table,) = [out for out in cell.outputs if "image/png" in out.data]
    rows = [" ".join(line.split()) for line in table.text.splitlines()]
    assert rows[0].endswith("communication loss")
    assert rows[1].startswith("one process 1 ")
    assert rows[3].startswith("DDP 2 ")
    assert "n/a" not in table.text
    # It was the same training each time.
    asked = trainer.run("print([round(way.metrics['loss'], 4) for way in found])")
    assert len(set(asked.stdout.strip("[]\n").split(", "))) == 1, asked.stdout
    again = trainer.run("print(nbdist.compare({'a': nbdist.jobs()[-3], 'b': nbdist.jobs()[-1]}))")
    assert "trained" not in again.stdout  # nothing ran
    assert again.stdout.splitlines()[2].split()[:2] == ["b", "2"]
    other = trainer.run("print(nbdist.compare({'a': nbdist.jobs()[-3]}, metrics='los'))")
    assert "No run has logged 'los'; logged metrics: loss." in other.stdout


@pytest.mark.horovod
def test_horovods_way(trainer: Kernel) -> None:
    cell = trainer.run("""
        print(nbdist.compare({
            "one process": Call(train, "plain", np=1, backend="none"),
            "Horovod": Call(train, "horovod", np=2, backend="horovod"),
        }))
    """)
    one, two = (line.split() for line in cell.stdout.splitlines()[-2:])
    assert one[-1] == two[-1]


def test_cells_that_have_run_are_compared(trainer: Kernel) -> None:
    trainer.run("%load_ext nbdist")
    on_ranks(trainer, "train('ddp')", "-np 2 --backend ddp --launcher engines")
    on_ranks(trainer, "train('ddp', rate=0.2)")
    asked = trainer.run(
        "first, second = nbdist.jobs()[-2:]\nprint(nbdist.compare({'0.1': first, '0.2': second}))"
    )
    title, first, second, *notes = asked.stdout.splitlines()
    assert "loss" in title
    assert (first.split()[:2], second.split()[:2]) == (["0.1", "2"], ["0.2", "2"])
    assert first.split()[-1] != second.split()[-1]
    assert notes == []


def test_what_was_before_a_way_that_fails_is_shown(trainer: Kernel) -> None:
    failed = trainer.run(
        "nbdist.compare({'well': Call(train, 'plain', np=1, backend='none'), "
        "'badly': Call(train, 'fails', np=1, backend='none')})",
        check=False,
    )
    told = plain(shown(failed))
    assert "ValueError: no way" in told
    assert "badly (2 of 2):" in told
    assert "well      1" in told
