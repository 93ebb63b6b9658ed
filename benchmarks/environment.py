"""The benchmarks' own environment: this checkout, its torch, and the peers from PyPI."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from contextlib import suppress
from pathlib import Path
from urllib.request import urlopen

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / ".bench-venv"
CONSTRAINTS = ROOT / "constraints.txt"
CPU_TORCH = "https://download.pytorch.org/whl/cpu"
PEERS = (
    "ipyparallel==9.2.0", "nbdistributed==0.1.0", "jupyter-distributed==0.1.1",
    "accelerate==1.15.0", "torchrunx==0.4.0", "tensorboard>=2.20", "livelossplot>=0.5.6",
)  # fmt: skip
TOOLS = ("ipykernel==7.4.0", "jupyter-server>=2.14", "psutil>=6", "scikit-learn>=1.5")


def make() -> Path:
    """Make the environment, or update it; return its Python."""
    python = FOLDER / "bin" / "python"
    if not python.exists():
        venv.create(FOLDER, with_pip=True)
        (FOLDER / ".gitignore").write_text("*\n")
        if _wants_cpu_torch():
            _install(python, "--no-deps", "--index-url", CPU_TORCH, "torch")
    print(f"Installing nbdist and its peers into {FOLDER.name}", flush=True)
    _install(python, f"{ROOT}[torch]", *PEERS, *TOOLS)
    # If this fails, the figures that need Horovod report that.
    subprocess.run([str(python), "-m", "nbdist.install", "horovod"], check=False)
    return python


def _install(python: Path, *what: str) -> None:
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "-c", str(CONSTRAINTS), *what], check=True)


def _wants_cpu_torch() -> bool:
    """PyPI's torch for Linux has gigabytes of CUDA; without a GPU the CPU build is enough."""
    if sys.platform != "linux" or Path("/dev/nvidiactl").exists():
        return False
    with suppress(OSError), urlopen(f"{CPU_TORCH}/torch/", timeout=5):  # noqa: S310
        return True
    return False


def enter(arguments: list[str]) -> None:
    """Run the same command in the environment, in place of this process; does not return."""
    python = make()
    os.chdir(ROOT)
    # Not as a child: Ctrl-C must reach the process that has started kernels.
    os.execv(python, [str(python), "-m", "benchmarks", "--in-place", *arguments])  # noqa: S606
