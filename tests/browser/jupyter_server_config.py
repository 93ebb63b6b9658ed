"""A Jupyter server for the tests of the page: JupyterLab and Notebook 7, on this machine alone."""

from __future__ import annotations

import os
from pathlib import Path

from jupyterlab.galata import configure_jupyter_server
from traitlets.config import get_config

c = get_config()
configure_jupyter_server(c)
c.ServerApp.ip = "127.0.0.1"
c.ServerApp.port = int(os.environ["NBDIST_TEST_PORT"])
c.ServerApp.allow_root = True
c.ServerApp.root_dir = str(Path(os.environ["NBDIST_TEST_HOME"], "notebooks"))
# Galata's server is open to all, but other users of this machine must not run code in it.
c.IdentityProvider.token = os.environ["NBDIST_TEST_TOKEN"]
c.ServerApp.disable_check_xsrf = False
# The extension of this checkout, not an installed one.
c.LabServerApp.extra_labextensions_path = [os.environ["NBDIST_TEST_EXTENSIONS"]]
c.JupyterNotebookApp.expose_app_in_browser = True
