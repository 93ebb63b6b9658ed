"""``%dist auto on``: plain cells run on the ranks; ``%%local`` keeps one in the notebook's kernel.

IPython has no hook that could send a cell elsewhere. So while the mode is on, `run_cell_async`,
which every front end calls, is replaced on the shell. Kernel's main thread.
"""

from __future__ import annotations

import argparse
import functools
import re
import shlex
from typing import TYPE_CHECKING, Any

from IPython.core.getipython import get_ipython
from IPython.core.magic import Magics, cell_magic, magics_class

from nbdist.magics.parsing.arguments import DASHES, UsageMistake
from nbdist.rank.running import plain_cells
from nbdist.rank.running.lines import MAGIC, PYTHON_MAGICS

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from nbdist.magics.parsing.command import Commands

LOCAL = "%%local"
OURS = re.compile(r"%dist\b|%((un|re)?load_ext)\s+nbdist\b|(exit|quit)(\(\))?$")
"""Lines that always run in the notebook's own kernel."""


def is_plain(cell: str) -> bool:
    """Whether a cell goes to the ranks: it is Python, and has more than lines of ours."""
    lines = [line.strip() for line in cell.splitlines()]
    code = [line for line in lines if line and not line.startswith("#")]
    magic = MAGIC.match(code[0]) if code else None
    if not code or (magic is not None and magic[1] not in PYTHON_MAGICS):
        return False
    return not all(OURS.match(line) for line in code)


def strip_local(lines: list[str]) -> list[str]:
    """Blank the line ``%%local`` (an input transformer): the rest runs as a usual cell."""
    if lines and lines[0].split(None, 1)[:1] == [LOCAL]:
        return ["\n", *lines[1:]]
    return lines


class Auto:
    """Whether plain cells run on the ranks, and with which flags of ``%%distributed``."""

    def __init__(self, shell: Any) -> None:  # IPython's shell
        self._shell = shell
        self._prompts: Any = None
        self.flags: str | None = None
        """None while the mode is off."""

    def switch_on(self, flags: str) -> None:
        """Send plain cells to the ranks from now on, with these flags."""
        if self.flags is None:
            vars(self._shell)["run_cell_async"] = self._instead_of(self._shell.run_cell_async)
            self._show_in_prompt()
        self.flags = flags

    def switch_off(self) -> None:
        """Run cells in the notebook's kernel again."""
        if self.flags is not None:
            del vars(self._shell)["run_cell_async"]
            if self._prompts is not None:
                self._shell.prompts, self._prompts = self._prompts, None
        self.flags = None

    def _instead_of(self, run: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
        @functools.wraps(run)  # ipykernel inspects the parameters
        async def run_cell_async(raw_cell: str, *args: Any, **options: Any) -> Any:
            # Code without history is a request of a front end, not typed by a person.
            typed = options.get("store_history") and not options.get("silent")
            if typed and self.flags is not None and is_plain(raw_cell):
                flags = f"--whole-cell {self.flags}"
                call = f"run_cell_magic('distributed', {flags!r}, {raw_cell!r})"
                options["transformed_cell"] = f"get_ipython().{call}\n"
                options["preprocessing_exc_tuple"] = None
            return await run(raw_cell, *args, **options)

        return run_cell_async

    def _show_in_prompt(self) -> None:
        """Show the mode in a terminal's prompt; notebooks draw their own prompt."""
        kept: Any = getattr(self._shell, "prompts", None)
        if kept is None:
            return
        from IPython.terminal.prompts import Prompts  # terminals only
        from pygments.token import Token  # type: ignore[import-untyped]

        class RanksPrompts(Prompts):
            def in_prompt_tokens(self) -> Any:
                return [(Token.Prompt, "ranks "), *kept.in_prompt_tokens()]

        self._prompts = kept
        self._shell.prompts = RanksPrompts(self._shell)


@magics_class
class LocalMagics(Magics):
    """The cell magic ``%%local``, and the mode in which it is needed.

    Parameters
    ----------
    shell
        IPython's shell.
    check_flags
        Raises `UsageMistake` for text that is not flags of ``%%distributed``.
    """

    def __init__(self, shell: Any, check_flags: Callable[[str], Any]) -> None:
        super().__init__(shell)
        self.auto = Auto(shell)
        self.check_flags = check_flags

    @cell_magic
    def local(self, line: str, cell: str) -> None:
        """Run this cell in the notebook's kernel while `%dist auto on` sends cells to the ranks."""
        # Not called for `%%local` on the first line of a cell: see `strip_local`.
        del line
        assert self.shell is not None
        self.shell.run_cell(cell)


def add_auto(shell: Any, check_flags: Callable[[str], Any]) -> None:  # IPython's shell
    """Register ``%%local`` and prepare the mode; see `LocalMagics`."""
    shell.register_magics(LocalMagics(shell, check_flags))
    shell.input_transformers_cleanup.append(strip_local)
    plain_cells.harmless.append(strip_local)


def remove_auto(shell: Any) -> None:  # IPython's shell
    """Switch the mode off and remove ``%%local``."""
    _ours(shell).auto.switch_off()
    del shell.magics_manager.registry[LocalMagics.__name__]
    shell.input_transformers_cleanup.remove(strip_local)
    plain_cells.harmless.remove(strip_local)
    shell.magics_manager.magics["cell"].pop("local", None)


def auto_flags() -> str | None:
    """Return the flags with which plain cells run on the ranks, None while they run here."""
    return _ours(get_ipython()).auto.flags


def _ours(shell: Any) -> LocalMagics:  # IPython's shell, which keeps our magics
    found: LocalMagics = shell.magics_manager.registry[LocalMagics.__name__]
    return found


def add_to(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add(auto, "run plain cells on the ranks: %%dist auto on", passes_on=True)
    parser.add_argument(
        "state", nargs="?", choices=["on", "off"], help="without on or off: show the mode"
    )
    parser.add_argument(
        "flags", nargs=argparse.REMAINDER, metavar="FLAGS",
        help="flags of %%%%distributed for these cells, such as --output all",
    )  # fmt: skip


def auto(args: argparse.Namespace) -> None:
    """Run all following plain cells on the ranks, except those that begin with `%%local`.

    `%%time`, `%%timeit`, `%%capture` and `%%prun` go with their cells. Cells with other cell
    magics, and those that hold only lines of `%dist`, stay where they are.
    """
    ours = _ours(get_ipython())
    mode = ours.auto
    flags = shlex.join([*args.flags, *([DASHES, *args.arguments] if args.arguments else [])])
    if args.state == "on":
        ours.check_flags(flags)
        mode.switch_on(flags)
        how = f" with {flags}" if flags else ""
        print(
            f"Plain cells run on the ranks from now on{how}. A cell that begins with %%local stays "
            "here; %dist auto off ends this."
        )
    elif flags:
        msg = f"nothing is expected after {args.state!r}; flags follow `on`"
        raise UsageMistake(msg)
    elif args.state == "off":
        mode.switch_off()
        print("Cells run in the notebook's kernel again.")
    elif mode.flags is None:
        print("off: cells run in the notebook's kernel.")
    else:
        print(f"on: plain cells run on the ranks, as with %%distributed {mode.flags}".rstrip())
