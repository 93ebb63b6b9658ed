"""``%dist restart kernel``: replaces the notebook's own process."""

from __future__ import annotations

from IPython.core.getipython import get_ipython

from nbdist.magics.commands.arguments import UsageMistake


def restart_kernel() -> str:
    """End this kernel so that its server restarts it; return a message for the user.

    Raises
    ------
    UsageMistake
        If this process is not a kernel.
    """
    kernel = getattr(get_ipython(), "kernel", None)
    if kernel is None:
        raise UsageMistake(
            "this is IPython in a terminal, not a kernel: exit and start IPython again"
        )
    kernel.do_shutdown(restart=True)
    return (
        "The kernel ends now, and with it all variables of the notebook. JupyterLab and Notebook "
        "restart it within seconds; elsewhere, start it from the menu."
    )
