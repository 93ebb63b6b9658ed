"""`nbdist.launch`: calls a function on every rank of a new job. Main thread."""

from __future__ import annotations

import pickle
import sys
from dataclasses import dataclass, replace
from types import NoneType
from typing import TYPE_CHECKING, Any

import cloudpickle

from nbdist.backends.choice import check_fit
from nbdist.cell.script.make_script import Script
from nbdist.cell.script.preamble import preamble
from nbdist.errors import NbdistError, UsageError
from nbdist.hub.running.launch_request import LaunchRequest, script_launcher
from nbdist.job.deaths import Death
from nbdist.job.events import Notice, Shown, Text
from nbdist.job.report import first_of
from nbdist.launchers.scripts.hosts import hosts_named
from nbdist.notebook import script_cells
from nbdist.notebook.cell_options import CellOptions
from nbdist.notebook.clusters import Cluster
from nbdist.rank.values.parcels import unpacked
from nbdist.rank.values.refusals import why_not

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbdist.job.events import Event
    from nbdist.job.job import Job

SCRIPT = '''"""A call that nbdist.launch makes on every rank."""
import os
import pickle
from contextlib import suppress
from pathlib import Path
import cloudpickle
{imports}
{anywhere}
{joining}
with open(Path(__file__).with_name("script_data") / "call.pkl", "rb") as _file:
    function, args = pickle.load(_file)
_raised = Path(__file__).with_name(f"raised{{rank}}.pkl")
_raised.unlink(missing_ok=True)  # of this rank's life before a restart
try:
    result = function(*args)
except Exception as _error:
    with suppress(Exception):
        _raised.write_bytes(cloudpickle.dumps(_error))
    raise
{leaving}
'''
ON_ENGINES = """
import cloudpickle
from contextlib import suppress
try:
    result = call[0](*call[1])
except Exception as error:
    with suppress(Exception):
        raised = cloudpickle.dumps(error)
    raise
"""


def launch(
    function: Callable[..., Any],
    *args: Any,
    np: int | None = None,
    backend: str = "ddp",
    launcher: str | None = None,
    timeout: float | None = None,
    max_restarts: int = 0,
    hosts: str | None = None,
) -> list[Any]:
    """Call a function on every rank of a new job, and return what each rank returned.

    Parameters
    ----------
    function, args
        What is called. They travel by value; keyword arguments go in with `functools.partial`.
    np
        Number of ranks; by default one for each GPU, or 2.
    backend
        ``ddp``: the process group is formed before the call; ``horovod``: Horovod is initialised;
        ``xla``: each has a device of XLA's; ``none``: there is no group.
    launcher
        ``torchrun`` (the default), ``horovodrun`` (for Horovod), or ``engines`` for ipyparallel
        engines that end with the call.
    timeout
        Seconds after which the job is stopped; None for no limit.
    max_restarts
        How often torchrun restarts all ranks when one fails.
    hosts
        ``HOST:SLOTS,...``, as ``-H`` of `%%distributed` takes it; this machine by default. `np` is
        all their slots by default.

    Returns
    -------
    list
        A value for each rank, rank zero's first.

    Raises
    ------
    Exception
        What the function raised on the rank that failed first; its cause says where the others
        were.
    RankError, Interrupted
        If a rank died, or the job was stopped.
    UsageError
        If something cannot be; nothing was started.
    """
    _, values = Call(
        function, *args, np=np, backend=backend, launcher=launcher, timeout=timeout,
        max_restarts=max_restarts, hosts=hosts,
    ).run()  # fmt: skip
    return values


