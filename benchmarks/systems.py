"""nbdist and its peers: how each starts N ranks, and how a cell is sent to all ranks."""

from __future__ import annotations

import os
import sys
import textwrap
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.notebook import CellError, Notebook

CHECK = "import torch.distributed as dist; assert dist.get_world_size() == {n}"


@dataclass(frozen=True)
class System:
    """A system that runs cells on N ranks; its cells may contain `{n}` and `{folder}`."""

    name: str
    start: tuple[str, ...]  # the cells that start the ranks
    first_line: str  # the first line of a cell for all ranks
    join: str | None  # cell that forms the group; None if `start` does so and checks it
    module: str = "ipykernel_launcher"
    environ: dict[str, str] = field(default_factory=dict)

    def notebook(self, n: int) -> Notebook:
        """Open a new kernel without ranks."""
        return Notebook(self.module, {k: v.format(n=n) for k, v in self.environ.items()})

    def cells(self, notebook: Notebook, n: int, *, join: bool) -> list[str]:
        """Return the cells that start N ranks; with `join`, they also form and check the group."""
        cells = list(self.start)
        if join and self.join is not None:
            cells.append(self.cell(self.join + CHECK))
        return [cell.format(n=n, folder=notebook.folder) for cell in cells]

    def cell(self, body: str) -> str:
        """Return `body` as a cell for all ranks."""
        return self.first_line + body

    def open(self, n: int, *, join: bool) -> Notebook:
        """Open a kernel with N ranks, and check that all are there."""
        notebook = self.notebook(n)
        try:
            for cell in self.cells(notebook, n, join=join):
                notebook.run(cell)
            self.check_ranks(notebook, n)
        except BaseException:  # Ctrl-C, too, must leave no process
            notebook.close()
            raise
        return notebook

    def check_ranks(self, notebook: Notebook, n: int) -> None:
        """Raise an error if there are not exactly N ranks."""
        if (found := len(self.rank_pids(notebook))) != n:
            raise CellError(f"{found} ranks came up, not {n}")

    def rank_pids(self, notebook: Notebook) -> list[int]:
        """Return the process ids of the ranks; each rank writes its own one."""
        folder = notebook.folder / f"pids-{time.monotonic_ns()}"
        folder.mkdir()
        notebook.run(
            self.cell(
                f"import os, pathlib; pathlib.Path({str(folder)!r}, str(os.getpid())).touch()"
            )
        )
        return [int(path.name) for path in folder.iterdir()]


PLAIN = System("plain kernel", start=(), first_line="", join=None)

NBDIST = System(
    "nbdist",
    start=("%load_ext nbdist", "%%distributed -np {n} --backend ddp\n" + CHECK),
    first_line="%%distributed\n",
    join=None,
)

IPYPARALLEL = System(
    "ipyparallel",
    start=(
        textwrap.dedent("""\
            import ipyparallel as ipp
            cluster = ipp.Cluster(n={n})
            client = cluster.start_and_connect_sync(activate=True)
            client[:].scatter("rank", range({n}), flatten=True).get()"""),
    ),
    first_line="%%px\n",
    join="import torch.distributed as dist\n"
    "dist.init_process_group('gloo', 'file://{folder}/group', rank=rank, world_size={n})\n",
)

NBDISTRIBUTED = System(
    "nbdistributed",
    # It reports that it is ready long before its workers are connected, and a cell that is sent
    # meanwhile fails after 30 s. So wait until all workers are connected.
    start=(
        "%load_ext nbdistributed",
        textwrap.dedent("""\
            %dist_init -n {n}
            import psutil, time
            port = get_ipython().magics_manager.registry["DistributedMagic"]._comm_manager.base_port
            while sum(c.laddr.port == port and c.status == "ESTABLISHED"
                      for c in psutil.Process().net_connections()) < {n}:
                time.sleep(0.05)"""),
    ),
    first_line="%%distributed\n",
    join="",
    # nbdistributed starts its workers with the first `python` on PATH. When it gives up, it calls
    # `pkill -f worker`, which would end processes of others. So PATH has this environment's
    # programs only: its Python, and no `pkill`. What is left over, `Family.end` ends.
    environ={"PATH": str(Path(sys.executable).parent)},
)

JUPYTER_DISTRIBUTED = System(
    "jupyter-distributed",
    start=("pass",),
    first_line="",
    join="import torch.distributed as dist\ndist.init_process_group('gloo')\n",
    module="jupyter_distributed.kernel",
    environ={"JUPYTER_DISTRIBUTED_WORLD_SIZE": "{n}"},
)

ALL = (NBDIST, IPYPARALLEL, NBDISTRIBUTED, JUPYTER_DISTRIBUTED)


@dataclass(frozen=True)
class Options:
    """What a run measures, and whether it is a short one."""

    quick: bool = False
    systems: tuple[System, ...] = ALL


def cores() -> int:
    """Return the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
