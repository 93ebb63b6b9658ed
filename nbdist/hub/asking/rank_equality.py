"""Compares models and optimizers between ranks. Hub's thread.

Ranks that were stopped at different points of a step have parted, and nothing else would say so.
What cannot be compared is said by name; what cannot be now, because a rank is busy, is compared
before the next cell (`Hub.uncompared`).
"""

from __future__ import annotations

import asyncio
import re
import shlex
from typing import TYPE_CHECKING

from nbdist.errors import NbdistError
from nbdist.job.named_ranks import name_ranks
from nbdist.machine.amounts import in_bytes
from nbdist.wire.group_reports import NO_WAY, Digest
from nbdist.wire.rank_calls import DigestModels, WeighModels

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbdist.hub.hub import Hub
    from nbdist.wire.rank_calls import Answer, Call

ANSWER_SECONDS = 20.0
"""Time limit for a rank's list of objects: it takes milliseconds, but the rank may be busy."""
SLOWEST = 5e7
"""The slowest assumed reading, in bytes a second; ten times as fast is usual."""
TOLD_BYTES = 2e9
"""From this size on the comparison is announced, because it takes long."""

Told = dict[int, dict[str, Digest]]


PARTED = "No longer equal on all ranks, because the ranks stopped at different points of a step"
UNLIKE = "Not equal on all ranks"


async def compare(
    hub: Hub,
    tell: Callable[[str], None] = lambda _: None,
    pressed: asyncio.Event | None = None,
    words: str = PARTED,
) -> list[str]:
    """Compare the models and optimizers of the living ranks.

    Parameters
    ----------
    hub
        The cluster.
    tell
        Shows a message if the comparison takes long.
    pressed
        Set when the user does not want to wait.
    words
        The text about objects that differ.

    Returns
    -------
    list of str
        Messages about objects that differ, and about objects that could not be compared.
    """
    if hub.backend == "none":
        hub.uncompared = False
        return []
    ranks = [rank.rank for rank in hub.ranks.values() if rank.state == "idle" and rank.sound]
    # If a rank is busy, compare the others now, and all ranks when it is idle.
    hub.uncompared = any(rank.state == "busy" for rank in hub.ranks.values())
    broken, hub.broken_off = hub.broken_off, {}
    try:
        told = await _digests(hub, ranks, pressed or asyncio.Event(), tell)
    except NbdistError as err:
        hub.uncompared = True
        why = (
            f"The models and optimizers of the ranks were not compared: {err}. The next cell "
            "compares them."
        )
        return [*_doubtful(broken, {}), why]
    before, hub.compared = hub.compared, told
    return [*_doubtful(broken, told), *_parted(told, words, broken, before), *_unknown(told)]


async def _digests(
    hub: Hub, ranks: list[int], pressed: asyncio.Event, tell: Callable[[str], None]
) -> Told:
    weights = await _from_all(hub, ranks, WeighModels(), ANSWER_SECONDS, pressed)
    most = max(weights.values(), default=0)
    if most > TOLD_BYTES:
        tell(f"Comparing the models and optimizers of the ranks ({in_bytes(most)} on each).")
    limit = ANSWER_SECONDS + len(ranks) * most / SLOWEST
    call = DigestModels(list(hub.failed), every=len(ranks) == hub.size)
    return await _from_all(hub, ranks, call, limit, pressed)


