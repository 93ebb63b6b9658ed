"""``%dist who``: lists the ranks' variables, and where ranks differ."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbdist.job.named_ranks import show_ranks
from nbdist.machine.amounts import in_bytes
from nbdist.machine.quoted_code import plain
from nbdist.machine.tables import text_table
from nbdist.magics.parsing.arguments import Words, ranks_list
from nbdist.magics.parsing.command import names_of_ranks, set_offer
from nbdist.notebook import current_cluster

if TYPE_CHECKING:
    import argparse

    from nbdist.hub.asking.variables import Inventory, Variable
    from nbdist.magics.parsing.command import Commands
    from nbdist.wire.inspection import State

MOST = 200
"""The most rows of the table."""


def add_to(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add(who, "the ranks' variables, and where ranks differ: %%dist who opt*")
    parser.add_argument("--ranks", type=ranks_list, metavar="0,2-3", help="only these ranks")
    names = parser.add_argument(
        "patterns", action=Words, nargs="*", default=[], metavar="PATTERN",
        help="names, or patterns such as opt*; all variables by default",
    )  # fmt: skip
    set_offer(names, names_of_ranks)


def who(args: argparse.Namespace) -> None:
    """List the ranks' variables and where ranks differ. Running cells are not disturbed."""
    cluster = current_cluster.cluster()
    found = cluster.who(*args.patterns, ranks=args.ranks, most=MOST)
    print(plain(inventory(found, args.patterns)))


def inventory(found: Inventory, patterns: list[str]) -> str:
    """Return a table with a row for each variable, and lines about what it leaves out."""
    lines = []
    if found.variables:
        head = ("name", "type", "shape", "dtype", "device", "size", "between the ranks")
        lines.append(text_table(head, [_row(variable) for variable in found.variables]))
    elif patterns:
        lines.append(f"No variable on the ranks matches {' '.join(patterns)}.")
    else:
        lines.append("The ranks have no variables yet.")
    if found.more:
        lines.append(
            f"… and {found.more:,} more: `%dist who PATTERN` lists the variables that match."
        )
    lines += [
        f"{who_is_busy(rank, state)}: values not compared" for rank, state in found.busy.items()
    ]
    lines += [f"{why}: it is left out" for why in found.silent.values()]
    if found.late:
        lines.append(
            f"Not compared, because that would have taken too long: {', '.join(found.late)}"
        )
    return "\n".join(lines)


def who_is_busy(rank: int, state: State) -> str:
    """Describe that a rank is busy, and with which line."""
    line = "" if state.line is None else f" (running cell line {state.line})"
    return f"rank {rank} is busy{line}"


def _row(variable: Variable) -> tuple[str, ...]:
    first = variable.first
    devices = list(
        dict.fromkeys(part for one in variable.seen.values() for part in one.device.split(", "))
    )
    return (
        variable.name, first.type[:40], first.shape or first.value, first.dtype,
        _devices([device for device in devices if device]),
        "" if first.size is None else in_bytes(first.size),
        "; ".join(variable.differs) or ("equal" if variable.equal else ""),
    )  # fmt: skip


def _devices(devices: list[str]) -> str:
    """Write devices shortly: ``cuda:0-3``."""
    numbered = [device.split(":") for device in devices if device[-1:].isdigit() and ":" in device]
    if len(numbered) == len(devices) > 1 and len({kind for kind, _ in numbered}) == 1:
        return f"{numbered[0][0]}:{show_ranks([int(number) for _, number in numbered])}"
    return ", ".join(devices)
