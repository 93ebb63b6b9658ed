"""`Chart`: the widget of live metrics (anywidget), whose only trait contains all that it draws.

An ES module draws it, bundled from `labextension/src/metrics` into `static/`. anywidget passes this
module to any front end, and nothing is downloaded. The module never asks the kernel, which is busy
running the cell.
"""

from __future__ import annotations

import threading
from collections import deque

import anywidget
import traitlets

from nbdist.errors import NbdistError
from nbdist.widgets.page import MODULE, STYLE, built

MOST_LEFT = 4
"""How many charts of finished jobs are kept open, for reloaded pages."""


class Chart(anywidget.AnyWidget):
    """Progress bars, curves, and tables of ranks and last values.

    Zoom, hidden curves and other choices of the user are kept in the page, and survive every new
    `state`. Send at most about four states a second.

    Raises
    ------
    NbdistError
        If nbdist was installed without the page's part.
    """

    _esm = MODULE if built() else ""
    _css = STYLE if built() else ""
    state = traitlets.Bytes().tag(sync=True)
    """The frame that is shown, see `nbdist.view.page_state`."""

    def __init__(self, state: bytes = b"") -> None:
        if not self._esm:
            raise NbdistError(
                f"The JavaScript of the live metrics, {MODULE}, is missing: nbdist was installed "
                "from source without Node.js. Install Node.js, then nbdist again, and restart the "
                "kernel."
            )
        super().__init__(state=state)

    def leave(self) -> None:
        """End the chart, but keep it open for a while for reloaded pages. Any thread.

        A reloaded page shows the saved output, which is this widget; it does not receive what has
        replaced the widget in the cell.
        """
        with _lock:
            _left.append(self)
            gone = _left.popleft() if len(_left) > MOST_LEFT else None
        if gone is not None:
            gone.close()


_lock = threading.Lock()
_left: deque[Chart] = deque()
