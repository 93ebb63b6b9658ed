"""The live metrics on a page: what its one trait says is all there is to draw.

The drawing is done by an ES module, bundled out of `labextension/src/metrics` into `static/`, which
anywidget hands to whatever front end there is; nothing is fetched from anywhere. It never asks the
kernel, which is busy running the cell.
"""

from __future__ import annotations

import threading
from collections import deque

import anywidget
import traitlets

from nbdist.errors import NbdistError
from nbdist.widgets.page import MODULE, STYLE, built

MOST_LEFT = 4
"""Charts of jobs that are over and are still there for pages that were reloaded."""


class Chart(anywidget.AnyWidget):
    """Progress bars, curves, and tables of the ranks and of the last values.

    Zoom, hidden curves and the other choices of whoever looks live in the page and outlast every
    new `state`; send at most some four a second.

    Raises
    ------
    NbdistError
        If nbdist was installed without the page's part.
    """

    _esm = MODULE if built() else ""
    _css = STYLE if built() else ""
    state = traitlets.Bytes().tag(sync=True)
    """What is shown, see `nbdist.view.page_state`."""

    def __init__(self, state: bytes = b"") -> None:
        if not self._esm:
            raise NbdistError(
                f"The live metrics lack their page's part, {MODULE}: nbdist was installed from its "
                "sources without Node.js. Install Node.js, then nbdist again, and restart the "
                "kernel."
            )
        super().__init__(state=state)

    def leave(self) -> None:
        """Be done with it, but leave what it shows to pages that were reloaded, for a while.

        They show what was saved, which is this widget: whatever replaced it in its cell never
        reaches them. Any thread.
        """
        with _lock:
            _left.append(self)
            gone = _left.popleft() if len(_left) > MOST_LEFT else None
        if gone is not None:
            gone.close()


_lock = threading.Lock()
_left: deque[Chart] = deque()
