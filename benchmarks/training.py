"""Throughput of the demo's training loop, over the same script under torchrun."""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.notebook import CellError
from benchmarks.processes import Family
from benchmarks.report import Figure, Measured, Section, Target, measured
from benchmarks.systems import NBDIST, Options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RANKS = 2
EPOCHS = 8  # a turn: half a second of training on a small machine
DEMO = Path(__file__).parent.parent / "notebooks" / "quickstart.ipynb"
HOW = f"""
    The quickstart's own cells up to its training loop, joined, on two ranks with one torch thread
    each. Its own epochs are the warm-up. Then nbdist's ranks and those of `torchrun --standalone
    --nproc-per-node 2`, which stay up for it, take turns of {EPOCHS} more epochs, printing after
    each as the demo does, timed on rank zero; each pair of turns gives one ratio.
"""
THREADS = "import torch\ntorch.set_num_threads(1)\n"
TURN = f"""
import time
dist.barrier()
start = time.perf_counter()
for epoch in range(epoch + 1, epoch + 1 + {EPOCHS}):
    train_epoch(epoch)
    print(f"epoch {{epoch}}: loss {{losses[-1]:.4f}}")
seconds = time.perf_counter() - start
if rank == 0:
    print(f"throughput {{{EPOCHS} * len(sampler) * world_size / seconds:.1f}}", flush=True)
"""
JOIN = """
import os
import torch
import torch.distributed as dist
rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = torch.device("cpu")
dist.init_process_group("gloo")
"""
WAIT_FOR_TURN = """
while rank == 0 and not os.path.exists(f"turn-{turn}"):
    time.sleep(0.05)  # seldom: the other has its turn
"""


def measure(options: Options) -> Section:
    """Train in turns under nbdist and under torchrun."""
    figure = Figure(
        "samples/s of the demo's training loop, 2 ranks, over torchrun's",
        "x",
        Target(">=", 0.99),
        {NBDIST.name: measured(partial(_measure, _demo(), turns=10 if options.quick else 40))},
    )
    return Section("training", HOW, [figure])


def _demo() -> str:
    cells: list[str] = []
    for cell in json.loads(DEMO.read_text())["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code" and not source.startswith("%load_ext"):
            cells.append(source.partition("\n")[2] if source.startswith("%%") else source)
            if "def train_epoch" in source:
                return THREADS + "\n".join(cells)
    raise LookupError(f"no cell of {DEMO} defines train_epoch")


def _measure(demo: str, turns: int) -> Measured:
    ours, theirs = [], []
    with NBDIST.open(RANKS, join=True) as notebook:
        notebook.run(NBDIST.cell(demo))
        with _torchrun(demo, notebook.folder, turns) as train:
            for _ in range(turns):
                ours.append(_throughput(notebook.run(NBDIST.cell(TURN)).text))
                theirs.append(train())
    note = f"{statistics.median(ours):.0f} over {statistics.median(theirs):.0f} samples/s"
    return Measured(tuple(o / t for o, t in zip(ours, theirs, strict=True)), note)


@contextmanager
def _torchrun(demo: str, folder: Path, turns: int) -> Iterator[Callable[[], float]]:
    """Start torchrun; what is yielded trains one turn there and returns its throughput."""
    loop = "\n".join("    " + line for line in (WAIT_FOR_TURN + TURN).splitlines())
    script, log = folder / "train.py", folder / "train.log"
    script.write_text(f"{JOIN}{demo}\nimport time\nfor turn in range({turns}):\n{loop}\n")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    taken = 0

    with Family() as family, log.open("w") as output:
        process = subprocess.Popen(
            [*torchrun, "--nproc-per-node", str(RANKS), str(script)],
            cwd=folder,
            env=family.environ,
            stdout=output,
            stderr=subprocess.STDOUT,
        )

        def train() -> float:
            nonlocal taken
            (folder / f"turn-{taken}").touch()
            taken += 1
            until = time.monotonic() + 60
            while log.read_text().count("throughput") < taken:
                if process.poll() is not None or time.monotonic() > until:
                    raise CellError(f"torchrun failed:\n{log.read_text()}")
                time.sleep(0.05)
            return _throughput(log.read_text())

        yield train


def _throughput(text: str) -> float:
    found = re.findall(r"throughput ([\d.]+)", text)
    if not found:
        raise CellError(f"no throughput was printed:\n{text}")
    return float(found[-1])
