"""The code around a cell in a script: launch commands, rank and device, the process group."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from nbdist.backends.horovod import engine_ranks

if TYPE_CHECKING:
    from collections.abc import Sequence

TORCHRUN = """
On one host:      torchrun --nproc-per-node {np} {name}{arguments}
On two hosts:     torchrun --nnodes 2 --nproc-per-node {np} --rdzv-backend c10d \\
                      --rdzv-endpoint HOST0:29500 {name}{arguments}          (on each of them)
Under Slurm:      sbatch --nodes 2 --ntasks-per-node 1 --wrap 'srun torchrun --nnodes 2 \\
                      --nproc-per-node {np} --rdzv-backend c10d --rdzv-id $SLURM_JOB_ID \\
                      --rdzv-endpoint $(scontrol show hostnames | head -n 1):29500 {name}{quoted}'
With horovodrun:  not this script; one that is saved with `--backend horovod`
As a single rank: python {name}{arguments}
"""
HOROVODRUN = """
On one host:      horovodrun -np {np} python {name}{arguments}
On two hosts:     horovodrun -np {both} -H HOST0:{np},HOST1:{np} python {name}{arguments}
Under Slurm:      sbatch --nodes 2 --ntasks-per-node {np} --wrap 'horovodrun -np {both} -H \\
                      $(scontrol show hostnames | sed s/$/:{np}/ | paste -sd,) \\
                      python {name}{quoted}'
With torchrun:    not this script; one that is saved with `--backend ddp`
As a single rank: python {name}{arguments}
"""
PYTHON = """
It makes its own workers: python {name}{arguments}
"""
ENVIRONMENT = """
# torchrun sets these variables for each rank; without torchrun, this is the only rank.
for _name, _alone in {
    "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0",
}.items():
    os.environ.setdefault(_name, _alone)
rank = int(os.environ["RANK"])
local_rank = int(os.environ["LOCAL_RANK"])
world_size = int(os.environ["WORLD_SIZE"])
"""
TORCH_DEVICE = """\
_gpus = torch.cuda.device_count()  # ranks share GPUs if there are more ranks
device = torch.device("cuda", local_rank % _gpus) if _gpus else torch.device("cpu")
"""
SET_DEVICE = """\
if device.type == "cuda":
    torch.cuda.set_device(device)
"""
FORM = """\
if int(os.environ["LOCAL_WORLD_SIZE"]) <= _gpus:  # nccl needs a GPU for each rank
    torch.distributed.init_process_group("nccl", device_id=device)
else:
    torch.distributed.init_process_group("gloo")
    torch.distributed.barrier()  # else a rank that ends early leaves others connecting
"""
LEAVE = """\
if torch.distributed.is_initialized():
    torch.distributed.destroy_process_group()
"""
LINGER = """\
    import time as _time

    _time.sleep(0.1)  # let gloo's threads finish: while Python ends, they could abort it
"""
WORKERS_LINGER = """
if __name__ == "__mp_main__":  # a spawned worker: gloo's threads could abort it while Python ends
    import atexit as _atexit, time as _time

    _atexit.register(_time.sleep, 0.1)
"""
JOIN_XLA = """\
torch.distributed.init_process_group("xla", init_method="xla://")
rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
device = torch_xla.device()
"""
LEAVE_XLA = """\
torch_xla.sync(wait=True)
"""
TENSORFLOW_DEVICE = """\
_gpus = tensorflow.config.list_physical_devices("GPU")
if _gpus:
    tensorflow.config.set_visible_devices(_gpus[local_rank], "GPU")
    tensorflow.config.experimental.set_memory_growth(_gpus[local_rank], True)
