"""``%dist who`` and ``%dist free``: what the ranks hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from IPython.core.magic_arguments import argument, magic_arguments

from nbdist.job.job import show_ranks
from nbdist.machine.amounts import in_bytes
from nbdist.machine.quoted_code import plain
from nbdist.machine.tables import text_table
from nbdist.magics.commands.arguments import ranks_list
from nbdist.notebook import current_cluster

if TYPE_CHECKING:
    from nbdist.hub.asking.variables import Inventory, Variable
    from nbdist.wire.inspection import Freed, Memory, State

MOST = 200
"""Rows of the table."""


@magic_arguments("dist who")
@argument("--ranks", type=ranks_list, metavar="0,2-3", help="only these ranks")
@argument(
    "patterns", nargs="*", metavar="PATTERN",
    help="names, or patterns such as opt*; all variables by default",
)  # fmt: skip
def who(args: Any) -> None:
    """List the ranks' variables and where ranks differ. Running cells are not disturbed."""
    cluster = current_cluster.cluster()
    found = cluster.who(*args.patterns, ranks=args.ranks, most=MOST)
    print(plain(inventory(found, args.patterns)))


def inventory(found: Inventory, patterns: list[str]) -> str:
    """Return a row for each variable, and a line for whatever is not told there."""
    lines = []
    if found.variables:
        head = ("name", "type", "shape", "dtype", "device", "size", "between the ranks")
        lines.append(text_table(head, [_row(variable) for variable in found.variables]))
    elif patterns:
        lines.append(f"No variable on the ranks fits {' '.join(patterns)}.")
    else:
        lines.append("The ranks have no variables yet.")
    if found.more:
        lines.append(f"… and {found.more:,} more: `%dist who PATTERN` lists those that fit.")
    lines += [
        f"{who_is_busy(rank, state)}: values not compared" for rank, state in found.busy.items()
    ]
    lines += [f"{why}: it is left out" for why in found.silent.values()]
    if found.late:
        lines.append(f"Not compared, which would have taken too long: {', '.join(found.late)}")
    return "\n".join(lines)


def who_is_busy(rank: int, state: State) -> str:
    """Say that a rank is busy, and with what."""
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


@magic_arguments("dist free")
@argument("--ranks", type=ranks_list, metavar="0,2-3", help="only these ranks")
def free(args: Any) -> None:
    """Give back the memory no variable needs: garbage, `_` and `Out`, the last error, caches."""
    found, silent = current_cluster.cluster().free(args.ranks)
    rows = [_freed(rank, one) for rank, one in sorted(found.items()) if one.after is not None]
    gpu = any(row[2] for row in rows)
    if rows:
        head = ("rank", "memory", "GPU, by tensors", "GPU, by torch")
        columns = 4 if gpu else 2
        print(text_table(head[:columns], [row[:columns] for row in rows]))
    for rank, one in sorted(found.items()):
        if one.after is None:
            print(f"{who_is_busy(rank, one.state)}: left alone")
    for _, why in sorted(silent.items()):
        print(f"{why}: it is left out")


def _freed(rank: int, one: Freed) -> tuple[str, str, str, str]:
    before, after = one.before, one.after
    assert before is not None  # `after` is there
    assert after is not None
    return (
        str(rank), _change(_own(before), _own(after)),
        _change(before.allocated, after.allocated), _change(before.reserved, after.reserved),
    )  # fmt: skip


def _own(memory: Memory) -> int:
    return memory.rss if memory.unique is None else memory.unique


def _change(before: int | None, after: int | None) -> str:
    if after is None:
        return ""
    return f"{in_bytes(before or 0)} -> {in_bytes(after)}"
