"""The sidebar's part in the Jupyter server: reads files of state, passes commands on.

It lives in the server's process, which may be of another environment than the kernels'. So nothing
here imports torch, the launchers, the wire, the hub, the magics or the widgets, and nothing that is
imported here does (`tests/test_server.py` looks).
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
    from nbdist.server.handlers import routes  # tornado and the server are there by now
    from nbdist.view.page_state import VERSION

    # Kernels inherit it: their pages have our extension, and show what this version sends.
    os.environ[PAGE] = str(VERSION)

    app.web_app.add_handlers(".*$", routes(app.web_app.settings["base_url"]))
    app.log.info("nbdist shows its clusters and jobs")
