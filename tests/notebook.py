"""Short ways to say what tests of cells say again and again."""

from __future__ import annotations

import re
import time
from textwrap import dedent
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.cell import Cell
    from tests.kernel import Kernel

ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def distributed(body: str, flags: str = "") -> str:
    """Return a distributed cell; `body` may be indented like the test around it."""
    return f"%%distributed {flags}".rstrip() + f"\n{dedent(body).strip()}\n"


def on_ranks(kernel: Kernel, body: str, flags: str = "", **options: Any) -> Cell:
    """Run a distributed cell to its end; options are those of `Kernel.run`."""
    return kernel.run(distributed(body, flags), **options)


def printed_by(kernel: Kernel, rank: int) -> str:
    """Return what a rank printed in the last cell, as `%dist logs` shows it."""
    return kernel.run(f"%dist logs {rank}").stdout


def plain(text: str) -> str:
    """Return a text without its colours."""
    return ANSI.sub("", text)


def complete(kernel: Kernel, code: str, timeout: float = 10) -> list[str]:
    """Return what the kernel offers when Tab is pressed after `code`."""
    client = kernel._client
    asked = client.complete(code, len(code))
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        message = client.get_shell_msg(timeout=timeout)
        if message["parent_header"].get("msg_id") == asked:
            return list(message["content"]["matches"])
    raise AssertionError(f"No completions for {code!r} after {timeout} s")
