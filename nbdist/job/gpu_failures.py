"""Finds out that an error has made a rank's GPU unusable for its process, and says how."""

from __future__ import annotations

import re
import signal
from typing import TYPE_CHECKING

from nbdist.job.deaths import Death

if TYPE_CHECKING:
    from nbdist.job.job import Job
    from nbdist.wire.messages import Fault

_SPOILT = re.compile(
    r"(?:CUDA|HIP) error: ((?:device-side assert|an illegal|misaligned address|"
    r"unspecified launch failure|operation not supported on global|invalid program counter|"
    r"hardware stack error|.*ECC).*)"
)
"""Messages of errors after which a process cannot use its GPU any more."""
_ASSERT = "device-side assert"
_ASSERTED = re.compile(r"block: \[[\d,]+\], thread: \[[\d,]+\] Assertion [`'](.+)[`'] failed")
"""What the GPU itself prints of an assert, once for each of its threads."""
_OF_GPU = re.compile(r"CUDA|HIP|cu(BLAS|DNN|FFT|SPARSE|SOLVER)|NCCL", re.IGNORECASE)
"""Libraries have other messages for an assert that was there before."""
_PARAGRAPH = re.compile(
    r"(Search for `|(CUDA|HIP) kernel errors might be|For debugging consider passing |"
    r"Compile with `TORCH_USE_|Device-side assertions were )"
)
"""The lines that torch adds to each such message."""
LATER = (
    "A GPU computes behind the cell, so an earlier line may have failed: with "
    "`--env CUDA_LAUNCH_BLOCKING=1` the cell ends at the line itself."
)


def gpu_failure(job: Job, rank: int, fault: Fault | Death) -> str:
    """Say what has made a rank's GPU unusable for its process; '' if nothing has.

    A process that ends itself for that, in a thread of gloo's or NCCL's, leaves only its output.
    """
    if isinstance(fault, Death):
        said = "" if fault.signum == signal.SIGABRT else None
    else:
        said = fault.text if _OF_GPU.search(fault.text) else None
    if said is None or rank not in job.ranks:  # an elastic job may have more
        return ""
    output = job.output(rank)
    found, asserted = _SPOILT.search(said or output), _ASSERTED.search(output)
    kind = found[1].strip() if found else _ASSERT if asserted else ""
    if not kind.startswith(_ASSERT):
        return kind
    what = f" `{asserted[1]}`" if asserted else ""
    return f"{_ASSERT}{what}: an index out of range, or the like"


def without_paragraph(lines: list[str]) -> list[str]:
    """Return a traceback without torch's advice about errors of a GPU."""
    return [line for line in lines if not _PARAGRAPH.match(line)]
