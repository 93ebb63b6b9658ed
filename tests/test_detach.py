"""Jobs that outlive the kernel: detached, listed, attached from elsewhere, stopped, cleared."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil
import pytest

from nbdist.detached import job_folders as keeping
from nbdist.detached.attached_view import follow, make_job
from nbdist.detached.job_story import STORY, End, Writer
from nbdist.job.bounded_output import DISPLAYS
from nbdist.job.events import Notice, Shown, Text
from nbdist.job.states import INTERRUPT, WITH_CLUSTER, WITH_KEEPER
from nbdist.wire.messages import Display
from tests.helpers.kernel import KERNEL_MARK
from tests.helpers.notebook import complete, on_ranks
from tests.helpers.processes import command, environment, family
from tests.helpers.waiting import allowed, until

if TYPE_CHECKING:
    from pathlib import Path

    from nbdist.job.events import Event
    from nbdist.job.job import Job
    from nbdist.job.states import Stop
    from tests.conftest import KernelFactory
    from tests.helpers.kernel import Kernel

SLOW = """
import torch
import time
from IPython.display import display
print("begun by", rank)
handle = display({"text/plain": "epoch 0"}, raw=True, display_id=True)
while not go.exists():
    time.sleep(0.05)
handle.update({"text/plain": "epoch 9"}, raw=True)
print("last words")
total = torch.arange(300_000.0)
"""
HANDLE = "from nbdist.notebook.detached_jobs import handle"
"""Looks at a job without binding what it returns."""
RETURNS = "import numpy\nfound = Found()\nbig = numpy.full(1_000_000, 2.0)"


def detach(kernel: Kernel, code: str, flags: str = "") -> str:
    """Detach a job; return its id."""
    cell = on_ranks(kernel, code, f"-np 2 --detach {flags}")
    return re.search(r"Job (\w{6}) on 2 ranks keeps running", cell.text)[1]  # type: ignore[index]


def detach_for_short(kernel: Kernel, code: str, flags: str = "") -> str:
    """Detach a job that is over soon; return its id when it and its keeper have ended."""
    name = detach(kernel, code, flags)
    kernel.run(f"import nbdist\nnbdist.attach('{name}').until_end(60)")
    assert gone(keepers_of(kernel, name))
    return name


def load(kernel: Kernel, without_torch: dict[str, str]) -> None:
    """Load nbdist. The kernel's own warm process, which detached jobs do not use, has no torch."""
    kernel.run(f"import os\nkept = dict(os.environ)\nos.environ.update({without_torch})")
    kernel.run("%load_ext nbdist")
    until(lambda: family(kernel))
    kernel.run("os.environ.clear()\nos.environ.update(kept)")


def test_it_outlives_the_kernel_and_is_seen_from_another(
    start_kernel: KernelFactory, without_torch: dict[str, str], tmp_path: Path
) -> None:
    home = str(tmp_path / "home")
    first = start_kernel(env={"NBDIST_HOME": home})
    load(first, without_torch)
    first.run(f"from pathlib import Path\ngo = Path({str(tmp_path / 'go')!r})")
    first.run("class Found:\n    best = 3\n")
    ended = detach(first, RETURNS, "--return found,big")
    first.run(f"{HANDLE}\nhandle('{ended}').until_end(60)")
    name = detach(first, SLOW, "--return total")
    first.sigkill()
    second = start_kernel(env={"NBDIST_HOME": home})
    load(second, without_torch)
    listed = second.run("%dist jobs").stdout
    assert name in complete(second, "%dist attach ")
    assert re.search(rf"{name}  torchrun  2 +\S+ +running", listed)
    check_that_a_job_is_seen(second, name, tmp_path / "go")

    # What a job returns waits for who takes it.
    assert second.run("%dist jobs --clean").stdout == (
        f"Removed: {name}.\n"
        f"Kept: {ended}. It returned found, big, and nobody has taken that: %dist attach {ended} "
        f"takes it, %dist jobs --clean {ended} discards it.\n"
    )
    cell = second.run(f"%dist attach {ended}")
    assert "Returned from rank 0: found" in cell.text
    assert second.run("big += 1\nprint(found.best, big.sum())").stdout == "3 3000000.0\n"

    assert second.run("%dist jobs --clean").stdout == f"Removed: {ended}.\n"
    assert "No cell has run yet" in second.run("%dist jobs").stdout


