"""Tells a call that lasts from a later one of the same function, looking from another thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType


def is_new(frame: FrameType) -> bool:
    """Whether nobody has looked at this call before; from now on somebody has.

    A frame's id does not tell: CPython gives it to the next frame. So the frame is marked, and the
    mark ends with the call. Holding the frame instead would hold its tensors, and it cannot be
    referred to weakly. Without `f_trace_lines` a debugger does not stop at the lines of this call.
    """
    new = frame.f_trace_lines
    frame.f_trace_lines = False
    return new
