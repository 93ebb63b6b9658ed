"""``%dist free``: gives back memory that no variable of the ranks needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nbdist.machine.amounts import in_bytes
from nbdist.machine.tables import text_table
from nbdist.magics.commands.who_command import who_is_busy
from nbdist.magics.parsing.arguments import ranks_list
from nbdist.notebook import current_cluster

if TYPE_CHECKING:
    import argparse

    from nbdist.magics.parsing.command import Commands
    from nbdist.wire.inspection import Freed, Memory


def add_to(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add(free, "release memory that no variable needs")
    parser.add_argument("--ranks", type=ranks_list, metavar="0,2-3", help="only on these ranks")


def free(args: argparse.Namespace) -> None:
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
