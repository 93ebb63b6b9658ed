"""The sidebar's part in the Jupyter server: reads files of state, passes commands on.

It runs in the server's process, whose environment may differ from the kernels'. So nothing
here imports torch, the launchers, the wire, the hub, the magics or the widgets, directly or
indirectly (`tests/test_server.py` checks this).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from nbdist.settings import PAGE

if TYPE_CHECKING:
    from jupyter_server.serverapp import ServerApp


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    return [{"module": "nbdist.server"}]


def _load_jupyter_server_extension(app: ServerApp) -> None:
    from nbdist.server.handlers import routes  # tornado and the server are imported by now
    from nbdist.view.page_state import VERSION

    # Kernels inherit the variable: their pages have our extension and can read this version.
    os.environ[PAGE] = str(VERSION)

    app.web_app.add_handlers(".*$", routes(app.web_app.settings["base_url"]))
    app.log.info("nbdist shows its clusters and jobs")
