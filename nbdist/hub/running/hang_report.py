"""The text of the hang report: which rank waits where, and where the other ranks are."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from nbdist.job.named_ranks import show_ranks
from nbdist.job.report import agree
from nbdist.machine.amounts import in_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nbdist.wire.messages import Pulse

WORLD = ("", "0")
"""The names of the group of all ranks."""
FEW = 3
"""The most places in one line."""


def describe(
    pulses: dict[int, Pulse | None],
    ended: set[int],
    patience: float,
    stop_by: str,
    outside: Sequence[int] = (),
) -> str:
    """Return a report if ranks have waited too long for other ranks, else ''.

    Parameters
    ----------
    pulses
        The last report of every running rank.
    ended
        Ranks whose cell has ended.
    patience
        How many seconds a rank may wait before it is reported.
    stop_by
        How the user can stop the job.
    outside
        Ranks that do not run the cell; a wait for all ranks is a wait for them, too.
    """
    waits: dict[_Wait, list[int]] = defaultdict(list)
    since: dict[_Wait, float] = defaultdict(float)
    for rank, pulse in sorted(pulses.items()):
        if pulse is not None and pulse.waiting is not None:
            number = f" #{pulse.waiting.seq}" if pulse.waiting.seq is not None else ""
            place = _Wait(f"{pulse.waiting.op}{number}", pulse.waiting.group, pulse.line)
            waits[place].append(rank)
            since[place] = max(since[place], pulse.waiting.since)
    # The members of a subgroup are unknown: other ranks may not be in it.
    of_all = all(place.group in WORLD for place in waits)
    awaited = "it" if len(waits) == 1 else "them"
    others = _others(pulses, ended, f"has not reached {awaited}" if of_all else "is elsewhere")
    if outside and any(place.group in WORLD for place in waits):
        others["does not run the cell"].extend(outside)
    all_in_one = len(waits) == 1 and not others
    if max(since.values(), default=0.0) < patience or all_in_one:
        return ""
    told = [(ranks, place.told(since[place])) for place, ranks in waits.items()]
    told += [(ranks, words) for words, ranks in others.items()]
    apart = "; " if len(told) <= FEW else ";\n  "
    words = apart.join(f"{_name(ranks)} {agree(ranks, words)}" for ranks, words in told)
    return f"Possible hang: {words}. Nothing was stopped. To stop it, {stop_by}."


class _Wait(NamedTuple):
    """A place where ranks wait."""

    op: str
    group: str
    line: int | None

    def told(self, seconds: float) -> str:
        """Return the text for one rank."""
        group = "" if self.group in WORLD else f" of group {self.group}"
        line = f" (cell line {self.line})" if self.line else ""
        return f"has waited in {self.op}{group} for {in_time(int(seconds))}{line}"


def _others(pulses: dict[int, Pulse | None], ended: set[int], where: str) -> dict[str, list[int]]:
    """Return the ranks that do not wait there, by what they do instead."""
    found: dict[str, list[int]] = defaultdict(list)
    for rank, pulse in sorted(pulses.items()):
        if pulse is None:
            found["does not answer (C code may hold the GIL)"].append(rank)
        elif pulse.waiting is None:
            line = f"cell line {pulse.line}, " if pulse.line else ""
            found[f"{where} ({line}in {pulse.where})"].append(rank)
    if ended:
        found["is done with the cell"].extend(sorted(ended))
    return found


def _name(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {show_ranks(ranks)}"
