"""Finds the GPUs that a process may use, without opening one: an open GPU cannot be forked."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from nbdist.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

VISIBLE = "CUDA_VISIBLE_DEVICES"
CHOSEN = "NBDIST_GPUS"
"""Environment name: the GPUs for ranks on other hosts, numbered among those visible there."""
DEVICES = Path("/dev")
AMD_NODES = Path("/sys/class/kfd/kfd/topology/nodes")


def count(environ: Mapping[str, str]) -> int:
    """Return how many GPUs a process with this environment can use; 0 if unknown."""
    names = visible(environ) or []
    # If GPUs are split by MIG, CUDA shows a process only the first part.
    return min(1, len(names)) if names and names[0].startswith("MIG-") else len(names)


def visible(environ: Mapping[str, str]) -> list[str] | None:
    """Return the GPUs that a process with this environment can use, as `VISIBLE` names them.

    The variable is read as CUDA reads it: numbers up to the first one without a GPU here, or UUIDs
    of GPUs and of their parts (MIG). If a name occurs twice, no GPU can be used.

    Returns
    -------
    list of str or None
        None if they cannot be listed, for example in WSL.
    """
    there, named = _present(), environ.get(VISIBLE)
    if named is None:
        return None if there is None else [str(number) for number in range(there)]
    names = list(_read(named, there))
    return names if len(set(names)) == len(names) else []


def chosen(gpus: Sequence[int], environ: Mapping[str, str]) -> str:
    """Return the value of `VISIBLE` that selects some of the GPUs that this environment allows.

    Parameters
    ----------
    gpus
        The numbers of the GPUs among the visible ones, from 0.
    environ
        The environment of the process that chooses.

    Raises
    ------
    UsageError
        If there are too few GPUs.
    """
    there = visible(environ)
    if there is None:
        return ",".join(map(str, gpus))
    wrong = [gpu for gpu in gpus if not 0 <= gpu < len(there)]
    if not wrong:
        return ",".join(there[gpu] for gpu in gpus)
    asked = f"--gpus {','.join(map(str, gpus))}"
    allotted = f" with {VISIBLE}={environ[VISIBLE]}" if VISIBLE in environ else ""
    if not there:
        raise UsageError(f"{asked}: no GPU can be seen on this machine{allotted}")
    raise UsageError(
        f"{asked}: there is no GPU {wrong[0]}; {len(there)} can be used here{allotted}, and "
        f"--gpus counts them from 0 to {len(there) - 1}"
    )


def environ_for(gpus: Sequence[int] | None, env: Mapping[str, str] | None) -> dict[str, str]:
    """Return the environment variables for ranks on this machine.

    Parameters
    ----------
    gpus
        See `chosen`; None leaves all that are visible.
    env
        Other variables that the user has asked for.

    Raises
    ------
    UsageError
        If there are too few GPUs.
    """
    environ = dict(env or {})
    if gpus is not None:
        environ[VISIBLE] = chosen(gpus, {**os.environ, **environ})
    return environ


def take() -> None:
    """Select on this host the GPUs that `CHOSEN` names for ranks on any host.

    Raises
    ------
    UsageError
        If there are too few GPUs.
    """
    wanted = os.environ.pop(CHOSEN, "")
    if wanted:
        os.environ[VISIBLE] = chosen([int(gpu) for gpu in wanted.split(",")], os.environ)


@contextlib.contextmanager
def counted_without_torch() -> Iterator[None]:
    """Answer `torch.cuda.is_available()` and `device_count()` from the files of devices meanwhile.

    Many packages call them when imported. torch asks CUDA's driver, which no fork of the process
    can use afterwards, or NVML, which starts a thread.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.backends.cuda.is_built() or visible(os.environ) is None:
        yield
        return
    cuda, importing = torch.cuda, True
    is_available, device_count = cuda.is_available, cuda.device_count

    def counted() -> int:  # torch's own answer later, for a module that has kept the function
        return count(os.environ) if importing else int(device_count())

    def available() -> bool:
        return count(os.environ) > 0 if importing else bool(is_available())

    cuda.is_available, cuda.device_count = available, counted
    try:
        yield
    finally:
        importing = False
        cuda.is_available, cuda.device_count = is_available, device_count


def of_rank(local_rank: int, there: int) -> int:
    """Return the number of a rank's own GPU; ranks share GPUs if there are more ranks than GPUs."""
    return local_rank % there


def own(there: int) -> int:
    """Return the number of this process's own GPU, if there are so many here."""
    number = os.environ.get("LOCAL_RANK", "")  # a cell may have changed it
    return of_rank(int(number) if number.isdecimal() else 0, there)


def holders() -> set[int]:
    """Return the pids that have memory on this machine's GPUs, as far as the driver lists them.

    Needs nvidia-ml-py. Processes in other containers are not listed.
    """
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # not installed, or no driver: the errors differ
        return set()
    try:
        cards = map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount()))
        return {
            process.pid
            for card in cards
            for process in nvml.nvmlDeviceGetComputeRunningProcesses(card)
        }
    except Exception:  # a card that does not list its processes
        return set()
    finally:
        nvml.nvmlShutdown()


def _read(named: str, there: int | None) -> Iterator[str]:
    for name in (part.strip() for part in named.split(",")):
        if name.startswith(("GPU-", "MIG-")):
            yield name
        elif name.isdecimal() and (there is None or int(name) < there):
            yield str(int(name))
        else:
            return


def _present() -> int | None:
    """Return how many GPUs this machine shows, None if it does not number them (WSL)."""
    names = os.listdir(DEVICES)
    nvidia = sum(name.startswith("nvidia") and name[6:].isdigit() for name in names)
    if nvidia or "dxg" not in names:
        return nvidia or _amd()
    return None


def _amd() -> int:
    nodes = AMD_NODES.glob("*/gpu_id")
    return sum(node.read_text(encoding="ascii").strip() not in ("", "0") for node in nodes)
