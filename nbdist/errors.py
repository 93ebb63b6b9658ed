"""Errors of nbdist: each says what happened, where, and what to do."""

from __future__ import annotations


class NbdistError(Exception):
    """Base of all errors nbdist raises itself."""


class UsageError(NbdistError):
    """What was asked for cannot be done; nothing was started."""


class LaunchError(NbdistError):
    """Ranks could not be brought to life."""

    def _render_traceback_(self) -> list[str]:
        return f"{type(self).__name__}: {self}".splitlines()


class RankError(NbdistError):
    """A job failed on one or more ranks; the message begins with the rank that failed first."""


class Interrupted(NbdistError):
    """A job was ended by an interrupt or its time limit."""
