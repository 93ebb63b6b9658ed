"""Real clusters and jobs as the sidebar's server sees and steers them."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from tornado.httpclient import HTTPClientError

from tests.helpers.faults import shown
from tests.helpers.notebook import distributed, on_ranks
from tests.helpers.states import get, post
from tests.helpers.waiting import Deadline, allowed
from tests.test_detach import detach

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import KernelFactory
    from tests.helpers.kernel import Kernel
    from tests.helpers.states import Fetch

LOOP = """
import time
import nbdist
for step in nbdist.progress(range(100_000), label="train"):
    nbdist.log(loss=1 / (step + 1))
    time.sleep(0.01)
"""


@pytest.fixture
def jp_server_config(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Load the extension."""
    monkeypatch.setenv("NBDIST_PAGE", "")  # the extension sets it
    return {"ServerApp": {"jpserver_extensions": {"nbdist.server": True}}}


@pytest.fixture
def jp_runtime_dir(scratch: Path) -> Path:
    """Share the kernels' runtime folder, as the server that started them does."""
    return scratch / "runtime"


async def seen(fetch: Fetch, pid: int, holds: Callable[[Any], object], seconds: float = 20) -> Any:
    """Return how a process shows itself as soon as something holds of that."""
    deadline = Deadline(seconds)
    while True:
        state = await get(fetch, "state")
        told = next((each for each in state["processes"] if each["pid"] == pid), None)
        if told is not None and holds(told):
            return told
        assert not deadline.over, [e["jobs"] for e in state["processes"]]
        await asyncio.sleep(0.05)


@pytest.fixture
def engines(notebook: Kernel) -> Kernel:
    """Return the module's notebook; its cells run on ranks that stay, whatever was chosen last."""
    on_ranks(notebook, "pass", "--launcher engines")
    return notebook


def job_that_runs(told: Any) -> Any:
    """Return the job that runs."""
    return next((job for job in told["jobs"] if job["state"] == "running"), None)


async def test_a_running_loop_is_followed_and_interrupted(jp_fetch: Fetch, engines: Kernel) -> None:
    cell = engines.start(distributed(LOOP))

    def goes_on(told: Any) -> bool:
        job = job_that_runs(told)
        if not (job and job.get("bars") and job["bars"][0]["done"] > 20 and job["metrics"]):
            return False
        # Rank 1's last pulse may be of before its first line.
        ranks = [*told["clusters"][0]["ranks"], *job["ranks"]]
        return all(rank["words"].startswith("line ") for rank in ranks)

    told = await seen(jp_fetch, engines.pid, goes_on)
    job, (cluster,) = job_that_runs(told), told["clusters"]
    assert (cluster["np"], cluster["backend"], cluster["launcher"]) == (2, "ddp", "engines")
    assert job["cluster"] == cluster["id"]
    assert job["bars"][0]["label"] == "train"
    assert job["bars"][0]["total"] == 100_000
    assert 0 < job["metrics"]["loss"] < 1
    for ranks in (cluster["ranks"], job["ranks"]):
        assert [rank["state"] for rank in ranks] == ["busy", "busy"]
        assert all(rank["words"].startswith("line ") for rank in ranks)
        assert all(rank["memory"] > 1e6 for rank in ranks)
    more = await seen(
        jp_fetch, engines.pid,
        lambda told: job_that_runs(told)["bars"][0]["done"] > job["bars"][0]["done"],
    )  # fmt: skip
    await post(jp_fetch, "processes", more["id"], "interrupt", job=job["id"])
    engines.wait(20, cell)
    assert "The cell was interrupted." in shown(cell)
    told = await seen(jp_fetch, engines.pid, lambda told: not job_that_runs(told))
    assert told["jobs"][-1]["state"] == "interrupted"
    assert [rank["words"] for rank in told["clusters"][0]["ranks"]] == ["idle", "idle"]


async def test_stacks_of_a_hang_show_where_each_rank_is(jp_fetch: Fetch, engines: Kernel) -> None:
    body = """
        import time, torch.distributed as dist
        if rank == 0:
            dist.barrier()
        else:
            time.sleep(1000)
        """
    cell = engines.start(distributed(body))
    told = await seen(
        jp_fetch, engines.pid,
        lambda told: "in barrier for" in told["clusters"][0]["ranks"][0]["words"],
    )  # fmt: skip
    route = "processes", told["id"]
    for whose in ({"cluster": told["clusters"][0]["id"]}, {"job": job_that_runs(told)["id"]}):
        stacks = (await post(jp_fetch, *route, "stacks", **whose))["stacks"]
        cell_line = r'File "Cell In\[\d+\]", line {}, in <module>\n +{}'
        assert re.search(cell_line.format(4, r"dist\.barrier\(\)"), stacks["0"])
        assert re.search(cell_line.format(6, r"time\.sleep\(1000\)"), stacks["1"])
    with pytest.raises(HTTPClientError) as caught:  # or it would be replaced at some later time
        await post(jp_fetch, *route, "restart", cluster=told["clusters"][0]["id"], rank=1)
    assert caught.value.code == 409
    await post(jp_fetch, *route, "interrupt", job=job_that_runs(told)["id"])
    engines.wait(20, cell)


