"""Binds in the notebook what a cell returns. Kernel's main thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from nbdist.backends.models.variable_paths import last_name
from nbdist.errors import NbdistError
from nbdist.machine.amounts import in_bytes
from nbdist.magics.parsing.arguments import UsageMistake
from nbdist.notebook.names_both_ways import cannot_return
from nbdist.rank.values.parcels import unpacked

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbdist.job.job import Job
    from nbdist.wire.parcel_format import Offer


class Between(Protocol):
    """Brings values that ranks have packed into the notebook."""

    def take(self, offer: Offer) -> dict[str, Any]:
        """Unpack the values."""

    def bind(self, values: dict[str, Any], space: dict[str, Any]) -> None:
        """Bind the values in the notebook's namespace."""


class FromScript:
    """Brings values that a script returns into the notebook."""

    def take(self, offer: Offer) -> dict[str, Any]:
        """Unpack the values.

        Raises
        ------
        NbdistError
            If a value cannot be unpickled here.
        """
        return unpacked(offer.parcel, offer.buffers)

    def bind(self, values: dict[str, Any], space: dict[str, Any]) -> None:
        """Bind the values in the notebook's namespace."""
        space.update({last_name(path): value for path, value in values.items()})


def bound_as(path: str) -> str:
    """Say to which name what is at a path is bound."""
    name = last_name(path)
    return path if name == path else f"{path} as `{name}`"


def bind_returned(
    between: Between, job: Job, space: dict[str, Any], tell: Callable[[str], Any]
) -> None:
    """Bind the values that a job has packed for the notebook, and report their sizes.

    From then on the packed data lives only as long as the values. Main thread.
    """
    offer = job.take_returned()
    if offer is None:
        return
    try:
        values = between.take(offer)
    except NbdistError as err:
        raise UsageMistake(f"nothing was returned: {err}") from err
    between.bind(values, space)
    if values:
        listed = ", ".join(f"{bound_as(name)} ({in_bytes(offer.sizes[name])})" for name in values)
        tell(f"Returned from rank {offer.rank}: {listed}.")
    refused = cannot_return(offer)
    del offer, values  # an error's traceback must not keep them in memory
    if refused:
        raise UsageMistake(refused)
