"""Rich display on a rank: sends `display(...)` and a cell's value to the hub. Main thread only.

It is a module apart from `rank_output` because it needs IPython, whose import takes a tenth of a
second: a script without rich display does not need it.
"""

from __future__ import annotations

import builtins
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ipykernel.jsonutil import encode_images, json_clean
from IPython.core import page
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher

from nbdist.rank.values.describe import PLAIN

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

WIDGET = "application/vnd.jupyter.widget-view+json"
UNDERSCORE = re.compile(r"\b_\b")
"""The name `_`, which is the last cell's value, in a cell's code."""
LONG_TEXT = 20_000
"""From so many characters on, only the beginning and the end of a value's text are shown."""
HEAD, TAIL = 4_000, 1_000
Show = Callable[[str, dict[str, Any]], None]
"""Called with a message type and its content; see `nbdist.wire.messages.Display`."""


class _Publisher(DisplayPublisher):
    """Receives `display(...)`, its updates and `clear_output`."""

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
        """Do nothing: this is called for a `%px` cell, which will wait for ours."""


class _Hook(DisplayHook):
    """Receives the value of a cell's last expression."""

    show: Show
    hides = WIDGET
    others: tuple[DisplayHook, ...] = ()
    """Other hooks that bind `_`."""
    holds = False
    """Whether `_` is bound to a value that may be large."""

    def update_user_ns(self, result: Any) -> None:  # the cell's value
        """Bind `_`, unless it is a variable of the user's. `Out` and the like stay empty.

        A rank's last value may hold all of a model's activations.
        """
        space = self._space
        before = space.get("_", self._)  # `%reset` removes it
        if any(before is hook._ for hook in (self, *self.others)) and not hasattr(builtins, "_"):
            self._ = space["_"] = result
            self.holds = type(result) not in PLAIN

    @property
    def _space(self) -> dict[str, Any]:
        assert self.shell is not None  # passed to the constructor
        space: dict[str, Any] = self.shell.user_ns
        return space

    def forget_value(self) -> None:
        """Release the value of `_`."""
        if self._space.get("_") is self._:
            self._space["_"] = ""
        self._, self.holds = "", False

    def write_output_prompt(self) -> None:
        """Write nothing: the notebook draws the prompt."""

    def write_format_data(
        self, format_dict: dict[str, Any], md_dict: dict[str, Any] | None = None
    ) -> None:
        bundle = _bundle(format_dict, md_dict, None, self.hides)
        text = bundle["data"].get("text/plain", "")
        if len(text) > LONG_TEXT:
            bundle["data"]["text/plain"] = _beginning_and_end(text)
        self.show("execute_result", bundle)

    def finish_displayhook(self) -> None:
        """Print nothing, where IPython would print a line break."""
        self._is_active = False

    def set_parent(self, parent: dict[str, Any]) -> None:
        """Do nothing: this is called for a `%px` cell, which will wait for ours."""


def _bundle(
    data: dict[str, Any], metadata: dict[str, Any] | None, transient: dict[str, Any] | None,
    hidden: str,
) -> dict[str, Any]:  # fmt: skip
    # A widget's messages do not reach the notebook, so only the widget's text is shown.
    shown = {kind: value for kind, value in data.items() if kind != hidden}
    return {
        "data": json_clean(encode_images(shown)),
        "metadata": json_clean(metadata or {}),
        "transient": json_clean(transient or {}),
    }


def _beginning_and_end(text: str) -> str:
    hidden = f"… {len(text) - HEAD - TAIL:,} characters are left out; `print` shows them all …"
    return f"{text[:HEAD]}\n{hidden}\n{text[-TAIL:]}"


class RichDisplay:
    """Redirects rich display and a cell's value from the engine's own channels to the hub.

    Parameters
    ----------
    shell
        The shell.
    own
        Whether it is a rank's shell. In the notebook's shell, widgets and the pager work as usual.
    """

    def __init__(self, shell: InteractiveShell, *, own: bool = True) -> None:
        self._shell = shell
        # Created once: creating traitlets objects takes as long as running an empty cell.
        self._publisher = _Publisher(parent=shell, shell=shell)
        self._hook = _Hook(parent=shell, shell=shell)
        self._publisher.hides = self._hook.hides = WIDGET if own else ""
        self._hook.others = (shell.displayhook,)
        if not own:
            return
        # `name?` and `%prun` open a pager in a notebook; here their text goes to the output.
        shell.set_hook("show_in_pager", page.as_hook(page.display_page), priority=90)

    def begin(self, code: str) -> None:
        """Release the last cell's value, unless it is plain or this cell uses it."""
        if self._hook.holds and not UNDERSCORE.search(code):
            self._hook.forget_value()

    def forget_value(self) -> None:
        """Release the last cell's value."""
        self._hook.forget_value()

    @contextmanager
    def to(self, show: Show) -> Iterator[None]:
        """Call `show` for everything that the shell displays meanwhile."""
        shell, hook = self._shell, self._hook
        self._publisher.show = hook.show = show
        kept = shell.display_pub, shell.displayhook, shell.display_trap.hook
        shell.display_pub, shell.displayhook = self._publisher, hook
        shell.display_trap.hook = hook
        trapped = sys.displayhook
        if trapped is kept[1]:  # inside a cell of the notebook, whose display trap is active
            sys.displayhook = hook
        try:
            yield
        finally:
            shell.display_pub, shell.displayhook, shell.display_trap.hook = kept
            sys.displayhook = trapped


def as_text(kind: str, content: dict[str, Any]) -> None:
    """Print the plain text of a display to the log, on ranks whose display is not shown."""
    text = content.get("data", {}).get("text/plain")
    if kind != "update_display_data" and text:
        print(text)  # file descriptor 1 is the log