def check_that_a_job_is_seen(kernel: Kernel, name: str, go: Path) -> None:
    """Look at what the last job that runs has shown and goes on to show."""
    cell = kernel.start("%dist attach")
    kernel.expect("begun by 0", 20, cell)
    kernel.expect("epoch 0", 20, cell)
    go.touch()
    kernel.wait(20, cell)
    assert cell.ok, cell.seen()
    assert cell.stdout == "begun by 0\nlast words\n"
    assert "epoch 9" in cell.text
    assert "epoch 0" not in cell.text
    assert kernel.run("print(float(total[-1]))").stdout == "299999.0\n"
    again = kernel.run(f"%dist attach {name} --output all")
    assert "[1] begun by 1" in again.stdout
    assert kernel.run(f"%dist logs 1 --job {name}").stdout == "begun by 1\nepoch 0\nlast words\n"


LATE = """
class Late:
    def __reduce__(self):
        return eval, ("__import__('__main__').needed",)
late = Late()
"""


def test_what_it_returns_is_bound_by_a_handle_and_kept_until_then(
    notebook: Kernel, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    wait = f"import os\nwhile not os.path.exists({str(go)!r}): time.sleep(0.05)"
    name = detach(notebook, f"{wait}\ntotal = 42", "--return total")
    notebook.run(f"import nbdist\njob = nbdist.attach('{name}')")
    go.touch()
    told = "Returned from rank 0: total (5 B).\n"
    assert notebook.run("assert job.wait(60) is job.wait()\nprint(total)").stdout == f"{told}42\n"
    # Each handle binds once: by `wait`, or before the next cell.
    assert notebook.run("total += 1\njob.wait()\nprint(total)").stdout == "43\n"
    notebook.run(f"nbdist.attach('{name}').until_end(60)\nprint(total)")
    assert notebook.run("print(total)").stdout == f"{told}42\n"

    # A program without a notebook's namespace.
    code = (
        f"import nbdist\njob = nbdist.attach('{name}')\nprint(job.pull(), job.wait().pull('total'))"
    )
    program = f"{code}\nprint('total' in globals())"
    env = {**os.environ, "NBDIST_HOME": str(notebook.home)}
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, env=env, capture_output=True
    )
    assert done.stdout.decode() == "{'total': 42} {'total': 42}\nFalse\n", done.stderr

    # What cannot be unpickled yet waits, too.
    name = detach(notebook, LATE, "--return late")
    cell = notebook.run(f"job = nbdist.attach('{name}')\njob.wait(60)", check=False)
    assert "nothing was returned: late cannot be unpickled here" in cell.error
    assert gone(keepers_of(notebook, name))
    assert f"Kept: {name}. It returned late" in notebook.run("%dist jobs --clean").stdout
    assert "Returned from rank 0: late" in notebook.run("needed = 7\njob.wait()").stdout
    assert notebook.run("print(late)").stdout == "7\n"
    assert name in notebook.run("%dist jobs --clean").stdout
    cell = notebook.run("nbdist.Call\njob.pull()", check=False)
    assert f"job {name} has returned nothing" in cell.error


@pytest.fixture(scope="module")
def notebook(shared_kernel: Kernel, without_torch: dict[str, str]) -> Kernel:
    """Return a notebook whose cells may be detached."""
    load(shared_kernel, without_torch)
    shared_kernel.run("import time")
    return shared_kernel


def job_folder(kernel: Kernel, name: str) -> Path:
    """Return a job's folder."""
    return next((kernel.home / "logs").glob(f"*-{name}"))


def keepers_of(kernel: Kernel, name: str) -> list[psutil.Process]:
    """Return the process that keeps a job, if there is one."""
    folder = str(job_folder(kernel, name))
    return [process for process in keepers(kernel) if command(process)[-1:] == [folder]]


def keepers(kernel: Kernel) -> list[psutil.Process]:
    """Return the processes that keep jobs of a kernel."""
    return [
        process
        for process in psutil.process_iter()
        if "nbdist.detached.keeper" in command(process)
        and environment(process).get(KERNEL_MARK) == kernel.mark
    ]


def keeper_of(kernel: Kernel, name: str) -> psutil.Process:
    """Return the process that keeps a job."""
    return keepers_of(kernel, name)[0]


def gone(processes: list[psutil.Process], seconds: float = 20) -> bool:
    """Whether processes end in time."""
    return not psutil.wait_procs(processes, allowed(seconds))[1]


