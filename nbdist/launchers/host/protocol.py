"""Messages between the kernel and the warm process of a host, over a socket pair."""

from __future__ import annotations

import msgspec

from nbdist.backends.groups.recovery import Recovery
from nbdist.rank.rank_spec import RankSpec


class Order(msgspec.Struct, frozen=True, tag=True):
    """Base class of the kernel's orders to the warm process."""


CONTROLLER = "controller"
"""The name of ipyparallel's controller in messages; a rank's name has a number at its end."""


class StartController(Order, frozen=True):
    """Start ipyparallel's controller, before torch is imported if it is the first order."""

    args: list[str]
    environ: dict[str, str]
    log: str
    ready: str
    """A file that is created when the controller listens at all its ports."""


class StartRank(Order, frozen=True):
    """Fork a rank."""

    spec: RankSpec


class StartLauncher(Order, frozen=True):
    """Start the launcher of a script; the ranks are the launcher's children.

    Parameters
    ----------
    name
        The launcher's name in messages.
    module
        A module of `nbdist.launchers.scripts`: ``torchrun``.
    arguments
        The launcher's own flags.
    program
        The file that its ranks read, see `nbdist.rank.script_program`.
    environ
        Variables that the notebook has changed; None removes a variable.
    log
        The file for the launcher's own output.
    cold
        Whether it is a new process, started by its command line.
    """

    name: str
    module: str
    arguments: list[str]
    program: str
    environ: dict[str, str | None]
    cwd: str
    log: str
    cold: bool


class Preload(Order, frozen=True):
    """Import modules in the warm process, so that later forks have them.

    Parameters
    ----------
    id
        The number of the order, repeated in the answer.
    sys_path, environ
        The notebook's import path, and the environment variables that it has changed.
    limit
        The time limit in seconds.
    tried
        Whether these imports need no trial: they have succeeded in an earlier warm process of this
        notebook, or are known to be harmless.
    """

    id: int
    modules: list[str]
    sys_path: list[str]
    environ: dict[str, str | None]
    limit: float
    tried: bool


class StopPreload(Order, frozen=True):
    """Cancel an import that is waiting or in its trial."""

    id: int


class Signal(Order, frozen=True):
    """Send a signal to a child of the warm process."""

    pid: int
    signum: int


class End(Order, frozen=True):
    """End a process and its session: SIGTERM, then SIGKILL after `grace` seconds."""

    pid: int
    grace: float


class Word(msgspec.Struct, frozen=True, tag=True):
    """Base class of the warm process's messages to the kernel."""


class Warm(Word, frozen=True):
    """The imports are done, so ranks can be started."""

    pid: int
    torch: str
    """The version of torch, '' without torch."""
    plain: str
    """Why ranks are started as new processes instead of forks, '' if they are forked."""
    recovery: Recovery
    """The result of the probe of torch so far, as much as ranks need to start."""


class Probed(Word, frozen=True):
    """The probe of torch has finished."""

    recovery: Recovery


class Preloaded(Word, frozen=True):
    """The answer to `Preload`: the imports are done, or refused."""

    id: int
    why: str = ""
    """Why nothing was imported, '' if the imports are done."""
    seconds: float = 0.0
    grown: int = 0
    """Bytes of memory that the modules take, shared by all forks."""


class Started(Word, frozen=True):
    """A process was started. `name` is `controller` or `rank 3.0` (rank and incarnation)."""

    name: str
    pid: int
    created: float


class Died(Word, frozen=True):
    """A process has ended, and its session was killed."""

    name: str
    pid: int
    signum: int
    """The signal that ended it, 0 if it exited."""
    code: int
    out_of_memory: bool
    """Whether SIGKILL ended it, and the system's OOM killer was active during its life."""


class Refused(Word, frozen=True):
    """A process could not be started."""

    name: str
    why: str


encode = msgspec.msgpack.Encoder().encode
decode_order = msgspec.msgpack.Decoder(
    StartController | StartRank | StartLauncher | Preload | StopPreload | Signal | End
).decode
decode_word = msgspec.msgpack.Decoder(Warm | Probed | Preloaded | Started | Died | Refused).decode

LAUNCHER = "launcher "
"""The prefix of launchers' names; the job's token follows, which their workers inherit."""
LENGTH = 4
"""The size, in bytes, of the big-endian length before every message."""


def pack(message: Order | Word) -> bytes:
    """Encode a message with its length in front."""
    body = encode(message)
    return len(body).to_bytes(LENGTH, "big") + body
