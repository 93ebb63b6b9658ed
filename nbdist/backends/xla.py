"""The ``xla`` backend: torch_xla (SPMD) on all devices of the kernel. Kernel's main thread.

The program is written for the whole batch, and torch_xla shards it over the devices of a mesh. So
there is one rank, rank 0 of 1. torch_xla starts its runtime when a device is first used, and cannot
stop it or start a second one: all settings must be made before.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
from dataclasses import dataclass
from typing import Any

from nbdist.errors import UsageError
from nbdist.machine.amounts import counted

AXIS = "data"
"""The name of the mesh's only axis."""
SAME = 2
"""How many parts of their version numbers torch and torch_xla must have in common."""
OTHER = "%env PJRT_DEVICE=CPU"
RESTART = (
    "Restart the kernel (`%dist restart kernel`, or the menu), which loses the notebook's variables"
)


@dataclass(frozen=True)
class Runtime:
    """XLA's runtime in this process."""

    kind: str
    """The kind of its devices: ``TPU``, ``CPU``."""
    count: int
    device: Any
    """The one device that torch sees, which represents all devices."""
    mesh: Any
    """All devices in one row."""

    @property
    def devices(self) -> str:
        """The number and kind of the devices, in words."""
        return _in_words(self.count, self.kind)

    def names(self) -> dict[str, Any]:
        """Return the names that are defined for a cell."""
        return {
            "rank": 0, "local_rank": 0, "world_size": 1, "device": self.device, "mesh": self.mesh,
        }  # fmt: skip


_runtime: Runtime | None = None


def check() -> None:
    """Raise `UsageError` if torch_xla is not installed, or not with the torch it was built for."""
    if importlib.util.find_spec("torch_xla") is None:
        raise UsageError(
            f"--backend xla needs torch_xla, which {sys.executable} does not have. torch_xla 2.9.0 "
            "needs torch 2.9.0: make a new Python environment, `pip install 'nbdist[xla]'` there, "
            "and choose its kernel for this notebook"
        )
    own, torch = importlib.metadata.version("torch_xla"), importlib.metadata.version("torch")
    if own.split(".")[:SAME] != torch.split(".")[:SAME]:
        raise UsageError(
            f"torch_xla {own} needs torch {own}, and {sys.executable} has torch {torch}: make a "
            "new Python environment, `pip install 'nbdist[xla]'` there, and choose its kernel"
        )


def start(wanted: int | None, usual: int) -> Runtime:
    """Return the runtime of this process; start it first if it is not running.

    Parameters
    ----------
    wanted
        The requested number of devices; None takes all devices.
    usual
        How many virtual devices a CPU becomes if no number is requested.

    Raises
    ------
    UsageError
        If the runtime already runs with another number of devices, or the hardware has another.
    """
    global _runtime  # torch_xla has one for the process
    if _runtime is None:
        _runtime = _start(wanted, usual)
    _check_number(wanted, _runtime.kind, _runtime.count)
    return _runtime


def _start(wanted: int | None, usual: int) -> Runtime:
    check()
    _choose_device()
    try:
        return _begin(wanted, usual)
    except (RuntimeError, OSError) as err:
        why = str(err).strip().partition("\n")[0]
        kind = os.environ["PJRT_DEVICE"]
        raise UsageError(
            f"PJRT_DEVICE={kind}: XLA's runtime did not start: {why}. It may start with another "
            f"device, such as `{OTHER}`, but perhaps only in a new process. {RESTART}, and set "
            "PJRT_DEVICE before any XLA cell"
        ) from err


def _begin(wanted: int | None, usual: int) -> Runtime:
    import torch_xla.runtime as xr

    from nbdist.backends.torch_private.xla_runtime import runtime_runs

    if runtime_runs():  # a cell in the kernel has used a device
        _check_number(wanted, xr.device_type() or "", xr.global_runtime_device_count())
    elif os.environ["PJRT_DEVICE"] == "CPU":
        count = int(os.environ.get("CPU_NUM_DEVICES") or usual) if wanted is None else wanted
        os.environ["CPU_NUM_DEVICES"] = str(count)
    if not xr.is_spmd():
        xr.use_spmd()
    return _of_this_process()


PROCESS_ENVIRON = {"XLA_USE_SPMD": "0", "CPU_NUM_DEVICES": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
"""The environment of a process with one device, whatever the kernel has set for itself."""


def check_processes(wanted: int | None) -> int:
    """Return how many processes with one device each (`--launcher torchrun`) fit this machine.

    Raises
    ------
    UsageError
        If `wanted` is another number, or the kernel uses the devices.
    """
    check()
    _choose_device()
    from nbdist.backends.torch_private.xla_runtime import tpu_processes

    kind = os.environ["PJRT_DEVICE"]
    if _runtime is not None and kind != "CPU":
        raise UsageError(
            f"XLA's runtime runs in this kernel and holds the {_runtime.devices}: no other process "
            f"can use them. {RESTART}, and then run this cell first"
        )
    count = tpu_processes() if kind == "TPU" else 1
    if wanted not in (None, count):
        instead = (
            f"use -np {count}"
            if kind != "CPU"
            else f"for {wanted} virtual devices in one process use "
            f"`%%distributed -np {wanted} --backend xla --launcher kernel`"
        )
        raise UsageError(
            f"-np {wanted}: XLA needs one process for each device, and this machine has "
            f"{_in_words(count, kind)}; {instead}"
        )
    return count


def running() -> Runtime | None:
    """Return the runtime that `start` has found or started, None before."""
    return _runtime


def _choose_device() -> None:
    """Choose the hardware as torch_xla does, but without its log message.

    Raises
    ------
    UsageError
        If the hardware that the environment names is not present.
    """
    # Otherwise warnings of XLA's C++ code, mostly about its own plans, appear in every cell.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    chosen = os.environ.get("PJRT_DEVICE")
    os.environ["PJRT_DEVICE"] = chosen or "CPU"  # else the import of torch_xla chooses
    from nbdist.backends.torch_private.xla_runtime import tpu_processes, why_no_device

    if not chosen:
        if tpu_processes():
            os.environ["PJRT_DEVICE"] = "TPU"
    elif why := why_no_device(chosen):
        raise UsageError(f"PJRT_DEVICE={chosen}: {why}; choose another, such as `{OTHER}`")


def _of_this_process() -> Runtime:
    import numpy as np
    import torch_xla
    import torch_xla.distributed.spmd as xs
    import torch_xla.runtime as xr

    count = xr.global_runtime_device_count()
    mesh = xs.get_global_mesh()
    if mesh is None:
        mesh = xs.Mesh(np.arange(count), (count,), (AXIS,))
        xs.set_global_mesh(mesh)
    return Runtime(xr.device_type() or "", count, torch_xla.device(), mesh)


def _check_number(wanted: int | None, kind: str, count: int) -> None:
    if wanted in (None, count):
        return
    devices = _in_words(count, kind)
    if kind != "CPU":
        raise UsageError(
            f"-np {wanted}: XLA always uses all devices, here {devices}; leave out -np, or use "
            f"-np {count}"
        )
    raise UsageError(
        f"-np {wanted}: XLA's runtime runs in this kernel with {devices}, and can start only once "
        f"in a process. {RESTART}, and then run this cell with -np {wanted}; or leave out -np to "
        f"go on with {count}"
    )


def _in_words(count: int, kind: str) -> str:
    return counted(count, f"{kind} device")
