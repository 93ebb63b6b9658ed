"""The outputs of a cell that a test kernel has run, as a front end would show them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class Output:
    """An output of a cell: one message, with the time of its arrival.

    Attributes
    ----------
    kind : str
        ``stdout``, ``stderr``, ``display``, ``update``, ``result``, ``error``, ``clear`` or
        ``comm``.
    text : str
        The stream's text, the error's traceback, or the ``text/plain`` of a display.
    data : dict
        The MIME bundle of a display or result; the message's content for the other kinds.
    seconds : float
        The time of arrival, counted from the sending of the cell.
    display_id : str or None
        The id by which later messages update this display.
    """

    kind: str
    text: str
    data: dict[str, Any]
    seconds: float
    display_id: str | None = None


@dataclass
class Cell:
    """A run of code in a kernel: the outputs so far, and how it ended."""

    code: str
    sent: float = field(default_factory=time.monotonic)
    events: list[Output] = field(default_factory=list)
    """All outputs in the order of their arrival."""
    outputs: list[Output] = field(default_factory=list)
    """The outputs that are shown now: streams joined, displays updated, cleared output gone."""
    reply: dict[str, Any] | None = None
    seconds: float | None = None
    """The time from sending the cell until the kernel was idle again."""
    _clear_on_next: bool = False

    @property
    def done(self) -> bool:
        """Whether the kernel has answered and is idle."""
        return self.reply is not None and self.seconds is not None

    @property
    def ok(self) -> bool:
        """Whether the cell ended without an error."""
        return self.done and self.reply is not None and self.reply["status"] == "ok"

    @property
    def stdout(self) -> str:
        """All text on stdout, also text that was cleared."""
        return self._stream("stdout")

    @property
    def stderr(self) -> str:
        """All text on stderr, also text that was cleared."""
        return self._stream("stderr")

    @property
    def text(self) -> str:
        """The text that is shown now: streams, ``text/plain`` of displays, tracebacks."""
        return "".join(
            out.text if out.text.endswith("\n") else out.text + "\n" for out in self.outputs
        )

    @property
    def error(self) -> str:
        """``Name: message`` of the error the cell ended with, or the empty string."""
        if self.reply is None or self.reply["status"] == "ok":
            return ""
        return f"{self.reply.get('ename', 'aborted')}: {self.reply.get('evalue', '')}"

    def mime(self, kind: str) -> list[Any]:
        """Return the data of one MIME type in all displays and results shown now."""
        return [out.data[kind] for out in self.outputs if kind in out.data]

    def seen(self) -> str:
        """Describe the cell so far, for the message of a failing test."""
        state = "done" if self.done else f"not done after {time.monotonic() - self.sent:.1f} s"
        lines = [f"--- cell ({state}) ---", self.code, "--- seen ---"]
        lines += [f"{out.seconds:7.2f}s {out.kind}: {out.text.rstrip()}" for out in self._pieces()]
        return "\n".join([*lines, self.error])

    def _pieces(self) -> Iterator[Output]:
        """Return all outputs, with successive messages of a stream joined."""
        for kind, outs in groupby(self.events, key=lambda out: out.kind):
            if kind in ("stdout", "stderr"):
                found = list(outs)
                yield replace(found[0], text="".join(out.text for out in found))
            else:
                yield from outs

    def receive(self, kind: str, content: dict[str, Any]) -> Output | None:
        """Take a message of the kernel; return the output if it is, or updates, a display."""
        if kind == "clear_output":
            self._record("clear", "", content)
            self._clear_on_next = bool(content["wait"])
            if not content["wait"]:
                self.outputs.clear()
            return None
        if kind == "stream":
            self._show_stream(self._record(content["name"], content["text"], content))
            return None
        if kind == "error":
            self._show(self._record("error", "\n".join(content["traceback"]), content))
            return None
        if kind.startswith("comm_"):
            self._record("comm", kind, content)
            return None
        bundle = content["data"]
        display_id = content.get("transient", {}).get("display_id")
        name = {"display_data": "display", "execute_result": "result"}.get(kind, "update")
        out = self._record(name, bundle.get("text/plain", ""), bundle, display_id)
        return out if name == "update" else self._show(out)

    def _record(
        self, kind: str, text: str, data: dict[str, Any], display_id: str | None = None
    ) -> Output:
        out = Output(kind, text, data, time.monotonic() - self.sent, display_id)
        self.events.append(out)
        return out

    def _show(self, out: Output) -> Output:
        """Show a copy: updates change what is shown, not what was recorded."""
        if self._clear_on_next:
            self.outputs.clear()
            self._clear_on_next = False
        shown = replace(out)
        self.outputs.append(shown)
        return shown

    def _show_stream(self, out: Output) -> None:
        last = self.outputs[-1] if self.outputs and not self._clear_on_next else None
        if last is not None and last.kind == out.kind:
            last.text += out.text
        else:
            self._show(out)

    def _stream(self, name: str) -> str:
        return "".join(out.text for out in self.events if out.kind == name)
