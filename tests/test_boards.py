"""`%dist tensorboard`, and what else takes a job's metrics out of the notebook."""

from __future__ import annotations

import csv
import json
import re
import socket
import urllib.error
import urllib.request
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pandas as pd
import psutil
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from nbdist.metrics.job_metrics import Metrics
from nbdist.metrics.tensorboard_events import Events
from nbdist.rank.metrics import logger as rank_metrics
from tests.helpers.notebook import on_ranks
from tests.helpers.processes import family, runs, sockets
from tests.helpers.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.helpers.kernel import Kernel

LOG = "import nbdist\nfor i in range(5): nbdist.log({'train/loss': i + rank}, step=i)"


def opened(kernel: Kernel, flags: str = "") -> str:
    """Open TensorBoard in a notebook; return where it says that it is."""
    cell = kernel.run(f"%dist tensorboard {flags}")
    found = re.search(r"http://127\.0\.0\.1:\d+/", cell.text)
    assert found, cell.seen()
    assert f'<iframe src="{found[0]}"' in cell.mime("text/html")[0]
    return found[0]


def scalars(url: str, run: str) -> list[tuple[int, float]]:
    """Return the steps and values TensorBoard has of ``train/loss``."""
    where = f"{url}data/plugin/scalars/scalars?tag=train%2Floss&run={run}"
    try:
        with urllib.request.urlopen(where) as answer:  # noqa: S310  # it is ours
            return [(step, value) for _, step, value in json.load(answer)]
    except urllib.error.HTTPError as err:  # it has not seen that run yet
        err.close()
        return []


def board_of(kernel: Kernel, url: str) -> psutil.Process:
    """Return the process that listens there, and nowhere else."""
    port = int(url.rstrip("/").rpartition(":")[2])
    for process in family(kernel):
        listening = [c.laddr for c in sockets(process) if c.status == psutil.CONN_LISTEN]
        if port in [address.port for address in listening]:
            assert [tuple(address) for address in listening] == [("127.0.0.1", port)]
            return process
    raise AssertionError(f"nobody listens at {url}")


def folders(kernel: Kernel) -> list[Path]:
    return list(kernel.home.glob("logs/*/tensorboard-*"))


def test_a_job_in_tensorboard_from_its_first_values_to_the_stop(notebook: Kernel) -> None:
    on_ranks(notebook, LOG)
    on_ranks(notebook, "pass")
    url = opened(notebook)
    until(lambda: scalars(url, "rank0") == [(i, i) for i in range(5)])
    until(lambda: scalars(url, "rank1") == [(i, i + 1) for i in range(5)])
    assert opened(notebook) == url, "it is found again"
    process = board_of(notebook, url)
    assert len(folders(notebook)) == 1
    assert "ended for job" in notebook.run("%dist tensorboard --stop").stdout
    assert not process.is_running()
    assert folders(notebook) == []
    assert "No TensorBoard" in notebook.run("%dist tensorboard --stop").stdout


def test_a_job_that_runs_grows_in_tensorboard(notebook: Kernel) -> None:
    more = notebook.home / "more"
    body = f"""
        import nbdist, pathlib, time
        nbdist.log({{"train/loss": 1.0}})
        while not pathlib.Path({str(more)!r}).exists():
            time.sleep(0.05)
        nbdist.log({{"train/loss": 2.0}})
    """
    on_ranks(notebook, body, "--async")
    notebook.run("job = _; import time\nwhile not job.metrics.names: time.sleep(0.05)")
    job = notebook.run("print(job.id)").stdout.strip()
    url = opened(notebook, job)
    until(lambda: scalars(url, "rank0") == [(0, 1)])
    more.touch()
    until(lambda: scalars(url, "rank0") == [(0, 1), (1, 2)])
    notebook.run(f"job.wait()\n%dist tensorboard --stop {job}")
    assert folders(notebook) == []


@contextmanager
def taken_port() -> Iterator[int]:
    """Take a port that the system gives to nobody who asks for any: later it is free."""
    with socket.socket() as taken:
        for port in range(20_000, 30_000):
            with suppress(OSError):
                taken.bind(("127.0.0.1", port))
                break
        taken.listen()
        yield taken.getsockname()[1]


