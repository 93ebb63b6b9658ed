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
"""Environment variables of kernels that were started by an interactive front end."""
VS_CODE = "vscode-"
"""The beginning of VS Code's ids of cells."""


def in_notebook(shell: InteractiveShell) -> bool:
    """Return whether this is a kernel, whose cells each have an output area."""
    return hasattr(shell.display_pub, "pub_socket")


def metrics_how(shell: InteractiveShell) -> str:
    """Return how metrics are shown here, see `nbdist.widgets.live_metrics.LiveMetrics`.

    A kernel does not know its front end. A Jupyter server with our extension sets a variable for
    its kernels; its own pages have the extension, too, but other front ends of this server (VS
    Code) do not. JupyterLab, Notebook 7 and VS Code name the cell in each request, nbclient and
    consoles do not. NBDIST_METRICS (page, widget, picture or end), if set, decides.
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