device = "/GPU:0" if _gpus else "/CPU:0"
"""
JOIN_HOROVOD = """\
hvd.init()
rank, local_rank, world_size = hvd.rank(), hvd.local_rank(), hvd.size()
"""
WORKERS = """
Worker processes that are spawned instead of forked (`multiprocessing_context="spawn"`) see the
code above the cell, not what the cell itself defines: define those functions and classes in a
cell of the notebook."""


@dataclass(frozen=True)
class Preamble:
    """The code that a backend needs in a script."""

    imports: list[str]
    anywhere: str
    """Runs in every process, spawned workers included."""
    joining: str
    """Runs in ranks only, before the cell."""
    leaving: str = ""
    """Runs after a cell that succeeded; after an error the process just ends."""


def preamble(
    backend: str, modules: set[str], *, forms_group: bool, lingers: bool = False
) -> Preamble:
    """Return the code around a cell.

    Parameters
    ----------
    backend
        `ddp`, `horovod`, `xla`, `none`, or `own` for a program that starts its own workers.
    modules
        The other modules that the script imports.
    forms_group
        Whether the cell's own code calls ``init_process_group``.
    lingers
        Whether Python's normal shutdown runs at the end, as it does for a saved script.
    """
    if backend == "ddp":
        joining = SET_DEVICE if forms_group else SET_DEVICE + FORM
        imports = ["import os", "import torch", "import torch.distributed"]
        leaving = LEAVE + (LINGER if lingers else "")
        return Preamble(imports, ENVIRONMENT + TORCH_DEVICE, joining, leaving)
    if backend == "own":
        return Preamble([], WORKERS_LINGER, "")
    if backend == "none":
        return Preamble(["import os"], ENVIRONMENT + 'device = "cpu"\n', "")
    if backend == "xla":
        imports = [
            "import os", "import torch", "import torch.distributed", "import torch_xla",
            "import torch_xla.distributed.xla_backend",
        ]  # fmt: skip
        joining = "device = torch_xla.device()\n" if forms_group else JOIN_XLA
        return Preamble(imports, ENVIRONMENT, joining, LEAVE_XLA)
    without = find_spec("torch") is None or engine_ranks.parts() == ["tensorflow"]
    if "torch" not in modules and (without or modules & {"tensorflow", "keras"}):
        imports = ["import horovod.tensorflow as hvd", "import tensorflow"]
        return Preamble(imports, "", JOIN_HOROVOD + TENSORFLOW_DEVICE)
    imports = ["import horovod.torch as hvd", "import torch"]
    return Preamble(imports, "", JOIN_HOROVOD + TORCH_DEVICE + SET_DEVICE)


def launch_line(backend: str, ranks: int, path: str, arguments: Sequence[str]) -> str:
    """Return the command that runs a script on this host."""
    words = shlex.join([path, *arguments])
    if backend == "horovod":
        return f"horovodrun -np {ranks} python {words}"
    if backend == "own":
        return f"python {words}"
    return f"torchrun --nproc-per-node {ranks} {words}"


def _in_docstring(text: str) -> str:
    """Escape a text for a string in three double quotes."""
    return text.replace("\\", r"\\").replace('"""', r"\"\"\"")


def header(
    name: str,
    backend: str,
    ranks: int,
    arguments: Sequence[str],
    *,
    data: str,
    by_value: list[str],
    modules: set[str],
) -> str:
    """Return the docstring of a script: its content, launch commands, requirements."""
    launch = {"horovod": HOROVODRUN, "own": PYTHON}.get(backend, TORCHRUN)
    made = [f"Python {sys.version.split()[0]}"]
    for module in sorted(modules):
        version = getattr(sys.modules.get(module), "__version__", None)
        if isinstance(version, str):
            made.append(f"{module} {version}")
    without = "" if "nbdist" in modules else ", without nbdist"
    # Raw, so that the command can be copied as it stands.
    words = "".join(arguments)
    escaped = _in_docstring if '"""' in words else str
    raw = "r" if escaped is str and "\\" in words else ""
    text = f'{raw}"""{name}: a cell of a notebook and the names that it uses{without}.\n'
    called = "".join(f" {shlex.quote(word)}" for word in arguments)
    within = called.replace("'", """'"'"'""")  # escaped for single quotes in a shell
    launch = launch.format(
        np=ranks, both=2 * ranks, name=name, arguments=escaped(called), quoted=escaped(within),
    )  # fmt: skip
    text += launch
    text += f"\nMade with {', '.join(made)}."
    if data:
        text += f"\nIts data are next to it in {data}/: move both together."
    if by_value:
        version = ".".join(map(str, sys.version_info[:2]))
        text += (
            f"\nThere is no complete source for {', '.join(by_value)}:\n"
            f"loading the pickle needs cloudpickle and Python {version}."
        )
    return text + "\n" + WORKERS + '\n"""\n'
