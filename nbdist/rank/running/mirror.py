"""Copies the notebook's directory, path, environment and arguments to a rank. Main thread."""

from __future__ import annotations

import os
import sys
import tempfile
from multiprocessing import process
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from IPython.core.interactiveshell import InteractiveShell

    from nbdist.wire.messages import Run


PROGRAM = "cell.py"
"""The program name that a cell finds in `sys.argv`, instead of a script's name."""


class Mirror:
    """Copies changes in the notebook before each cell; changes that cells make on the rank stay.

    Parameters
    ----------
    shell
        The rank's shell.
    own
        Environment variables with the rank's number and the like, which are never overwritten.
    """

    def __init__(self, shell: InteractiveShell, own: Iterable[str]) -> None:
        self._shell = shell
        self._own = frozenset(own)
        self._cwd = ""
        self._path: list[str] | None = None
        self._environ: dict[str, str | None] = {}
        self._argv = sys.argv
        """One list for all cells: a cell may have run `from sys import argv`."""
        self._argv[:] = self._given = [PROGRAM]

    def follow(self, run: Run) -> None:
        """Copy arguments, working directory, import path, environment, autoreload, futures."""
        self._take_arguments(run.arguments)
        if run.cwd and run.cwd != self._cwd:
            os.chdir(run.cwd)
            process.ORIGINAL_DIR = run.cwd  # type: ignore[attr-defined]  # spawned workers: ''
            self._cwd = run.cwd
        if run.sys_path != self._path:
            before = sys.path if self._path is None else self._path
            sys.path[:] = [place for place in sys.path if place not in before] + run.sys_path
            self._path = run.sys_path
        if run.environ != self._environ:
            self._take(run.environ)
        if run.autoreload:
            self._autoreload(run.autoreload)
        self._shell.compile.flags |= run.futures

    def _take_arguments(self, arguments: list[str]) -> None:
        """Give a cell its own arguments, not an earlier cell's.

        Arguments that a cell itself has set stay for later cells without arguments.
        """
        if arguments or len(self._given) > 1 or sys.argv == self._given:
            self._given = [PROGRAM, *arguments]
            self._argv[:] = self._given
            sys.argv = self._argv

    def _take(self, environ: dict[str, str | None]) -> None:
        for name, value in environ.items():
            known = name in self._environ and self._environ[name] == value
            if known or name in self._own:
                continue
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
            if name == "TMPDIR":
                tempfile.tempdir = None  # tempfile looks for it again
        self._environ = environ

    def _autoreload(self, mode: str) -> None:
        if "AutoreloadMagics" not in self._shell.magics_manager.registry:
            self._shell.run_line_magic("load_ext", "autoreload")
        self._shell.run_line_magic("autoreload", mode)
