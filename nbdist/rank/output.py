"""A rank's output during a cell: descriptors 1 and 2 are its log file, rich display goes beside.

Everything here runs on the rank's main thread. Because the descriptors themselves point at the
log, what C libraries and child processes print is in it too, in order, and the last words before
a crash are on disk already.
"""

from __future__ import annotations

import builtins
import io
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ipykernel.jsonutil import encode_images, json_clean
from IPython.core import page
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher

from nbdist.rank.describe import PLAIN

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

WIDGET = "application/vnd.jupyter.widget-view+json"
UNDERSCORE = re.compile(r"\b_\b")
"""The last cell's value, in a cell's code."""
Show = Callable[[str, dict[str, Any]], None]
"""Takes a message kind and its content; see `nbdist.wire.messages.Display`."""


class Log:
    """The rank's log file, and streams that write to it without any buffer of ours.

    From the first cell on, the log has the process's output. So what a thread prints after its
    cell is in the log too, a logging handler made in one cell writes to the same stream in the
    next, and so does whatever the user has put in the place of `sys.stdout`.
    """

    def __init__(self) -> None:
        self._path = ""
        self._fd = -1

    def take(self, path: str) -> None:
        """Point descriptors 1 and 2, `sys.stdout` and `sys.stderr` at the log."""
        if path != self._path:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            if self._fd >= 0:
                os.close(self._fd)
            else:
                sys.stdout, sys.stderr = _unbuffered(1), _unbuffered(2)
            self._path, self._fd = path, fd
        for name, fd in (("stdout", 1), ("stderr", 2)):
            stream = getattr(sys, name)
            if stream is None or getattr(stream, "closed", False):
                setattr(sys, name, _unbuffered(fd))
        # Also when they should be there already: a cell may have redirected them for good.
        os.dup2(self._fd, 1)
        os.dup2(self._fd, 2)

    def size(self) -> int:
        """Return how many bytes the log holds."""
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        """Let go of the file; the process's output has been given to others."""
        if self._fd >= 0:
            os.close(self._fd)
            self._path, self._fd = "", -1


@contextmanager
def lent(out: Any, err: Any) -> Iterator[None]:  # text streams that have a descriptor
    """Give the process's output, descriptors included, to others meanwhile."""
    streams, saved = (sys.stdout, sys.stderr), (os.dup(1), os.dup(2))
    sys.stdout, sys.stderr = out, err
    os.dup2(out.fileno(), 1)
    os.dup2(err.fileno(), 2)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams
        for fd, kept in zip((1, 2), saved, strict=True):
            os.dup2(kept, fd)
            os.close(kept)


@contextmanager
def given_back() -> Iterator[None]:
    """Give the process's output back afterwards, to whom it belonged; meanwhile a log may take it.

    What was made before, a logging handler say, writes to the kernel's own streams, which do not
    use the descriptors: these streams are redirected, too.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    streams, saved = (sys.stdout, sys.stderr), (os.dup(1), os.dup(2))
    owned = [(stream, fd) for stream, fd in zip(streams, (1, 2), strict=True) if _kernels(stream)]
    for stream, fd in owned:
        vars(stream)["write"] = lambda text, fd=fd: _write(fd, text)
    try:
        yield
    finally:
        for stream, _ in owned:
            vars(stream).pop("write", None)
        sys.stdout, sys.stderr = streams
        for fd, kept in zip((1, 2), saved, strict=True):
            os.dup2(kept, fd)
            os.close(kept)


def _kernels(stream: object) -> bool:
    """Whether this is one of a kernel's streams, which send messages."""
    return hasattr(stream, "pub_thread")


def _write(fd: int, text: str) -> int:
    data = memoryview(text.encode(errors="backslashreplace"))
    while data:
        data = data[os.write(fd, data) :]
    return len(text)


def _unbuffered(fd: int) -> io.TextIOWrapper:
    # Straight to the descriptor: nothing waits in a buffer when the process dies, and prints keep
    # their order with what C code writes.
    return io.TextIOWrapper(
        io.FileIO(fd, "w", closefd=False),
        encoding="utf-8",
        errors="backslashreplace",
        write_through=True,
    )


class _Publisher(DisplayPublisher):
    """Takes `display(...)`, its updates and `clear_output`."""

    show: Show
    hides = WIDGET

    def publish(  # type: ignore[override]
        self,
        data: dict[str, Any],
        metadata: dict[str, Any] | None = None,
        *,
        transient: dict[str, Any] | None = None,
        update: bool = False,
        **_: object,
    ) -> None:
        kind = "update_display_data" if update else "display_data"
        self.show(kind, _bundle(data, metadata, transient, self.hides))

    def clear_output(self, wait: bool = False) -> None:  # IPython's API
        self.show("clear_output", {"wait": wait})

    def set_parent(self, parent: dict[str, Any]) -> None:
        """Take no notice: a `%px` cell has come that will wait for ours."""


