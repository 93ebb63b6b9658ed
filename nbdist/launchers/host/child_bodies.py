"""The main functions of the warm process's children: controller, rank, launcher of a script."""

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
    """Run ipyparallel's controller."""
    gc.enable()
    os.umask(0o077)  # ipyparallel writes only some of its files as private files
    os.environ.update(order.environ)
    _write_to(order.log)
    # Imported after the fork: this process has another core, while the parent imports torch.
    from ipyparallel.controller.app import IPController

    from nbdist.launchers.host import heart_monitor

    with contextlib.suppress(AttributeError):  # another release: its monitor always beats
        heart_monitor.beat_when_awaited()
    # The controller's heart monitor is its own process, which must end with the controller.
    os.register_at_fork(after_in_child=die_with_parent)
    threading.excepthook = _end_with_thread
    app = IPController.instance()
    app.initialize(order.args)
    # Its files name the ports before these are bound. In the event loop's first turn all are bound
    # but some of threads: a thread that loses its port ends this process, a moment later perhaps.
    app.loop.add_callback(Path(order.ready).touch)
    app.start()


def _end_with_thread(args: threading.ExceptHookArgs) -> None:
    """End this process: a controller with a dead thread does not answer on all its ports."""
    threading.__excepthook__(args)
    os._exit(1)


def rank(spec: RankSpec) -> None:
    """Run a persistent rank."""
    from nbdist.rank import engine  # imported already, by the warm process

    engine.main(spec)


def launcher(order: StartLauncher, *, cold: bool) -> None:
    """Run the launcher of a script; if `cold`, by its command line in a new Python."""
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