async def _from_all(
    hub: Hub, ranks: list[int], call: Call[Answer], limit: float, pressed: asyncio.Event
) -> dict[int, Answer]:
    asking = hub.loop.create_task(hub.call_all(ranks, call, timeout=limit))
    stop = hub.loop.create_task(pressed.wait())
    await asyncio.wait({asking, stop}, return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    if not asking.done():
        asking.cancel()
        raise NbdistError("you stopped the comparison")
    answers: dict[int, Answer] = {}
    for rank, answer in asking.result().items():
        if isinstance(answer, NbdistError):
            raise answer
        answers[rank] = answer
    return answers


def _doubtful(broken: dict[int, list[str]], told: Told) -> list[str]:
    """Say which ranks went on with the result of an aborted collective, and what to do."""
    if not broken:
        return []
    ranks = sorted(broken)
    what = ", ".join(dict.fromkeys(each for rank in ranks for each in broken[rank]))
    note = (
        f"On {name_ranks(ranks)} the GPU went on computing after a collective was aborted "
        f"({what}). Values that it has changed since then, such as those of the last optimizer "
        "step, cannot be trusted, even if they are equal on all ranks."
    )
    paths = [path for path in _paths(told) if any(path in told[r] for r in ranks if r in told)]
    shards = any(one[path].sharded for one in told.values() for path in paths if path in one)
    whole = [path for path in _without_others(paths, told) if not path.endswith(NO_WAY)]
    source = _sound(broken, told, paths)
    if not paths:
        return [note]
    if source is None or shards or not whole:
        return [
            f"{note} No other rank has correct values: load a checkpoint, or re-create the objects."
        ]
    way = f"`%dist sync {' '.join(map(_word, whole))} --from {source}`"
    return [
        f"{note} On rank {source} no collective was aborted: {way} copies its values to all ranks."
    ]


def _sound(broken: dict[int, list[str]], told: Told, paths: list[str]) -> int | None:
    """Return a rank that has all these objects, and on which no collective was aborted."""
    return min(
        (rank for rank, has in told.items() if rank not in broken and has.keys() >= set(paths)),
        default=None,
    )


def _parted(
    told: Told, words: str, broken: dict[int, list[str]], before: Told | None = None
) -> list[str]:
    """Say which objects the fault has made different, and what to do.

    Objects that were different before are so on purpose, or it was said then.
    """
    whole: list[str] = []
    shards: list[str] = []
    for path in _paths(told):
        found = [digests[path] for digests in told.values() if path in digests]
        if any(one.why for one in found) or not _differ(found):
            continue
        if _as_before(path, told, before or {}) or not _by_fault(found):
            continue
        (shards if any(one.sharded for one in found) else whole).append(path)
    notes = []
    whole, shards = _without_others(whole, told), _without_others(shards, told)
    if whole:
        listed = ", ".join(f"`{path}`" for path in whole)
        notes.append(f"{words}: {listed}.")
        reachable = [_word(path) for path in whole if not path.endswith(NO_WAY)]
        if reachable:
            source = _sound(broken, told, whole) or 0
            notes[0] += f" `%dist sync {' '.join(reachable)} --from {source}` makes them equal."
    if shards:
        listed = ", ".join(f"`{path}`" for path in shards)
        notes.append(
            f"The ranks' shards are of different steps: {listed}. No rank has all shards: load a "
            "checkpoint, or re-create the objects."
        )
    return notes


def _as_before(path: str, told: Told, before: Told) -> bool:
    """Whether an object is on each rank as it was at the last comparison, which has named it."""
    return all(
        _unchanged(digests[path])
        and path in before.get(rank, {})
        and before[rank][path].content == digests[path].content
        for rank, digests in told.items()
        if path in digests
    )


def _unchanged(one: Digest) -> bool:
    return not (one.sampled or one.steps or one.changed)


def _by_fault(found: list[Digest]) -> bool:
    """Whether an object that differs between ranks was equal before the last cell."""
    before = {one.before for one in found if one.sampled or one.before}
    stepped = any(one.sampled for one in found)
    if stepped and len(before - {""}) > 1:
        return False
    if any(one.together for one in found) or _torn(found):
        return True
    if any(one.steps for one in found):
        return False
    # No optimizer trains it. What counts its changes tells, or else its sample.
    counts = {one.changed for one in found if one.changed >= 0}
    return len(counts) > 1 or (counts == {0} and stepped and "" not in before)


def _torn(found: list[Digest]) -> bool:
    """Whether ranks took other numbers of steps with an object, or a step that cannot be right."""
    steps = {tuple(one.steps) for one in found}
    wrong = any(begun != ended or freed for begun, ended, freed in filter(None, steps))
    return wrong or len(steps) > 1


def _word(path: str) -> str:
    """Quote a path as one word of a magic's line: `"nets['a']"`."""
    if shlex.split(path) == [path]:
        return path
    return shlex.quote(path) if re.search(r'["\\$`]', path) else f'"{path}"'


def _unknown(told: Told) -> list[str]:
    notes = []
    unread = [path for path in _paths(told) if any(p[path].why for p in told.values() if path in p)]
    for path in _without_others(unread, told):
        whys = {rank: one[path].why for rank, one in told.items() if path in one and one[path].why}
        if whys and sum(path in one for one in told.values()) > 1:
            first = whys[min(whys)]
            where = "" if len(whys) == len(told) else f" on {name_ranks(sorted(whys))}"
            notes.append(f"`{path}` could not be compared{where}: {first}.")
    return notes


def _paths(told: Told) -> list[str]:
    return sorted(
        {path for digests in told.values() for path in digests}, key=lambda p: (len(p), p)
    )


def _without_others(paths: list[str], told: Told) -> list[str]:
    """Leave out paths to objects that have a shorter path on every rank."""
    kept: list[str] = []
    for path in paths:
        theirs = [digests for digests in told.values() if path in digests]
        if not any(
            all(way in one and one[way].thing == one[path].thing for one in theirs) for way in kept
        ):
            kept.append(path)
    return sorted(kept)


def _differ(found: list[Digest]) -> bool:
    """Whether contents differ while structures are equal: others were never the same object."""
    outlines = {one.outline for one in found}
    if "" in outlines:  # the structure is unknown on some rank
        return len(set(map(_known, found))) > 1
    return any(
        len({_known(one) for one in found if one.outline == outline}) > 1 for outline in outlines
    )


def _known(one: Digest) -> tuple[object, ...]:
    """Return what must be equal on all ranks; of shards, also how often each was changed."""
    return (one.content, *one.steps, max(one.changed, 0)) if one.sharded else (one.content,)
