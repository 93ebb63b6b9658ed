"""Short ways to say what tests of cells say again and again."""

from __future__ import annotations

import queue
import re
from contextlib import suppress
from textwrap import dedent
from typing import TYPE_CHECKING, Any

from tests.helpers.waiting import Deadline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.helpers.cell import Cell
    from tests.helpers.kernel import Kernel

ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def distributed(body: str, flags: str = "") -> str:
    """Return a distributed cell; `body` may be indented like the test around it."""
    return f"%%distributed {flags}".rstrip() + f"\n{dedent(body).strip()}\n"


def on_ranks(kernel: Kernel, body: str, flags: str = "", **options: Any) -> Cell:
    """Run a distributed cell to its end; options are those of `Kernel.run`."""
    return kernel.run(distributed(body, flags), **options)


def new_ranks(kernel: Kernel, size: int = 2) -> None:
    """Give a kernel's cluster new ranks, on which nothing of earlier tests is left."""
    kernel.run(f"import nbdist\nnbdist.cluster().resize({size})")


def preload_training(kernel: Kernel) -> None:
    """Have ranks find imported what models import in their first step, which takes each seconds."""
    kernel.run("%load_ext nbdist\n%dist preload torch._dynamo torch.distributed.fsdp", 120)


def keep_last_values(kernel: Kernel) -> None:
    """Have ranks keep `_`: IPython does not where a cell has bound it, as `for _ in` does."""
    on_ranks(kernel, "_ = __ = ___ = None\ndel _, __, ___")


ANSWERS_LATE = "import nbdist.rank.agent\nnbdist.rank.agent.INSPECT_SECONDS = 20"
"""Run on ranks: idle ones answer also when they get no core for a second."""


def forget_environment(kernel: Kernel) -> None:
    """Let the next cell have no `--env` but its own: each one keeps that of the cell before."""
    kernel.run("from nbdist.notebook.session import session\nsession.last.env = None")


def in_background_until(kernel: Kernel, body: str, flags: str, lines: Sequence[int]) -> None:
    """Run a cell as `job` until each rank has told that it is at a line, the first at the first."""
    on_ranks(kernel, body, f"{flags} --async")
    # The kernel itself looks: a cell for each look would cost more than the job.
    kernel.run(
        "import time, nbdist\njob = nbdist.jobs()[-1]\n"
        "def told(): return [job.pulses[rank].line for rank in sorted(job.pulses)]\n"
        f"while told() != {list(lines)}: time.sleep(0.05)"
    )


def printed_by(kernel: Kernel, rank: int) -> str:
    """Return what a rank printed in the last cell, as `%dist logs` shows it."""
    return kernel.run(f"%dist logs {rank}").stdout


def everywhere(kernel: Kernel, body: str, timeout: float = 180) -> list[str]:
    """Run a cell; return what the ranks print after ``=``, which must be the same on both."""
    on_ranks(kernel, body, timeout=timeout)
    here, there = (re.findall("^= (.*)", printed_by(kernel, r), re.MULTILINE) for r in (0, 1))
    assert here == there
    return here


def plain(text: str) -> str:
    """Return a text without its colours."""
    return ANSI.sub("", text)


def complete(kernel: Kernel, code: str, timeout: float = 20) -> list[str]:
    """Return what the kernel offers when Tab is pressed after `code`."""
    client = kernel._client
    asked = client.complete(code, len(code))
    deadline = Deadline(timeout)
    while not deadline.over:
        with suppress(queue.Empty):
            message = client.get_shell_msg(timeout=1)
            if message["parent_header"].get("msg_id") == asked:
                return list(message["content"]["matches"])
    raise AssertionError(f"No completions for {code!r} after {deadline.took:.1f} s")