@pytest.mark.parametrize(
    "launcher",
    ["torchrun", "torchrun --cold", pytest.param("horovodrun", marks=pytest.mark.horovod)],
)
def test_an_interrupt_stops_the_watching_and_cancel_the_job(
    notebook: Kernel, launcher: str
) -> None:
    code = "print('going', flush=True)\nwhile True:\n    time.sleep(0.1)"
    name = detach(notebook, code, f"--launcher {launcher}")
    cell = notebook.start(f"%dist attach {name}")
    notebook.expect("going", 30, cell)
    notebook.interrupt()
    notebook.wait(20, cell)
    assert cell.ok, cell.seen()
    told = f"it keeps running. `%dist attach {name}` shows it again, `%dist cancel {name}`"
    assert told in cell.text
    keeper = keeper_of(notebook, name)
    family = [keeper, *keeper.children(recursive=True)]
    cell = notebook.start(f"%dist attach {name}")
    notebook.expect("going", 30, cell)
    other = f"import nbdist\njob = nbdist.attach('{name}')\njob.cancel()\njob.until_end(60)"
    script = f"{other}\nprint(job.state, job.output(1), type(job.error).__name__)"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True, text=True, timeout=allowed(90), check=False,
        env=os.environ | {"NBDIST_HOME": str(notebook.home)},
    )  # fmt: skip
    assert done.stdout == "interrupted going\n CellInterrupted\n", done.stderr
    notebook.wait(20, cell)
    assert "The cell was interrupted" in cell.text
    assert "at cell line 4" in cell.text
    assert gone(family)
    assert not list((notebook.home / "clusters").glob("*/temp"))


def test_a_failure_is_told_as_in_a_cell_of_its_own(notebook: Kernel) -> None:
    code = """
        import torch.distributed as dist
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            raise ValueError("once")
        dist.barrier()
        if rank == 1:
            raise KeyError("twice")
        dist.barrier()
        """
    name = detach(notebook, code, "--max-restarts 1")
    cell = notebook.run(f"%dist attach {name}", check=False)
    assert "Restart 1 of 1: rank" in cell.text
    assert "Rank 1 failed: KeyError: 'twice' (cell line 7)" in cell.error
    assert "KeyError: 'twice'" in cell.text
    assert "Cell In[" in cell.text
    again = notebook.run(f"%dist attach {name}", check=False)
    assert again.error == cell.error
    assert re.search(rf"{name} .* failed .*KeyError", notebook.run("%dist jobs").stdout)
    assert "KeyError" in notebook.run(f"%dist jobs {name}").stdout


def test_a_keeper_that_is_killed_takes_all_with_it_and_is_told(notebook: Kernel) -> None:
    name = detach(notebook, "print('here', flush=True)\ntime.sleep(1000)")
    cell = notebook.start(f"%dist attach {name}")
    notebook.expect("here", 30, cell)
    keeper = keeper_of(notebook, name)
    family = keeper.children(recursive=True)
    keeper.send_signal(signal.SIGKILL)
    notebook.wait(20, cell)
    assert f"the keeper of job {name}, a process on" in cell.error
    assert "has died, and the job's ranks with it" in cell.error
    assert gone(family)
    assert re.search(
        rf"{name} .* lost: its keeper process has died", notebook.run("%dist jobs").stdout
    )
    assert name in notebook.run("%dist jobs --clean").stdout
    assert not list((notebook.home / "logs").glob(f"*-{name}"))


def test_sigterm_ends_it_well(notebook: Kernel) -> None:
    name = detach(notebook, "time.sleep(1000)")
    keeper = keeper_of(notebook, name)
    family = [keeper, *keeper.children(recursive=True)]
    keeper.terminate()
    assert gone(family)
    cell = notebook.run(f"%dist attach {name}", check=False)
    assert "The cell was ended with its keeper process (SIGTERM)" in cell.text


GROWS = """
from IPython.display import display
handle = display({"text/plain": "-1"}, raw=True, display_id=True)
for step in range(20_000):
    print("x" * 100)
    if step % 100 == 0:
        handle.update({"text/plain": f"step {step}" + " " * 10_000}, raw=True)
"""


def check_that_its_output_is_bounded(kernel: Kernel, name: str) -> None:
    """Look at a job that has printed 2 MB, and as much on its display."""
    cell = kernel.run(f"%dist attach {name}")
    assert "step 19900" in cell.text
    assert "lines (" in cell.text
    assert len(cell.stdout) < 300_000
    told = [p for p in job_folder(kernel, name).iterdir() if not p.name.startswith("rank")]
    assert sum(p.stat().st_size for p in told) < 300_000


