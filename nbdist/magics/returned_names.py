"""Binds in the notebook what a cell returns. Kernel's main thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

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
    """Takes what ranks have packed into the notebook."""

    def take(self, offer: Offer) -> dict[str, Any]:
        """Unpack it."""

    def bind(self, values: dict[str, Any], space: dict[str, Any]) -> None:
        """Bind it."""


class FromScript:
    """Takes what a script returns into the notebook."""

    def take(self, offer: Offer) -> dict[str, Any]:
        """Unpack it.

        Raises
        ------
        NbdistError
            If something cannot be put together here.
        """
        return unpacked(offer.parcel, offer.buffers)

    def bind(self, values: dict[str, Any], space: dict[str, Any]) -> None:
        """Bind it."""
        space.update(values)


def bind_returned(
    between: Between, job: Job, space: dict[str, Any], tell: Callable[[str], Any]
) -> None:
    """Bind what a job has packed for the notebook, if anything, and say how large it was.

    From then on it lives as long as the values do. Main thread.
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
        listed = ", ".join(f"{name} ({in_bytes(offer.sizes[name])})" for name in values)
        tell(f"Returned from rank {offer.rank}: {listed}.")
    refused = cannot_return(offer)
    del offer, values  # an error's traceback, which is kept, must not keep them
    if refused:
        raise UsageMistake(refused)
