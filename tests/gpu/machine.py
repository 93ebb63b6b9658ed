"""What the GPU tests run on, and whether they do or only rehearse."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.conftest import HAS_GPU
from tests.helpers.waiting import allowed

if TYPE_CHECKING:
    from tests.helpers.kernel import Kernel

REHEARSAL = os.environ.get("NBDIST_TEST_GPU", "" if HAS_GPU else "rehearsal") == "rehearsal"
"""On the CPU: that the tests' own code runs. It is part of the suite where there is no GPU."""
DEVICE = "cpu" if REHEARSAL else "cuda"
"""What a notebook calls its device."""
NAME = "cpu" if REHEARSAL else "cuda:0"
"""What a rank calls the first one."""
NO_GPU = "a rehearsal on the CPU"
MEGABYTE = 1 << 20

ASK = """
import json, torch
from contextlib import suppress
cuda = torch.cuda
found = dict(torch=torch.__version__, cuda=torch.version.cuda, nccl=None, driver=None, gpus=[])
with suppress(Exception):
    from nbdist.backends.groups import nccl
    found["nccl"] = nccl.version()
with suppress(Exception):
    for i in range(cuda.device_count()):
        each = cuda.get_device_properties(i)
        found["gpus"].append(f"{each.name}, {each.total_memory / 2**30:.0f} GiB")
with suppress(Exception):
    import pynvml
    pynvml.nvmlInit()
    found["driver"] = pynvml.nvmlSystemGetDriverVersion()
print(json.dumps(found))
"""


@functools.cache
def facts() -> dict[str, Any]:
    """Return what torch sees, asked of a process of its own: this one opens no GPU."""
    command = [sys.executable, "-W", "ignore", "-c", ASK]
    try:
        asked = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=allowed(60)
        )
        return dict(json.loads(asked.stdout.splitlines()[-1]))
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        said = (str(getattr(error, "stderr", "")).strip() or repr(error)).splitlines()[-1]
        none = dict.fromkeys(("cuda", "nccl", "driver"))
        return {"torch": f"unknown ({said})", "gpus": [], **none}


def needs_gpu() -> None:
    """Leave a test out that means nothing without one."""
    if REHEARSAL:
        pytest.skip(NO_GPU)


def needs_gpus(count: int) -> None:
    """Leave a test out where there are fewer."""
    needs_gpu()
    if len(facts()["gpus"]) < count:
        pytest.skip(f"needs {count} GPUs")


def needs_nccl_that_shares() -> None:
    """Leave a test out where NCCL cannot have two ranks on one GPU."""
    needs_gpu()
    version = tuple(facts()["nccl"] or ())
    if version < (2, 30):
        shown = ".".join(map(str, version)) or "none"
        pytest.skip(f"needs NCCL 2.30 or newer, for two ranks on a GPU; this torch has {shown}")


def first_gpu() -> dict[str, str]:
    """Return the environment of a kernel that sees one GPU, on a machine with any number."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return {"CUDA_VISIBLE_DEVICES": "0" if visible is None else visible.split(",")[0]}


def used_memory(kernel: Kernel) -> int:
    """Return the bytes of the first GPU that are taken, by all processes; in a rehearsal 0.

    The notebook asks, so that ranks that are dead stay so. What it takes itself does not change.
    """
    if REHEARSAL:
        return 0
    ask = "import torch\nfree, total = torch.cuda.mem_get_info(0)\nprint(total - free)"
    return int(kernel.run(ask).stdout)
