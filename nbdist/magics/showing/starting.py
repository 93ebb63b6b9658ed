"""Says in the cell that it waits for its ranks, if they take long to start."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from nbdist.errors import NbdistError
from nbdist.hub.running.cell_turn import START_PATIENCE, STARTING, waits_for
from nbdist.magics.showing.area import area_of
from nbdist.notebook import current_cluster
from nbdist.notebook.session import Wish

if TYPE_CHECKING:
    from collections.abc import Iterator

    from IPython.core.interactiveshell import InteractiveShell


@contextmanager
def says_that_it_waits(shell: InteractiveShell, wish: Wish) -> Iterator[None]:
    """Show below the running cell that it waits for ranks, until they have started.

    Used on the cell's thread, which is blocked by the wait; so another thread shows the notice.
    """
    area = area_of(shell, f"nbdist-{STARTING}-{time.time_ns()}")
    said = threading.Event()

    def say() -> None:
        said.set()
        try:
            ranks = list(range(current_cluster.wished(wish).np or 0))
        except NbdistError:  # the caller, which waits, reports the error
            ranks = []
        area.notice(STARTING, waits_for(ranks))

    timer = threading.Timer(START_PATIENCE, say)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        if said.is_set():
            area.notice(STARTING, "")
