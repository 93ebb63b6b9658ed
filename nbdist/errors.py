"""The exceptions of nbdist; each message says what happened, where, and what to do."""

from __future__ import annotations


class NbdistError(Exception):
    """Base class of all errors that nbdist raises."""


class UsageError(NbdistError):
    """A command or a setting is wrong or impossible here; nothing was started."""


class LaunchError(NbdistError):
    """Ranks could not be started."""

    def _render_traceback_(self) -> list[str]:
        return f"{type(self).__name__}: {self}".splitlines()


class RankError(NbdistError):
    """A job failed on one or more ranks; the message begins with the rank that failed first."""


class Interrupted(NbdistError):
    """A job was ended by an interrupt or by its time limit."""


REFUSED = (
    "the cell was stopped, so no collective of it can begin any more: it could pair with an "
    "earlier one in which another rank still waits"
)
"""The text of `Interrupted` where a cell has caught its interrupt and goes on."""
