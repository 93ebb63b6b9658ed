"""The time from a script's launch to its first collective, over torchrun's; many launches."""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil

from benchmarks.notebook import CellError, Notebook
from benchmarks.report import Figure, Measured, Section, Target, measured
from benchmarks.systems import NBDIST, Options

HOW = """
    A cell (for torchrun: a script of the same lines) forms the group, finishes one `all_reduce` and
    prints the time; the figure runs from sending the cell, or starting `torchrun --standalone`, to
    that. Each repeat is divided by the torchrun run just before it; the first, warm launch of a
    kernel is not counted. The whole job runs to the end of the cell, or of torchrun. `--cold` is
    nbdist's plain command line of torchrun. Beside it, timed the same way: accelerate's
    `debug_launcher` and torchrunx's `Launcher`, each in a fresh Python that has imported them
    before the time runs. The same with Horovod: an `allreduce` of a cell under warm horovodrun,
    over `horovodrun --gloo` with a script of the same lines. Then one kernel launches {launches}
    scripts; what it and its warm process have grown by since the tenth is what is shown.
"""
CELL = """
import time, torch, torch.distributed as dist
dist.all_reduce(torch.ones(1))
if rank == 0:
    print(f"there at {time.time()!r}", flush=True)
"""
HOROVOD_CELL = """
import time, torch
hvd.allreduce(torch.ones(1))
if rank == 0:
    print(f"there at {time.time()!r}", flush=True)
"""
HOROVOD_SCRIPT = f"""
import horovod.torch as hvd
hvd.init()
rank = hvd.rank()
{HOROVOD_CELL}
"""
SCRIPT = """
import os, torch.distributed as dist
dist.init_process_group("gloo")
rank = int(os.environ["RANK"])
{cell}
dist.destroy_process_group()
"""
FUNCTION = """
def work():
    import time, torch, torch.distributed as dist
    from datetime import timedelta
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
    if dist.get_rank() == 0:
        print(f"there at {time.time()!r}", flush=True)
    return time.time()
"""
ACCELERATE = f"""
import time, accelerate, torch
{FUNCTION}
print(f"began at {{time.time()!r}}", flush=True)
accelerate.debug_launcher(work, num_processes=NP)
"""
TORCHRUNX = f"""
import time, torchrunx, torch
{FUNCTION}
if __name__ == "__main__":
    print(f"began at {{time.time()!r}}", flush=True)
    launcher = torchrunx.Launcher(hostnames=["localhost"], workers_per_host=NP, backend="gloo")
    print(f"there at {{launcher.run(work).rank(0)!r}}", flush=True)
"""
THERE = re.compile(r"there at ([\d.]+)")
BEGAN = re.compile(r"began at ([\d.]+)")
SETTLED = 10


def measure(options: Options) -> Section:
    """Launch scripts warm and cold on two and four ranks, then many times in one kernel."""
    repeats, launches = (3, 30) if options.quick else (9, 200)
    figures = [
        Figure(
            f"script on {np} ranks to its first `all_reduce`, {how}, over torchrun",
            "x",
            Target("<=", bound),
            {NBDIST.name: measured(partial(_ratio, np, flag, repeats, options))},
        )
        for how, flag, bound in (("warm", "", 0.1), ("cold", " --cold", 1.1))
        for np in (2, 4)
    ]
    figures += [
        Figure(
            f"script on {np} ranks to its first `allreduce`, warm horovodrun, over horovodrun",
            "x",
            Target("<=", 0.1),
            {NBDIST.name: measured(partial(_horovod_ratio, np, repeats))},
        )
        for np in (2, 4)
    ]
    figures.append(
        Figure(
            "the whole job of a script on 2 ranks, warm, over torchrun's", "x",
            Target("<=", 0.1), {NBDIST.name: measured(partial(_whole, 2, repeats))},
        )
    )  # fmt: skip
    grown = measured(partial(_grown, launches))
    figures.append(
        Figure(
            f"memory grown by over {launches} launches (kernel and warm process)",
            " MB",
            Target("<", 10),
            {NBDIST.name: grown},
        )
    )
    return Section("scripts", HOW.format(launches=launches), figures)