@dataclass(frozen=True, init=False)
class Call:
    """A call of a function for `nbdist.compare`, which makes it on every rank of a new job.

    The parameters are those of `nbdist.launch`.

    Examples
    --------
    >>> nbdist.Call(train, 0.1, np=2, backend="horovod")  # doctest: +SKIP
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    np: int | None
    backend: str
    launcher: str
    timeout: float | None
    max_restarts: int
    slots: dict[str, int]
    """The number of ranks by host; empty for this host alone."""

    def __init__(
        self,
        function: Callable[..., Any],
        *args: Any,
        np: int | None = None,
        backend: str = "ddp",
        launcher: str | None = None,
        timeout: float | None = None,
        max_restarts: int = 0,
        hosts: str | None = None,
    ) -> None:
        given = {
            "function": function, "args": args, "np": np, "backend": backend,
            "launcher": launcher or script_launcher(backend),
            "timeout": timeout, "max_restarts": max_restarts, "slots": hosts_named(hosts, None),
        }  # fmt: skip
        for name, value in given.items():
            object.__setattr__(self, name, value)

    def check(self) -> int:
        """Return the number of ranks; raise `UsageError` if the call is not possible."""
        if not callable(self.function):
            raise UsageError(
                f"{self.function!r} is not a function: pass (train, 0.1), not (train(0.1))"
            )
        if not isinstance(self.np, (int, NoneType)):
            raise UsageError(f"np={self.np!r} is not a number of ranks")
        check_fit(self.backend, self.launcher)
        if self.max_restarts and self.launcher != "torchrun":
            raise UsageError("max_restarts is for launcher torchrun")
        timeout: Any = self.timeout
        if timeout is not None and not (isinstance(timeout, (int, float)) and timeout > 0):
            raise UsageError(f"timeout={self.timeout} is not a number of seconds")
        if self.max_restarts < 0:
            raise UsageError(f"max_restarts={self.max_restarts} must not be negative")
        if self.slots and self.launcher == "engines":
            raise UsageError("hosts is for launcher torchrun or horovodrun")
        if self.launcher in ("kernel", "python"):
            raise UsageError(f"launcher {self.launcher} is for cells: %%distributed")
        return self._request.size()

    @property
    def _request(self) -> LaunchRequest:
        return LaunchRequest(self.np, self.backend, self.launcher, self.slots, self.max_restarts)

    def packed(self) -> bytes:
        """Return the pickled call; raise `UsageError` if it cannot be pickled."""
        try:
            return bytes(cloudpickle.dumps((self.function, self.args)))
        except Exception as err:  # a user's __reduce__ may raise anything
            raise UsageError(
                f"{_name(self.function)} or its arguments cannot be sent: {why_not(err)}"
            ) from err

    def run(self, *, returns: bool = True) -> tuple[Job, list[Any]]:
        """Make the call; return the job and, if wanted, what each rank returned."""
        size = self.check()
        if self.launcher == "engines":
            return self._on_engines(size, returns=returns)
        script = _script(self.packed(), self.backend)
        plan = replace(
            self._request.plan(script.cell_line, size), timeout=self.timeout,
            returns=["result"] * returns, all_return=True, label="nbdist.launch",
        )  # fmt: skip
        told = f"{_name(self.function)}(...)"
        job = script_cells.submit(script, plan, told, number=0, viewed=True)
        _show_until_end(job)
        if job.error is not None:
            _raise_own(job, lambda rank: (job.folder / f"raised{rank}.pkl").read_bytes())
        return job, [_value(job, rank) for rank in job.ranks] if returns else []

    def _on_engines(self, size: int, *, returns: bool) -> tuple[Job, list[Any]]:
        cluster = Cluster(size, backend=self.backend)
        try:
            cluster.push(call=(self.function, self.args))
            job = cluster.submit_cell(ON_ENGINES, CellOptions(timeout=self.timeout, viewed=True))
            _show_until_end(job)
            if job.error is not None:
                _raise_own(job, lambda rank: cluster.pull("raised", rank))
            return job, list(cluster.pull("result", range(size)).values()) if returns else []
        finally:
            cluster.stop()


def _script(call: bytes, backend: str) -> Script:
    around = preamble(backend, set(), forms_group=False)
    text = SCRIPT.format(
        imports="\n".join(around.imports), anywhere=around.anywhere, joining=around.joining,
        leaving=around.leaving,
    )  # fmt: skip
    return Script("script.py", text, {"call.pkl": call}, text.count("\n") + 1)


def _show_until_end(job: Job) -> None:
    """Print what rank zero prints; an interrupt stops the job."""
    interrupted = False
    while True:
        try:
            event = job.next_event()
            if event is None:
                break
            _show(event)
        except KeyboardInterrupt:
            interrupted = True
            job.cancel()
    if interrupted:
        raise KeyboardInterrupt(str(job.error))


def _show(event: Event) -> None:
    match event:
        case Text(text):
            sys.stdout.write(text)
            sys.stdout.flush()
        case Notice(text=text) if text:
            sys.stderr.write(f"{text}\n")
        case Shown(content=content):
            text = content.get("data", {}).get("text/plain")
            sys.stdout.write(f"{text}\n" if text else "")


def _raise_own(job: Job, read: Callable[[int], bytes]) -> None:
    """Raise the exception of the rank that failed first, if it can be unpickled here."""
    assert job.error is not None
    own: BaseException | None = None
    first = first_of(job.errors) if job.errors else 0
    if job.errors and not isinstance(job.errors[first], Death):
        try:
            own = pickle.loads(read(first))  # noqa: S301  # our own rank's
        except Exception:  # it does not travel, or cannot be put together here
            own = None
    if isinstance(own, BaseException):
        raise own from job.error
    raise job.error


def _value(job: Job, rank: int) -> Any:
    offer = job.take_returned(rank)
    if offer is None:
        raise NbdistError(f"rank {rank} has returned nothing")
    if offer.refused:
        why = "; ".join(offer.refused.values())
        raise NbdistError(f"what rank {rank} returned cannot be sent: {why}")
    return unpacked(offer.parcel, offer.buffers)["result"]


def _name(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", function))
