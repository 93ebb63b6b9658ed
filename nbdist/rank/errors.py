"""What a user's exception says, however odd it is, and what we say of a user's object."""

from __future__ import annotations

import pickle

MOST_FRAMES = 25
"""Frames shown at either end of a traceback."""


def shorten(error: BaseException | None) -> None:
    """Cut the middle out of a very long traceback: a thousand frames would take seconds to show."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        traces = []
        trace = error.__traceback__
        while trace is not None:
            traces.append(trace)
            trace = trace.tb_next
        if len(traces) > 2 * MOST_FRAMES:
            traces[MOST_FRAMES - 1].tb_next = traces[-MOST_FRAMES]
            if hasattr(error, "add_note"):  # since Python 3.11
                error.add_note(f"({len(traces) - 2 * MOST_FRAMES} frames are not shown)")
        error = error.__cause__ or error.__context__


def text_of(error: BaseException) -> str:
    """Return an exception's message."""
    try:
        return str(error)
    except Exception as err:  # a user's __str__ may raise anything
        return f"(its text cannot be shown: {err!r})"


class CannotTravel(pickle.PicklingError):
    """Raised while pickling; the text says what is in the way."""