def _ratio(np: int, flag: str, repeats: int, options: Options) -> Measured:
    mine, theirs = [], []
    with Notebook("ipykernel_launcher") as notebook:
        notebook.run("%load_ext nbdist")
        notebook.settle()
        _launch(notebook, np, flag)
        script = notebook.folder / "script.py"
        script.write_text(SCRIPT.format(cell=CELL))
        for _ in range(repeats):
            theirs.append(_torchrun(script, np))
            mine.append(_launch(notebook, np, flag))
        note = f"{statistics.median(mine):.2f} s over {statistics.median(theirs):.2f} s"
        if not flag and len(options.systems) > 1:
            note += "".join(
                f"; {name} {_beside(text, np, notebook.folder)}"
                for name, text in (("accelerate", ACCELERATE), ("torchrunx", TORCHRUNX))
            )
    return Measured(tuple(m / t for m, t in zip(mine, theirs, strict=True)), note)


def _whole(np: int, repeats: int) -> Measured:
    """Measure the whole job, from its start to its end."""
    mine, theirs = [], []
    cell = f"%%distributed -np {np} --launcher torchrun\n{CELL}"
    with Notebook("ipykernel_launcher") as notebook:
        notebook.run("%load_ext nbdist")
        notebook.settle()
        notebook.run(cell)
        script = notebook.folder / "script.py"
        script.write_text(SCRIPT.format(cell=CELL))
        for _ in range(repeats):
            began = time.time()
            _torchrun(script, np)
            theirs.append(time.time() - began)
            mine.append(notebook.run(cell).seconds)
    note = f"{statistics.median(mine):.2f} s over {statistics.median(theirs):.2f} s"
    return Measured(tuple(m / t for m, t in zip(mine, theirs, strict=True)), note)


def _horovod_ratio(np: int, repeats: int) -> Measured:
    mine, theirs = [], []
    cell = f"%%distributed -np {np} --backend horovod --launcher horovodrun\n{HOROVOD_CELL}"
    plain = [str(Path(sys.executable).with_name("horovodrun")), "-np", str(np), "--gloo"]
    with Notebook("ipykernel_launcher") as notebook:
        notebook.run("%load_ext nbdist")
        notebook.settle()
        notebook.run(cell)
        script = notebook.folder / "script.py"
        script.write_text(HOROVOD_SCRIPT)
        for _ in range(repeats):
            began = time.time()
            theirs.append(_stamp(THERE, _run([*plain, sys.executable, str(script)])) - began)
            began = time.time()
            mine.append(_stamp(THERE, notebook.run(cell).text) - began)
    note = f"{statistics.median(mine):.2f} s over {statistics.median(theirs):.2f} s"
    return Measured(tuple(m / t for m, t in zip(mine, theirs, strict=True)), note)


def _launch(notebook: Notebook, np: int, flag: str = "") -> float:
    began = time.time()
    text = notebook.run(f"%%distributed -np {np} --launcher torchrun{flag}\n{CELL}").text
    return _stamp(THERE, text) - began


def _torchrun(script: Path, np: int) -> float:
    began = time.time()
    flags = ["--standalone", f"--nproc-per-node={np}", str(script)]
    return _stamp(THERE, _run([sys.executable, "-m", "torch.distributed.run", *flags])) - began


def _beside(text: str, np: int, folder: Path) -> str:
    script = folder / "beside.py"
    script.write_text(text.replace("NP", str(np)))
    try:
        printed = [_run([sys.executable, str(script)]) for _ in range(3)]
        took = [_stamp(THERE, each) - _stamp(BEGAN, each) for each in printed]
    except (CellError, subprocess.SubprocessError) as err:
        return f"failed ({type(err).__name__})"
    return f"{statistics.median(took):.2f} s"


def _run(command: list[str]) -> str:
    environ = os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=120, check=True
    )
    return done.stdout + done.stderr


def _stamp(what: re.Pattern[str], text: str) -> float:
    found = what.search(text)
    if found is None:
        raise CellError(f"no time is printed: {text[-500:]}")
    return float(found[1])


def _grown(launches: int) -> Measured:
    with Notebook("ipykernel_launcher") as notebook:
        notebook.run("%load_ext nbdist")
        notebook.settle()
        for _ in range(SETTLED):
            _launch(notebook, 2)
        before = _weigh(notebook)
        for _ in range(launches - SETTLED):
            _launch(notebook, 2)
        notebook.settle()
        after = _weigh(notebook)
    megabytes, processes, files = (b - a for a, b in zip(before, after, strict=True))
    note = f"processes {processes:+g}, descriptors {files:+g}"
    return Measured((megabytes,), note)


def _weigh(notebook: Notebook) -> tuple[float, float, float]:
    """Return megabytes, processes and open descriptors of the kernel and its processes."""
    family = [psutil.Process(notebook.pid), *notebook.processes()]
    size, files = 0.0, 0
    for process in family:
        with suppress(psutil.Error):
            size += process.memory_full_info().uss / 1e6
            files += process.num_fds()
    return size, len(family), files
