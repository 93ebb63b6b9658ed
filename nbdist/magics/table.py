"""Plain tables for the terminal and the notebook alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbdist.hub.jobs import Job, how_died, show_ranks

if TYPE_CHECKING:
    from nbdist.hub.ranks import Rank


def rank_table(ranks: list[Rank], vitals: dict[int, dict[str, Any]]) -> str:
    """Return a row for each rank."""
    rows: list[tuple[str, ...]] = [("rank", "host", "pid", "device", "memory", "state")]
    for rank in ranks:
        seen = vitals.get(rank.rank, {})
        memory = seen.get("unique") or seen.get("rss")
        rows.append(
            (
                str(rank.rank), rank.host, str(rank.pid), seen.get("device", "unknown"),
                "unknown" if memory is None else f"{memory / 2**20:.0f} MB", _state(rank, seen),
            )
        )  # fmt: skip
    return table(rows)


def _state(rank: Rank, seen: dict[str, Any]) -> str:
    if rank.death is not None:
        return f"dead: {how_died(rank.death)}"
    if rank.state == "busy" and not seen:
        return "busy, does not answer (it may hold the GIL)"
    if not seen.get("job"):
        return rank.state
    line = f"running line {seen['line']} of the cell" if seen.get("line") else "running"
    waiting = seen.get("waiting")
    if waiting:
        return f"{line}, in {waiting['op']} for {waiting['since']:.0f} s"
    return line


def job_table(jobs: list[Job]) -> str:
    """Return a row for each job."""
    if not jobs:
        return "No cell has run yet."
    rows: list[tuple[str, ...]] = [("job", "cell", "ranks", "state", "seconds", "first line")]
    for job in jobs:
        first = next((line for line in job.code.splitlines() if line.strip()), "")
        seconds = "" if job.seconds is None else f"{job.seconds:.1f}"
        rows.append(
            (job.id, f"[{job.number}]", show_ranks(job.ranks), job.state, seconds, first[:50])
        )
    return table(rows)


def table(rows: list[tuple[str, ...]]) -> str:
    """Align columns by their widest cell."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join(lines)
