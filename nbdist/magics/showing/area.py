"""The output area of one cell, which a thread updates while other cells run.

Usual output goes to the cell in the kernel's current parent header, which is another cell by then.
Messages made here name their cell explicitly. Any thread.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TextIO

from nbdist.magics.showing.front_end import in_notebook
from nbdist.magics.showing.job_output import bundle

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

    from nbdist.job.events import Shown


class NotebookArea:
    """A cell of a notebook: messages on the kernel's own publishing socket.

    ipykernel itself uses this session and this socket (which passes messages on to the kernel's
    publishing thread) from several threads.

    Parameters
    ----------
    publisher
        The kernel's display publisher, while the cell runs.
    prefix
        The beginning of the names of displays made here.
    """

    def __init__(self, publisher: Any, prefix: str) -> None:  # ipykernel's
        self._publisher = publisher
        self._session, self._socket = publisher.session, publisher.pub_socket
        self._parent = dict(publisher.parent_header)
        self._prefix = prefix
        self._placed: set[str] = set()

    def is_here(self) -> bool:
        """Return whether this cell is running now. Called on the running cell's thread."""
        return bool(self._publisher.parent_header["msg_id"] == self._parent["msg_id"])

    def _send(self, kind: str, content: dict[str, Any]) -> None:
        topic = kind.encode()
        self._session.send(self._socket, kind, content, parent=self._parent, ident=topic)

    def text(self, text: str) -> None:
        """See `Area`."""
        if text:
            self._send("stream", {"name": "stdout", "text": text})

    def notice(self, key: str, text: str, *, warns: bool = False) -> None:
        """See `Area`."""
        self.place(key, bundle(text, warns=warns), {})

    def place(self, key: str, data: dict[str, Any], metadata: dict[str, Any]) -> None:
        """See `Area`."""
        kind = "update_display_data" if key in self._placed else "display_data"
        self._placed.add(key)
        content = {"data": data, "metadata": metadata, "transient": self._named(key)}
        self._send(kind, content)

    def _named(self, key: str) -> dict[str, str]:
        return {"display_id": f"{self._prefix}-{key}"}

    def headline(self, text: str) -> None:
        """Show the job's state, here and in every cell that shows this headline."""
        self.notice("headline", text)

    def headline_from_here(self, text: str, *, update: bool = True) -> None:
        """Update the headline from the running cell, or show it there. That cell's thread."""
        transient = self._named("headline")
        self._publisher.publish(bundle(text), transient=transient, update=update)

    def shown(self, event: Shown) -> None:
        """See `Area`; the last value is a display, because the cell's own value is the job."""
        content = event.content
        if event.kind == "execute_result":
            self._send("display_data", {"transient": {}, **content})
        else:
            self._send(event.kind, content)

    def error(self, error: Exception) -> None:
        """Show the job's error as a failed cell does."""
        name, lines = type(error).__name__, traceback_of(error)
        self._send("error", {"ename": name, "evalue": str(error), "traceback": lines})


class TerminalArea:
    """IPython in a terminal: all output goes between the prompts.

    Parameters
    ----------
    out
        The terminal, if `sys.stdout` is not the terminal.
    """

    def __init__(self, out: TextIO | None = None) -> None:
        self._headlined = False
        self._out = out

    def is_here(self) -> bool:
        """Return True: a terminal has one screen for all cells."""
        return True

    def headline(self, text: str) -> None:
        """Show the job's end, but not its beginning, which the cell's value shows."""
        if self._headlined:
            self.text(f"{text}\n")
        self._headlined = True

    def headline_from_here(self, text: str, *, update: bool = True) -> None:
        """Do nothing: `headline` has shown it."""

    def text(self, text: str) -> None:
        """See `Area`."""
        out = self._out or sys.stdout
        out.write(text)
        out.flush()

    def notice(self, key: str, text: str, *, warns: bool = False) -> None:
        """See `Area`; earlier lines stay on the screen."""
        del key, warns
        if text:
            self.text(f"{text}\n")

    def place(self, key: str, data: dict[str, Any], metadata: dict[str, Any]) -> None:
        """See `Area`."""
        del key, metadata
        self.text(f"{data['text/plain']}\n")

    def shown(self, event: Shown) -> None:
        """See `Area`."""
        if "data" in event.content:
            self.text(f"{event.content['data'].get('text/plain', '')}\n")

    def error(self, error: Exception) -> None:
        """Show the job's error."""
        self.text("\n".join([*traceback_of(error), ""]))


def area_of(shell: InteractiveShell, prefix: str) -> NotebookArea | TerminalArea:
    """Return the output area of the running cell. Called on the cell's thread."""
    return NotebookArea(shell.display_pub, prefix) if in_notebook(shell) else TerminalArea()


def traceback_of(error: Exception) -> list[str]:
    """Return the lines that IPython shows for an error of nbdist."""
    render = getattr(error, "_render_traceback_", None)
    return list(render()) if render else [f"{type(error).__name__}: {error}"]