def make_old(folder: Path) -> None:
    """Let a job's folder be as if nobody had written there for long."""
    for path in (folder, *folder.rglob("*")):
        with suppress(FileNotFoundError):  # the keeper that runs puts files in others' places
            os.utime(path, (1, 1))


@pytest.mark.timeout(240)
def test_a_time_limit_ends_it_its_output_is_bounded_and_it_is_cleared_away(
    notebook: Kernel,
) -> None:
    late = detach_for_short(notebook, "time.sleep(1000)", "--timeout 1")
    cell = notebook.run(f"%dist attach {late}", check=False)
    assert "ran longer than --timeout 1 s" in cell.text
    running = detach(notebook, "time.sleep(1000)")
    asked = notebook.run(f"nbdist.attach('{running}').stacks()", check=False)
    assert (
        f"job {running} is detached: another process has the connection to its ranks" in asked.error
    )
    told = notebook.run(f"%dist jobs --clean {running}").stdout
    assert told == f"Removed: nothing, {running} has not ended.\n"

    for name in (running, late):
        make_old(job_folder(notebook, name))
    grown = detach_for_short(notebook, GROWS)  # which clears what is old away
    listed = notebook.run("%dist jobs").stdout
    assert late not in listed
    assert re.search(rf"{running} .* running", listed)
    check_that_its_output_is_bounded(notebook, grown)
    assert notebook.run(f"%dist jobs --clean {grown}").stdout == f"Removed: {grown}.\n"
    assert grown not in notebook.run("%dist jobs").stdout
    assert "no detached job" in notebook.run("%dist jobs --clean zzz", check=False).error

    # One that nobody owns any more.
    notebook.run(f"%dist cancel {running}\nnbdist.attach('{running}').until_end(60)")
    assert gone(keepers_of(notebook, running))
    (job_folder(notebook, running) / "owner.json").unlink()
    assert running in notebook.run("%dist jobs").stdout
    assert running in notebook.run("%dist jobs --clean").stdout


def test_what_cannot_be_kept_for_who_takes_it_is_told(notebook: Kernel, tmp_path: Path) -> None:
    go = tmp_path / "go"
    wait = f"import os\nwhile not os.path.exists({str(go)!r}): time.sleep(0.05)"
    code = f"{wait}\nbig = 'x' * 20_000_000"
    name = detach(notebook, code, "--return big")
    keeper = keeper_of(notebook, name)
    keeper.rlimit(psutil.RLIMIT_FSIZE, (1_000_000, psutil.RLIM_INFINITY))  # as if the disk is full
    go.touch()
    cell = notebook.run(f"%dist attach {name}", check=False)
    assert "what rank 0 returned could not be kept: [Errno 27] File too large" in cell.error
    removed = notebook.run("%dist jobs --clean").stdout
    assert name in removed, "at once: its keeper may still be ending"


async def test_a_view_tells_all_at_the_pace_of_who_looks_and_how_many_displays_came(
    tmp_path: Path,
) -> None:
    job, told = await followed(tmp_path, taken=0.0)
    assert job.state == "done"
    shown = [event.content["data"] for event in told if isinstance(event, Shown) and event.content]
    assert shown == [{"number": number} for number in range(DISPLAYS)]
    assert "the rest is not shown" in str([each for each in told if isinstance(each, Notice)])
    text = "".join(each.text for each in told if isinstance(each, Text))
    assert text.endswith("the end\n")


async def test_a_story_of_another_version_ends_the_view(tmp_path: Path) -> None:
    job, _ = await followed(tmp_path, story='{"type": "Sung", "song": 7}\n')
    assert job.state == "failed"
    assert f"job {job.id} cannot be followed: ValidationError: Invalid value 'Sung'" in str(
        job.error
    )


@pytest.mark.parametrize("stop", [INTERRUPT, WITH_CLUSTER, WITH_KEEPER], ids=lambda stop: stop.by)
def test_a_keeper_reads_why_its_job_is_to_stop(stop: Stop, tmp_path: Path) -> None:
    keeping.stop(tmp_path, stop)
    assert keeping.asked_to_stop(tmp_path) == stop
    assert keeping.asked_to_stop(tmp_path) is None