def test_what_tensorboard_cannot_do_is_said(notebook: Kernel) -> None:
    on_ranks(notebook, LOG)
    with taken_port() as port:
        cell = notebook.run(f"%dist tensorboard --port {port}", check=False)
    assert f"port {port}" in cell.error
    assert "already in use" in cell.error
    assert folders(notebook) == []
    assert opened(notebook, f"--port {port}").endswith(f":{port}/")
    notebook.run("%dist tensorboard --stop")
    assert "is not a port" in notebook.run("%dist tensorboard --port x", check=False).error
    on_ranks(notebook, "pass")
    last = notebook.run("import nbdist; print(nbdist.jobs()[-1].id)").stdout.strip()
    cell = notebook.run(f"%dist tensorboard {last}", check=False)
    assert f"job {last} has ended and logged nothing" in cell.error
    notebook.run("import sys; sys.modules['tensorboard'] = None")
    cell = notebook.run("%dist tensorboard", check=False)
    assert "tensorboard is not installed" in cell.error
    assert "pip install" in cell.error
    notebook.run("del sys.modules['tensorboard']")


def test_tensorboard_needs_a_job_that_has_logged_and_ends_with_a_kernel_that_is_killed(
    kernel: Kernel,
) -> None:
    kernel.run("%load_ext nbdist")
    on_ranks(kernel, "pass", "-np 1 --backend none")
    assert "no job has logged anything" in kernel.run("%dist tensorboard", check=False).error
    on_ranks(kernel, LOG)
    process = board_of(kernel, opened(kernel))
    gone = kernel.home / "gone"
    child = f"""
import os, pathlib, time
if not os.fork():
    while not pathlib.Path({str(gone)!r}).exists():
        time.sleep(0.1)
    os._exit(0)
"""
    kernel.run(child)  # it holds whatever is open here
    kernel.sigkill()
    try:
        until(lambda: not runs(process))
    finally:
        gone.touch()
    assert folders(kernel) == []


@pytest.fixture
def logged(tmp_path: Path) -> Metrics:
    """Return the metrics of two ranks, the second of which was started anew at step 3."""
    for rank, start, steps in ((0, 0, range(5)), (1, 0, range(5)), (1, 1, range(3, 6))):
        rank_metrics.begin(str(tmp_path), "7", rank, start)
        for step in steps:
            rank_metrics.log(loss=10 * start + step, step=step)
        rank_metrics.end()
    return Metrics(tmp_path, "7", (0, 1))


def test_tensorboard_forgets_what_a_rank_does_again(logged: Metrics, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    events = Events(tmp_path, "7", runs)
    events.read(lambda: True)
    events.read(lambda: False)
    found = EventAccumulator(str(runs / "rank1")).Reload().Scalars("loss")
    assert [(e.step, e.value) for e in found] == [(0, 0), (1, 1), (2, 2), (3, 13), (4, 14), (5, 15)]
    assert len(EventAccumulator(str(runs / "rank0")).Reload().Scalars("loss")) == 5


def test_metrics_as_a_frame_and_as_a_file(logged: Metrics, tmp_path: Path) -> None:
    frame = logged.to_pandas()
    assert list(frame.columns) == ["name", "rank", "step", "time", "value"]
    # The second try replaces the first from its first step on, also on the rank that is not in it.
    assert frame.groupby("rank")["value"].sum().to_dict() == {0: 3, 1: 45}
    assert str(frame["time"].dt.tz) == "UTC"
    assert (pd.Timestamp.now("UTC") - frame["time"]).abs().max() < pd.Timedelta(minutes=5)
    path = logged.to_csv(tmp_path / "all.csv")
    with path.open(newline="") as file:
        rows: list[dict[str, Any]] = list(csv.DictReader(file))
    assert [(row["rank"], row["step"], float(row["value"])) for row in rows[-2:]] == [
        ("1", "4", 14.0),
        ("1", "5", 15.0),
    ]
    again = pd.read_csv(path)
    assert again["value"].tolist() == frame["value"].tolist()
