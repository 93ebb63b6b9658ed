"""What the front end of the running cell can show. Main thread, while the cell runs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nbdist.settings import METRICS, PAGE
from nbdist.view.page_state import VERSION
from nbdist.widgets.page import built

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

SIGNS = ("JPY_SESSION_NAME", "VSCODE_PID", "VSCODE_CWD", "COLAB_RELEASE_TAG")
"""Set for kernels that were started for somebody who looks."""
VS_CODE = "vscode-"
"""What VS Code's names of cells begin with."""


def in_notebook(shell: InteractiveShell) -> bool:
    """Return whether this is a kernel, whose cells each have an output area."""
    return hasattr(shell.display_pub, "pub_socket")


def metrics_how(shell: InteractiveShell) -> str:
    """Return how metrics are shown here, see `nbdist.widgets.live_metrics.LiveMetrics`.

    A kernel is not told who is at its other end. A Jupyter server that has our extension says so to
    its kernels; its pages have it, too, other front ends at the same server (VS Code) have not.
    JupyterLab, Notebook 7 and VS Code name the cell in each request, nbclient and consoles do not.
    NBDIST_METRICS (page, widget, picture or end) decides.
    """
    wanted = os.environ.get("NBDIST_METRICS", "")
    if wanted in METRICS:
        return "picture" if wanted == "widget" and not built() else wanted
    if not in_notebook(shell):
        return "end"
    request = shell.kernel.get_parent("shell") or {}  # type: ignore[attr-defined]  # a kernel's
    cell = str(request.get("metadata", {}).get("cellId", ""))
    if cell and not cell.startswith(VS_CODE) and os.environ.get(PAGE) == str(VERSION):
        return "page"
    if not built():
        return "picture"
    return "widget" if cell or any(sign in os.environ for sign in SIGNS) else "picture"