RACES = """
import os, threading, time
import nbdist, psutil
from nbdist.errors import NbdistError

def processes():
    return len([p for p in psutil.Process().children(recursive=True) if p.status() != "zombie"])

def all_of_us():
    return set(psutil.Process().children(recursive=True))

before = processes()
cluster = nbdist.Cluster(2, backend="none")
long, short = cluster.submit("import time; time.sleep(600)"), cluster.submit("1")
short.cancel()
print("out of the queue:", short.until_end(100), short.state)
os.kill(cluster.hub.host.warm.pid, 9)
long.until_end(100)
renewing = threading.Thread(target=cluster.restart)
there = all_of_us()
renewing.start()
while renewing.is_alive() and all_of_us() <= there:
    time.sleep(0.005)
cluster.stop()
renewing.join(100)
limit = time.monotonic() + 100
while processes() > before and time.monotonic() < limit:
    time.sleep(0.05)
print("left:", processes() - before)
try:
    cluster.restart()
except NbdistError as err:
    print(err)
"""


def test_a_cluster_that_is_stopped_while_another_thread_starts_it_anew_is_gone(
    notebook: Kernel, without_torch: dict[str, str]
) -> None:
    # It needs no torch, which each of its warm processes would import for seconds.
    notebook.run(f"import os\nkept = dict(os.environ)\nos.environ.update({without_torch})")
    cell = notebook.run(RACES, check=False)
    notebook.run("os.environ.clear()\nos.environ.update(kept)")
    told = cell.stdout
    assert cell.ok, cell.seen()
    assert "out of the queue: True interrupted" in told
    assert "left: 0" in told
    assert "this cluster was stopped" in told


async def test_a_dead_rank_is_shown_and_replaced(jp_fetch: Fetch, engines: Kernel) -> None:
    on_ranks(engines, "kept = 1")
    told = await seen(jp_fetch, engines.pid, lambda _: True)
    (cluster,) = told["clusters"]
    os.kill(cluster["ranks"][1]["pid"], signal.SIGKILL)
    dead = await seen(
        jp_fetch, engines.pid, lambda told: told["clusters"][0]["ranks"][1]["state"] == "dead"
    )
    assert dead["clusters"][0]["ranks"][1]["words"] == "was killed by SIGKILL"
    answer = await post(jp_fetch, "processes", told["id"], "restart", cluster=cluster["id"], rank=1)
    assert "kept" in answer["lacks"]
    told = await seen(
        jp_fetch, engines.pid, lambda told: told["clusters"][0]["ranks"][1]["state"] == "idle"
    )
    assert told["clusters"][0]["ranks"][1]["pid"] != cluster["ranks"][1]["pid"]
    assert on_ranks(engines, "print(world_size)").stdout == "2\n"


async def test_a_rank_ended_by_a_signal_without_a_name_is_told_of(
    jp_fetch: Fetch, engines: Kernel
) -> None:
    cell = on_ranks(engines, "import os\nif rank:\n    os.kill(os.getpid(), 40)", check=False)
    assert "Rank 1 was killed by signal 40" in shown(cell)
    told = await seen(
        jp_fetch, engines.pid, lambda told: told["clusters"][0]["ranks"][1]["state"] == "dead"
    )
    assert told["clusters"][0]["ranks"][1]["words"] == "was killed by signal 40"
    assert on_ranks(engines, "print(world_size)").stdout == "2\n"


async def test_a_busy_cluster_is_stopped_and_the_next_cell_says_so(
    jp_fetch: Fetch, engines: Kernel
) -> None:
    cell = engines.start(distributed("import time\ntime.sleep(1000)", "-np 2"))
    told = await seen(jp_fetch, engines.pid, job_that_runs)
    await post(jp_fetch, "processes", told["id"], "stop", cluster=told["clusters"][0]["id"])
    engines.wait(20, cell)
    assert "The cell was ended with its cluster." in shown(cell)
    after = await seen(jp_fetch, engines.pid, lambda told: not told["clusters"])
    assert job_that_runs(after) is None
    again = on_ranks(engines, "print(world_size)")
    assert again.stdout == "2\n"
    assert "The cluster was stopped from outside this notebook" in shown(again)


