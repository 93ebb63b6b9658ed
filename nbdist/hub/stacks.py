"""Where every rank is, also one whose main thread is stuck. Hub's thread."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nbdist.rank.vitals import STACKS_SIGNAL

if TYPE_CHECKING:
    from nbdist.hub.hub import Hub

STACKS_SECONDS = 1.0


async def of(hub: Hub, ranks: list[int]) -> dict[int, str]:
    """Return the stacks of these ranks, in words where a rank cannot tell them itself."""
    dumps = {rank: hub.host.folder / f"rank{rank}.stacks" for rank in ranks}
    before = {rank: path.stat().st_size if path.exists() else 0 for rank, path in dumps.items()}
    answers = await hub.call_all(dumps, "stacks", timeout=STACKS_SECONDS)
    found: dict[int, str] = {}
    for rank, answer in answers.items():
        if isinstance(answer, str):
            found[rank] = answer
            continue
        # Its agent cannot run: C code holds the GIL. A signal handler of C's can.
        hub.host.signal(hub.ranks[rank].pid, STACKS_SIGNAL)
    await asyncio.sleep(0.2 if len(found) < len(dumps) else 0)
    for rank, path in dumps.items():
        if rank not in found:
            text = path.read_text(encoding="utf-8", errors="replace")[before[rank] :]
            found[rank] = "(the rank holds the GIL; innermost frame first)\n" + text
    return dict(sorted(found.items()))
