"""Short functions for what many tests of cells do."""

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
    """Return a distributed cell; `body` may be indented as in the test."""
    return f"%%distributed {flags}".rstrip() + f"\n{dedent(body).strip()}\n"


def on_ranks(kernel: Kernel, body: str, flags: str = "", **options: Any) -> Cell:
    """Run a distributed cell to its end, with the options of `Kernel.run`."""
    return kernel.run(distributed(body, flags), **options)


def new_ranks(kernel: Kernel, size: int = 2) -> None:
    """Give a kernel's cluster new ranks, without anything from earlier tests."""
    kernel.run(f"import nbdist\nnbdist.cluster().resize({size})")


def preload_training(kernel: Kernel) -> None:
    """Preload the modules that models import in their first step, which takes seconds."""
    kernel.run("%load_ext nbdist\n%dist preload torch._dynamo torch.distributed.fsdp", 120)


def preload_without_trial(kernel: Kernel, *modules: str) -> None:
    """Preload modules without a trial in a fork, which would take the same time again."""
    kernel.run(
        "%load_ext nbdist\nfrom nbdist.launchers.host import engines\n"
        f"engines.NEED_NO_TRIAL |= {set(modules)}\n%dist preload {' '.join(modules)}",
        timeout=180,
    )


def keep_last_values(kernel: Kernel) -> None:
    """Let ranks keep `_` again, which IPython does not while a cell has bound `_` (`for _ in`)."""
    on_ranks(kernel, "_ = __ = ___ = None\ndel _, __, ___")


ANSWERS_LATE = "import nbdist.rank.agent\nnbdist.rank.agent.INSPECT_SECONDS = 20"
"""Run on ranks: idle ranks then answer even if they get no core for a second."""


def forget_environment(kernel: Kernel) -> None:
    """Forget `--env` of the last cell, which the next cell would keep."""
    kernel.run("from nbdist.notebook.session import session\nsession.last.env = None")


def in_background_until(kernel: Kernel, body: str, flags: str, lines: Sequence[int]) -> None:
    """Run a cell as `job` in the background until each rank has reported its line of `lines`."""
    on_ranks(kernel, body, f"{flags} --async")
    # The kernel waits by itself: a cell for each look would cost more than the job.
    kernel.run(
        "import time, nbdist\njob = nbdist.jobs()[-1]\n"
        "def told(): return [job.pulses[rank].line for rank in sorted(job.pulses)]\n"
        f"while told() != {list(lines)}: time.sleep(0.05)"
    )


def printed_by(kernel: Kernel, rank: int) -> str:
    """Return what a rank printed in the last cell, as `%dist logs` shows it."""
    return kernel.run(f"%dist logs {rank}").stdout


def everywhere(kernel: Kernel, body: str, timeout: float = 180) -> list[str]:
    """Run a cell; return the lines after ``=``, which must be the same on both ranks."""
    on_ranks(kernel, body, timeout=timeout)
    here, there = (re.findall("^= (.*)", printed_by(kernel, r), re.MULTILINE) for r in (0, 1))
    assert here == there
    return here


def plain(text: str) -> str:
    """Return a text without its colours."""
    return ANSI.sub("", text)


def complete(kernel: Kernel, code: str, timeout: float = 20) -> list[str]:
    """Return the kernel's completions for Tab after `code`."""
    client = kernel._client
    asked = client.complete(code, len(code))
    deadline = Deadline(timeout)
    while not deadline.over:
        with suppress(queue.Empty):
            message = client.get_shell_msg(timeout=1)
            if message["parent_header"].get("msg_id") == asked:
                return list(message["content"]["matches"])
    raise AssertionError(f"No completions for {code!r} after {deadline.took:.1f} s")
