"""Binds in the notebook what a cell returns. Kernel's main thread."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, Protocol

from nbdist.backends.models.variable_paths import last_name
from nbdist.detached import job_folders as keeping
from nbdist.errors import NbdistError, UsageError
from nbdist.machine.amounts import in_bytes
from nbdist.notebook.names_both_ways import cannot_return
from nbdist.rank.values.parcels import unpacked

if TYPE_CHECKING:
    from collections.abc import Callable

    from IPython.core.interactiveshell import InteractiveShell

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


class FromDetached(FromScript):
    """Brings values that a detached job returns, and notes on disk that they were taken.

    Parameters
    ----------
    job
        The job.
    """

    def __init__(self, job: Job) -> None:
        self._job = job

    def bind(self, values: dict[str, Any], space: dict[str, Any]) -> None:
        """Bind the values in the notebook's namespace."""
        super().bind(values, space)
        keeping.note_taken(self._job.folder)


class BindsAtEnd:
    """Binds what a job returns between two cells: by `wait`, or before the next cell begins.

    Parameters
    ----------
    shell
        The notebook's shell.
    job
        The job.
    bind
        Binds the values and reports them; raises `NbdistError`. Main thread.
    failed
        Shows why the values could not be bound before a cell; `wait` raises the error instead.
    """

    def __init__(
        self, shell: InteractiveShell, job: Job, bind: Callable[[], None],
        failed: Callable[[Exception], object],
    ) -> None:  # fmt: skip
        self._shell, self._job, self._bind, self._failed = shell, job, bind, failed
        job.on_waited = self.waited
        shell.events.register("pre_run_cell", self._before_a_cell)

    def waited(self) -> None:
        """Bind for a caller that has waited for the job. Any thread; only the main thread binds."""
        if threading.current_thread() is threading.main_thread():
            self._finish()

    def _before_a_cell(self, *_: object) -> None:
        if self._job.done and threading.current_thread() is threading.main_thread():
            try:
                self._finish()
            except Exception as err:  # unpickling a user's class may raise anything
                self._failed(err)

    def _finish(self) -> None:
        with contextlib.suppress(ValueError):  # it was there before
            self._shell.events.unregister("pre_run_cell", self._before_a_cell)
        if self._job.returned:
            self._bind()


def bound_as(path: str) -> str:
    """Say to which name what is at a path is bound."""
    name = last_name(path)
    return path if name == path else f"{path} as `{name}`"


def bind_returned(
    between: Between, job: Job, space: dict[str, Any], tell: Callable[[str], Any]
) -> None:
    """Bind the values that a job has packed for the notebook, and report their sizes.

    From then on the packed data lives only as long as the values. Main thread.

    Raises
    ------
    UsageError
        If a value cannot be unpickled here, or could not be packed. The former stays with the job,
        so that a later call binds it, when the cell that defines its class has run.
    """
    offer = job.take_returned()
    if offer is None:
        return
    try:
        values = between.take(offer)
    except NbdistError as err:
        job.returned[offer.rank] = offer
        raise UsageError(f"nothing was returned: {err}") from err
    between.bind(values, space)
    if values:
        listed = ", ".join(f"{bound_as(name)} ({in_bytes(offer.sizes[name])})" for name in values)
        tell(f"Returned from rank {offer.rank}: {listed}.")
    refused = cannot_return(offer)
    del offer, values  # an error's traceback must not keep them in memory
    if refused:
        raise UsageError(refused)