class _Hook(DisplayHook):
    """Takes the value of a cell's last expression."""

    show: Show
    hides = WIDGET
    others: tuple[DisplayHook, ...] = ()
    """Hooks that bind `_` as well."""
    holds = False
    """Whether `_` holds a value that may be large, or hold others."""

    def update_user_ns(self, result: Any) -> None:  # the cell's value
        """Bind `_`, unless that is a variable of the user's. `Out` and its like stay empty.

        A rank's last value may hold all of a model's activations.
        """
        space = self._space
        before = space.get("_")
        if any(before is hook._ for hook in (self, *self.others)) and not hasattr(builtins, "_"):
            self._ = space["_"] = result
            self.holds = type(result) not in PLAIN

    @property
    def _space(self) -> dict[str, Any]:
        assert self.shell is not None  # given when it was made
        space: dict[str, Any] = self.shell.user_ns
        return space

    def forget_value(self) -> None:
        """Let go of what `_` is bound to."""
        if self._space.get("_") is self._:
            self._space["_"] = ""
        self._, self.holds = "", False

    def write_output_prompt(self) -> None:
        """Write nothing: the notebook draws the prompt."""

    def write_format_data(
        self, format_dict: dict[str, Any], md_dict: dict[str, Any] | None = None
    ) -> None:
        self.show("execute_result", _bundle(format_dict, md_dict, None, self.hides))

    def finish_displayhook(self) -> None:
        """Leave the log as it is: IPython would print a line break."""
        self._is_active = False

    def set_parent(self, parent: dict[str, Any]) -> None:
        """Take no notice: a `%px` cell has come that will wait for ours."""


def _bundle(
    data: dict[str, Any], metadata: dict[str, Any] | None, transient: dict[str, Any] | None,
    hidden: str,
) -> dict[str, Any]:  # fmt: skip
    # A widget's own messages would not reach the notebook: what is left of it is its text.
    shown = {kind: value for kind, value in data.items() if kind != hidden}
    return {
        "data": json_clean(encode_images(shown)),
        "metadata": json_clean(metadata or {}),
        "transient": json_clean(transient or {}),
    }


class RichDisplay:
    """Sends rich display and a cell's value to us instead of the engine's own channels.

    Parameters
    ----------
    shell
        Whose.
    own
        Whether the shell is the rank's own. In the notebook's, widgets and the pager work as ever.
    """

    def __init__(self, shell: InteractiveShell, *, own: bool = True) -> None:
        self._shell = shell
        # Made once: building traitlets objects costs as much as running an empty cell.
        self._publisher = _Publisher(parent=shell, shell=shell)
        self._hook = _Hook(parent=shell, shell=shell)
        self._publisher.hides = self._hook.hides = WIDGET if own else ""
        self._hook.others = (shell.displayhook,)
        if not own:
            return
        # `name?` and `%prun` open a pager in a notebook; here their text stands in the output.
        shell.set_hook("show_in_pager", page.as_hook(page.display_page), priority=90)

    def begin(self, code: str) -> None:
        """Let go of the last cell's value, unless it is plain or this cell asks for it."""
        if self._hook.holds and not UNDERSCORE.search(code):
            self._hook.forget_value()

    def forget_value(self) -> None:
        """Let go of the last cell's value."""
        self._hook.forget_value()

    @contextmanager
    def to(self, show: Show) -> Iterator[None]:
        """Call `show` for everything the shell displays meanwhile."""
        shell, hook = self._shell, self._hook
        self._publisher.show = hook.show = show
        kept = shell.display_pub, shell.displayhook, shell.display_trap.hook
        shell.display_pub, shell.displayhook = self._publisher, hook
        shell.display_trap.hook = hook
        trapped = sys.displayhook
        if trapped is kept[1]:  # within a cell of the notebook's, which has sprung the trap
            sys.displayhook = hook
        try:
            yield
        finally:
            shell.display_pub, shell.displayhook, shell.display_trap.hook = kept
            sys.displayhook = trapped


def as_text(kind: str, content: dict[str, Any]) -> None:
    """Show of the ranks whose display the notebook leaves out: its plain text, into the log."""
    text = content.get("data", {}).get("text/plain")
    if kind != "update_display_data" and text:
        print(text)  # descriptor 1 is the log
