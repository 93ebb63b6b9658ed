"""Which rank a launcher has made of this process, told to its script in torchrun's words."""

from __future__ import annotations

import os

from nbdist.wire.agent_rounds import LOCAL, ROUND

OURS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
THEIRS = {
    "horovodrun": (
        ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
        # What runs under mpirun knows nothing of the above: Open MPI, then MPICH and its kin.
        (
            "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_SIZE",
            "OMPI_COMM_WORLD_LOCAL_RANK",
            "OMPI_COMM_WORLD_LOCAL_SIZE",
        ),
        ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    )
}
"""By launcher, the names it may use for the same."""


def take(launcher: str) -> int:
    """Set what torchrun would have set; return this process's rank.

    A program that makes its own workers finds nothing of the kind.
    """
    if launcher == "python":
        return 0
    for theirs in THEIRS.get(launcher, ()):
        if theirs[0] in os.environ:
            os.environ.update(
                {ours: os.environ[name] for ours, name in zip(OURS, theirs, strict=True)}
            )
            break
    local, _, size = os.environ.get(LOCAL, "").partition("/")
    if local:  # an agent of its own has told it that it is alone on its host
        os.environ |= {"LOCAL_RANK": local, "LOCAL_WORLD_SIZE": size}
    return int(os.environ["RANK"])


def size() -> int:
    """Return how many ranks there are."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def starts() -> int:
    """Return how often all ranks were started before."""
    return int(os.environ.get(ROUND) or os.environ.get("TORCHELASTIC_RESTART_COUNT") or 0)
