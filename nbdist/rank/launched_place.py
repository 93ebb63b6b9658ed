"""Sets torchrun's environment variables (RANK, WORLD_SIZE...) for a script under any launcher."""

from __future__ import annotations

import os

from nbdist.wire.elastic_rounds import LOCAL, ROUND

OURS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
THEIRS = {
    "horovodrun": (
        ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
        # Under mpirun these variables are missing: Open MPI's, then those of MPICH and its
        # relatives.
        (
            "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_SIZE",
            "OMPI_COMM_WORLD_LOCAL_RANK",
            "OMPI_COMM_WORLD_LOCAL_SIZE",
        ),
        ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    )
}
"""For each launcher, the variables it may use instead of `OURS`."""


def take(launcher: str) -> int:
    """Set the variables that torchrun sets; return this process's rank.

    A program that starts its own workers does not get them.
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
    if local:  # a rank with its own agent appears to be alone on its host
        os.environ |= {"LOCAL_RANK": local, "LOCAL_WORLD_SIZE": size}
    return int(os.environ["RANK"])


def size() -> int:
    """Return the number of ranks."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def starts() -> int:
    """Return how often the ranks were restarted."""
    return int(os.environ.get(ROUND) or os.environ.get("TORCHELASTIC_RESTART_COUNT") or 0)