async def test_a_script_and_its_stacks_are_seen(jp_fetch: Fetch, engines: Kernel) -> None:
    cell = engines.start(distributed(LOOP, "--launcher torchrun"))
    told = await seen(
        jp_fetch, engines.pid,
        lambda told: (job := job_that_runs(told)) and job.get("bars")
        and all(rank["words"].startswith("line ") for rank in job["ranks"]),
    )  # fmt: skip
    job = job_that_runs(told)
    assert (job["launcher"], job["cluster"]) == ("torchrun", "")
    stacks = (await post(jp_fetch, "processes", told["id"], "stacks", job=job["id"]))["stacks"]
    lines = ("for step in nbdist.progress(", "nbdist.log(", "time.sleep(0.01)")
    for text in stacks.values():
        assert any(line in text for line in lines), text
    await post(jp_fetch, "processes", told["id"], "interrupt", job=job["id"])
    engines.wait(20, cell)


def processes_of(cluster: Any) -> list[psutil.Process]:
    """Return the processes of a cluster's ranks."""
    return [psutil.Process(rank["pid"]) for rank in cluster["ranks"]]


async def stop_ends(ranks: list[psutil.Process], fetch: Fetch, process: str, cluster: Any) -> None:
    """Stop a cluster of a process that cannot answer; its ranks must end."""
    await post(fetch, "processes", process, "stop", cluster=cluster["id"])
    _, alive = psutil.wait_procs(ranks, timeout=allowed(10))
    assert not alive


async def test_ranks_of_a_kernel_that_is_suspended_are_ended(
    jp_fetch: Fetch, engines: Kernel
) -> None:
    pid = engines.pid
    told = await seen(jp_fetch, pid, lambda told: told["clusters"])
    cluster = told["clusters"][0]
    ranks = processes_of(cluster)
    os.kill(pid, signal.SIGSTOP)
    try:
        await stop_ends(ranks, jp_fetch, told["id"], cluster)
    finally:
        os.kill(pid, signal.SIGCONT)
    # It wakes up with the loss of its ranks, and perhaps with the order to stop them.
    await seen(jp_fetch, pid, lambda told: all(c["state"] == "lost" for c in told["clusters"]))
    assert "All variables on the ranks are lost" in shown(on_ranks(engines, "pass"))


@pytest.mark.parametrize("how", ["killed", "killed with its warm process"])
async def test_ranks_of_a_kernel_that_does_not_answer_are_ended(
    jp_fetch: Fetch, start_kernel: KernelFactory, without_torch: dict[str, str], how: str
) -> None:
    kernel = start_kernel(env=without_torch)
    kernel.run("%load_ext nbdist")
    on_ranks(kernel, "pass", "-np 2 --backend none")
    pid = kernel.pid
    told = await seen(jp_fetch, pid, lambda told: told["clusters"])
    cluster = told["clusters"][0]
    ranks = processes_of(cluster)
    if how == "killed with its warm process":  # which would remove the cluster's folder
        warm = ranks[0].parent()
        assert warm is not None
        warm.kill()
    kernel.sigkill()
    told = await seen(jp_fetch, pid, lambda told: not told["alive"])
    await stop_ends(ranks, jp_fetch, told["id"], cluster)
    assert told["id"] in (await post(jp_fetch, "clean"))["removed"]


async def test_a_restarted_kernel_leaves_no_row(
    jp_fetch: Fetch, start_kernel: KernelFactory, without_torch: dict[str, str]
) -> None:
    kernel = start_kernel(env=without_torch)
    kernel.run("%load_ext nbdist")
    on_ranks(kernel, "pass", "-np 2 --backend none")
    pid = kernel.pid
    await seen(jp_fetch, pid, lambda told: told["clusters"])
    kernel.restart()
    state = await get(jp_fetch, "state")
    assert pid not in [each["pid"] for each in state["processes"]]


async def test_a_detached_job_is_seen_stopped_and_cleared(jp_fetch: Fetch, engines: Kernel) -> None:
    name = detach(engines, LOOP)
    deadline = Deadline(20)
    keepers: list[Any] = []
    while not keepers or not job_that_runs(keepers[0]).get("bars"):
        assert not deadline.over
        state = await get(jp_fetch, "state")
        keepers = [each for each in state["processes"] if each["kind"] == "keeper"]
        keepers = [each for each in keepers if job_that_runs(each)]
        await asyncio.sleep(0.05)
    (keeper,) = keepers
    job = job_that_runs(keeper)
    assert (job["id"], job["detached"], job["launcher"]) == (name, True, "torchrun")
    stacks = (await post(jp_fetch, "processes", keeper["id"], "stacks", job=name))["stacks"]
    assert stacks.keys() == {"0", "1"}
    await post(jp_fetch, "processes", keeper["id"], "interrupt", job=name)
    ended = await seen(jp_fetch, keeper["pid"], lambda told: not told["alive"])
    assert ended["jobs"][0]["state"] == "interrupted"
    assert name in engines.run("%dist jobs").stdout
    assert keeper["id"] in (await post(jp_fetch, "clean"))["removed"]
    assert name not in engines.run("%dist jobs").stdout
