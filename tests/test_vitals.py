"""What other threads tell of the main thread of a rank."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from nbdist.rank.looking import vitals

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

TIMEOUT = 60


def test_the_line_is_found_though_a_generator_yields_during_the_look() -> None:
    within, goes_on, has_yielded, ends = (threading.Event() for _ in range(4))

    def generator() -> Iterator[None]:
        within.set()
        assert goes_on.wait(TIMEOUT)
        yield

    def cell() -> None:
        for _ in generator():
            has_yielded.set()
            assert ends.wait(TIMEOUT)

    thread = threading.Thread(target=cell)
    thread.start()
    assert within.wait(TIMEOUT)

    def cell_line(frame: FrameType) -> int | None:
        if frame.f_code is generator.__code__:
            goes_on.set()
            assert has_yielded.wait(TIMEOUT)
        return 7 if frame.f_code is cell.__code__ else None

    assert thread.ident is not None
    try:
        assert vitals.line(thread.ident, cell_line) == 7
    finally:
        ends.set()
        thread.join()
    assert vitals.line(thread.ident, cell_line) is None
