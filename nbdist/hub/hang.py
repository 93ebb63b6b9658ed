"""Ranks that wait for others: who waits where, and where the others are instead."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from nbdist.hub.jobs import show_ranks
from nbdist.hub.report import agree

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbdist.wire.messages import Pulse

WORLD = ("", "0")
"""How the group of all ranks is named."""


def describe(
    pulses: dict[int, Pulse | None],
    ended: set[int],
    patience: float,
    stop_by: str,
    outside: Sequence[int] = (),
) -> str:
    """Return a report if some ranks have waited too long for others, '' if none has.

    Parameters
    ----------
    pulses
        Last word of every rank that still runs.
    ended
        Ranks whose cell is over.
    patience
        Seconds a rank may wait before it counts.
    stop_by
        How a person stops the job.
    outside
        Ranks that the cell is not run on; who waits for all ranks waits for them, too.
    """
    waiting: dict[tuple[str, str], list[int]] = defaultdict(list)
    elsewhere: dict[str, list[int]] = defaultdict(list)
    longest = 0.0
    for rank, pulse in sorted(pulses.items()):
        if pulse is None:
            elsewhere["has not been heard of: C code may hold the GIL"].append(rank)
        elif pulse.waiting is None:
            line = f"is at cell line {pulse.line}, " if pulse.line else "is "
            elsewhere[f"{line}in {pulse.where}"].append(rank)
        else:
            number = f" #{pulse.waiting.seq}" if pulse.waiting.seq is not None else ""
            line = f"at cell line {pulse.line}" if pulse.line else ""
            waiting[pulse.waiting.group, f"{pulse.waiting.op}{number} {line}".strip()].append(rank)
            longest = max(longest, pulse.waiting.since)
    if ended:
        elsewhere["is done with the cell"].extend(sorted(ended))
    if outside and any(group in WORLD for group, _ in waiting):
        elsewhere["does not run the cell"].extend(outside)
    all_in_one = len(waiting) == 1 and not elsewhere
    if longest < patience or all_in_one:
        return ""
    lines = []
    for (group, place), ranks in waiting.items():
        of_group = "" if group in WORLD else f" (group {group})"
        lines.append(f"{_name(ranks)} {agree(ranks, 'waits')} in {place}{of_group}")
    lines += [f"{_name(ranks)} {agree(ranks, place)}" for place, ranks in elsewhere.items()]
    head = f"Ranks have been waiting for each other for {longest:.0f} s:"
    return "\n  ".join([head, *lines]) + f"\nNothing is stopped; {stop_by} if this is a hang."


def _name(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {show_ranks(ranks)}"
