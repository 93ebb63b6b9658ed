"""What the kernel and the warm process of a host say to each other, over a socket pair."""

from __future__ import annotations

import msgspec

from nbdist.backends.groups.recovery import Recovery
from nbdist.rank.rank_spec import RankSpec


class Order(msgspec.Struct, frozen=True, tag=True):
    """Base of what the kernel asks for."""


CONTROLLER = "controller"
"""What words of ipyparallel's controller are told under; those of ranks have a number behind."""


class StartController(Order, frozen=True):
    """Start ipyparallel's controller, before torch is imported if it is the first order."""

    args: list[str]
    environ: dict[str, str]
    log: str
    ready: str
    """A file that is made when it listens at all its ports."""


class StartRank(Order, frozen=True):
    """Fork a rank."""

    spec: RankSpec


class StartLauncher(Order, frozen=True):
    """Start a launcher of a script, whose ranks are its children.

    Parameters
    ----------
    name
        What it is called in what is told of it.
    module
        Which launcher, one of `nbdist.launchers`: ``torchrun``.
    arguments
        The launcher's own flags.
    program
        The file that its ranks read, see `nbdist.rank.script_program`.
    environ
        What the notebook has changed in its environment; None removes a variable.
    log
        Where what it prints itself goes.
    cold
        Whether it is a fresh process, started by the plain command line.
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
    """Import modules in the warm process, so that all it forks from then on has them.

    Parameters
    ----------
    id
        What the answer refers to.
    sys_path, environ
        The notebook's import path, and what it has changed in its environment.
    limit
        Seconds that may take.
    tried
        Whether that went well before, in another warm process of this notebook.
    """

    id: int
    modules: list[str]
    sys_path: list[str]
    environ: dict[str, str | None]
    limit: float
    tried: bool


class StopPreload(Order, frozen=True):
    """Give up an import that is only tried yet."""

    id: int


class Signal(Order, frozen=True):
    """Send a signal to a process the warm process started itself."""

    pid: int
    signum: int


class End(Order, frozen=True):
    """End a process and all it left in its session: SIGTERM, then SIGKILL after `grace` seconds."""

    pid: int
    grace: float


class Word(msgspec.Struct, frozen=True, tag=True):
    """Base of what the warm process tells."""


class Warm(Word, frozen=True):
    """Imports are done, ranks can be started."""

    pid: int
    torch: str
    """torch's version, '' without torch."""
    plain: str
    """Why ranks cannot be forked and are started plainly, '' where they are forked."""
    recovery: Recovery
    """What is known of how this torch recovers, as far as ranks must know it to begin."""


class Probed(Word, frozen=True):
    """How this torch recovers is known."""

    recovery: Recovery


class Preloaded(Word, frozen=True):
    """Imports that were asked for are done, or cannot be."""

    id: int
    why: str = ""
    """Why they cannot be; then nothing was imported. '' if they are done."""
    seconds: float = 0.0
    grown: int = 0
    """Bytes of memory they have taken, which all forks share."""


class Started(Word, frozen=True):
    """A process lives. `name` is `controller` or `rank 3.0` (rank and incarnation)."""

    name: str
    pid: int
    created: float


class Died(Word, frozen=True):
    """A process has ended, and all its session with it."""

    name: str
    pid: int
    signum: int
    """The signal that ended it, 0 if it exited."""
    code: int
    out_of_memory: bool
    """SIGKILL ended it, and the kernel has killed for lack of memory while it lived."""


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
"""Begins the names of launchers; their job's token, which their workers inherit, follows."""
LENGTH = 4
"""Bytes of the big-endian length before every message."""


def pack(message: Order | Word) -> bytes:
    """Frame a message for the stream."""
    body = encode(message)
    return len(body).to_bytes(LENGTH, "big") + body
