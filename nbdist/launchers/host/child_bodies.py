"""What the children of the warm process do; each of these ends with its process."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from nbdist.launchers.scripts import launcher as scripted
from nbdist.machine.operating_system import die_with_parent

if TYPE_CHECKING:
    from nbdist.launchers.host.protocol import StartController, StartLauncher
    from nbdist.rank.rank_spec import RankSpec


def controller(order: StartController) -> None:
    """Be ipyparallel's controller."""
    gc.enable()
    os.umask(0o077)  # of what ipyparallel writes, only some is private by itself
    os.environ.update(order.environ)
    _write_to(order.log)
    # Not before the fork: this is another core, and the other one has torch to import.
    from ipyparallel.controller.app import IPController

    from nbdist.launchers.host import heart_monitor

    with contextlib.suppress(AttributeError):  # of another release: it beats all the time
        heart_monitor.beat_when_awaited()
    # Its heart monitor is a process of its own, which would not see that everybody has been killed.
    os.register_at_fork(after_in_child=die_with_parent)
    threading.excepthook = _end_with_thread
    app = IPController.instance()
    app.initialize(order.args)
    # Its files say where it listens before it does; by its loop's first turn all is bound.
    app.loop.add_callback(Path(order.ready).touch)
    app.start()


def _end_with_thread(args: threading.ExceptHookArgs) -> None:
    """End this process: without a thread, whose port was taken, the controller is half deaf."""
    threading.__excepthook__(args)
    os._exit(1)


def rank(spec: RankSpec) -> None:
    """Be a rank that stays."""
    from nbdist.rank import engine  # imported while warming up

    engine.main(spec)


def launcher(order: StartLauncher, *, cold: bool) -> None:
    """Be the launcher of a script; cold, by its plain command line."""
    _write_to(order.log)
    os.chdir(order.cwd)
    for name, value in order.environ.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    how = scripted.launcher(order.module)
    if cold:
        os.execv(sys.executable, how.command(order.arguments, order.program))  # noqa: S606
    how.launch(order.arguments, order.program)


def _write_to(path: str) -> None:
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