async def followed(folder: Path, story: str = "", taken: float = 0.0) -> tuple[Job, list[Event]]:
    """Follow a job that has ended, taking its output only after a while."""
    kept = keeping.Kept(
        id="abcdef", code="", number=1, lines=0, np=1, launcher="torchrun", backend="ddp",
        output="rank0", returns=[], state="done",
    )  # fmt: skip
    keeping.write(folder, keeping.STATE, kept)
    job = make_job(folder, kept, viewed=True)
    job.log(0).write_text("line\n" * 500_000 + "the end\n")
    writer = Writer(job)
    data = {"data": {"number": 0}, "transient": {"display_id": "gone"}}
    writer.display(Display("", 0, "display_data", data))
    writer.display(Display("", 0, "update_display_data", data | {"data": {"number": -1}}))
    writer.display(Display("", 0, "clear_output", {}))
    writer.display(Display("", 0, "update_display_data", data))  # there is nothing to update
    for number in range(DISPLAYS + 2):
        writer.display(Display("", 0, "display_data", {"data": {"number": number}}))
    end = End("done", 1.0, 0.0, {0: (0, job.log(0).stat().st_size)}, {}, [], [], None, [])
    if story:
        with (folder / STORY).open("a") as file:
            file.write(story)
    writer.end(end)
    following = asyncio.create_task(follow(job, kept, "rank0"))
    told: list[Event] = []
    while not following.done() or job.events.qsize():
        await asyncio.sleep(taken)
        told += [job.events.get_nowait() for _ in range(min(10, job.events.qsize()))]
    await following
    return job, told


def test_what_cannot_be_is_told_and_nothing_is_left(notebook: Kernel) -> None:
    before = set((notebook.home / "logs").iterdir())
    for flags, why in (
        ("--detach --async", "leave out --async"),
        ("--detach --launcher engines", "engines end with the notebook's kernel"),
        ("--detach --save x.py", "--save runs nothing"),
        ("--detach --ranks 0", "--ranks is for engines"),
        ("--detach --launcher-flags '--nproc-per-node 7'", "set by nbdist"),
    ):
        assert why in notebook.run(f"%%distributed {flags}\n1", check=False).error
    assert "no detached job zzz" in notebook.run("%dist attach zzz", check=False).error
    cell = notebook.run("import nbdist\nnbdist.attach(output='both')", check=False)
    assert "output='both' is none of rank0, all, collapse" in cell.error
    assert "--tail -1 must not" in notebook.run("%dist logs 0 --tail -1", check=False).error
    assert "there is no job zzz" in notebook.run("%dist cancel zzz", check=False).error
    assert set((notebook.home / "logs").iterdir()) == before


def test_an_interrupt_before_it_is_told_of_stops_it(notebook: Kernel) -> None:
    notebook.run(
        "import nbdist.notebook.detached_jobs\nstart = nbdist.notebook.detached_jobs._start"
    )
    # It is interrupted before or after the job runs, and in any case before its id is shown.
    notebook.run(
        "nbdist.notebook.detached_jobs._start = lambda *about: (start(*about), time.sleep(600))"
    )
    before = keepers(notebook)
    cell = notebook.start("%%distributed -np 2 --detach\ntime.sleep(1000)")
    new = until(lambda: [process for process in keepers(notebook) if process not in before])
    name = command(new[0])[-1].rpartition("-")[2]
    notebook.interrupt()
    notebook.wait(20, cell)
    notebook.run("nbdist.notebook.detached_jobs._start = start")
    assert "KeyboardInterrupt" in cell.error
    notebook.run(f"import nbdist\nnbdist.attach('{name}').until_end(60)")
    assert re.search(rf"{name} .* interrupted", notebook.run("%dist jobs").stdout)


def test_a_folder_removed_under_it_is_told(notebook: Kernel, tmp_path: Path) -> None:
    name = detach(notebook, "print('here', flush=True)\ntime.sleep(1000)")
    cell = notebook.start(f"%dist attach {name}")
    notebook.expect("here", 30, cell)
    keeper = keeper_of(notebook, name)
    family = [keeper, *keeper.children(recursive=True)]
    # At once: its keeper, which writes there, would put a file into what is half removed.
    shutil.rmtree(job_folder(notebook, name).rename(tmp_path / "removed"))
    notebook.wait(20, cell)
    assert f"the folder of job {name} was removed" in cell.error
    assert gone(family)


def test_a_file_that_cannot_be_read_is_a_row(notebook: Kernel) -> None:
    folder = notebook.home / "logs" / "20260101-000000-abcdef"
    folder.mkdir()
    (folder / "job.json").write_text('{"version": 99}')
    assert re.search(r"abcdef +cannot be read", notebook.run("%dist jobs").stdout)
    assert "cannot be read" in notebook.run("%dist attach abcdef", check=False).error
