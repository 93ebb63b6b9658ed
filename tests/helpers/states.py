"""State files for tests, and requests as a page makes them."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from nbdist.machine.process_lives import started
from nbdist.published import state_file as records
from nbdist.published.state_file import ClusterRecord, JobRecord, RankRecord, Record
from tests.helpers.waiting import allowed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    Fetch = Callable[..., Awaitable[Any]]

API = ("nbdist", "api")
NOBODY = 1 << 22
"""A pid that no process can have."""


def state_of(id_: str, *, pid: int = 0, **parts: Any) -> Record:
    """Return the record of this process, or of `pid`, with a cluster of two ranks."""
    created = 1.0 if pid else started(os.getpid())
    ranks = [RankRecord(rank, "idle", "idle", host="here", pid=100 + rank) for rank in (0, 1)]
    told: dict[str, Any] = {
        "clusters": [ClusterRecord("1", 2, "ddp", "engines", "running", 1.0, (1, 1.0), ranks)]
    }
    record = records.of_this_process(records.KERNEL, **told | parts)
    record.id, record.pid, record.created = id_, pid or os.getpid(), created
    return record


def job_in(folder: Path, **parts: Any) -> JobRecord:
    """Return a job whose logs are in a folder."""
    return JobRecord(
        id="7", number=1, state="running", ranks=[RankRecord(0, "busy", "line 1")],
        first_line="train()", launcher="engines", cluster="1", created=1.0, folder=str(folder),
        **parts,
    )  # fmt: skip


def put(record: Record) -> Path:
    """Write a state file."""
    folder = records.folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"{record.id}.json"
    records.write(path, record)
    return path


async def get(fetch: Fetch, *route: str, **options: Any) -> Any:
    """Return the answer to a GET request."""
    answer = await fetch(*API, *route, request_timeout=allowed(20), **options)
    return json.loads(answer.body)


async def post(fetch: Fetch, *route: str, **body: Any) -> Any:
    """Return the answer to a POST request."""
    limit = allowed(60)
    answer = await fetch(*API, *route, method="POST", body=json.dumps(body), request_timeout=limit)
    return json.loads(answer.body)
