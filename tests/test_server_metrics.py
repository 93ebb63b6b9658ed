"""The metrics of jobs as pages follow them, and as a file."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from nbdist.metrics.points_file import Column, Frame, framed, points_file
from nbdist.published import state_file as records
from nbdist.published.state_file import RankRecord
from nbdist.server import followed_metrics as followed
from tests.helpers.states import API, NOBODY, job_in, put, state_of
from tests.helpers.waiting import allowed
from tests.test_metrics import unpacked
from tests.test_server import jp_server_config, refused  # noqa: F401  # a fixture

if TYPE_CHECKING:
    from pathlib import Path

    from tests.helpers.states import Fetch


def log(folder: Path, first: int, count: int, name: str = "loss", rank: int = 0) -> None:
    """Log so many values as a rank does: each is its step."""
    steps = np.arange(first, first + count)
    times = (1000.0 + steps).tobytes()
    column = Column(name, steps.tobytes(), times, steps.astype(np.float64).tobytes())
    with points_file(folder, "7", rank).open("ab") as file:
        file.write(framed(Frame(0, [column])))


class Follower:
    """A page that follows jobs."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._states: dict[tuple[str, str], dict[str, Any]] = {}
        self.sizes: list[int] = []

    def ask(self, word: str, folder: object, job: object = "7") -> None:
        """Send a request."""
        self._socket.write_message(json.dumps({word: "metrics", "folder": str(folder), "job": job}))

    async def hear(self) -> dict[str, Any]:
        """Return the state that the next message makes, or what it says that is none."""
        told = await asyncio.wait_for(self._socket.read_message(), allowed(20))
        if isinstance(told, str):
            return json.loads(told)["metrics"]  # type: ignore[no-any-return]
        length = int.from_bytes(told[:4], "little")
        head = json.loads(told[4 : 4 + length])
        place = head["folder"], head["job"]
        frame = told[4 + length :]
        self.sizes.append(len(frame))
        whole = b'"whole":true' in frame
        state = unpacked(frame, None if whole else self._states[place])
        assert (state["folder"], state["job"]) == place
        self._states[place] = state
        return state

    async def until(self, **wanted: Any) -> dict[str, Any]:
        """Return the first state in which these are so."""
        while True:
            state = await self.hear()
            if all(state.get(name) == value for name, value in wanted.items()):
                return state

    async def until_points(self, points: int) -> dict[str, Any]:
        """Return the first state with so many points of its first curve."""
        while True:
            state = await self.hear()
            if state["panels"] and state["panels"][0]["curves"][0]["points"] == points:
                return state


def mean(state: dict[str, Any]) -> list[float]:
    """Return the first curve."""
    return state["panels"][0]["curves"][0]["mean"]  # type: ignore[no-any-return]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a job's folder, with some values in it."""
    made = tmp_path / "20260101-101010-abcdef"
    made.mkdir()
    log(made, 0, 50)
    return made


async def test_pages_follow_a_job_and_are_sent_only_what_is_new(
    jp_ws_fetch: Fetch, folder: Path
) -> None:
    put(state_of("aa", jobs=[job_in(folder, began=1.0)]))
    page = Follower(await jp_ws_fetch(*API, "stream"))
    page.ask("watch", folder.name)
    state = await page.hear()
    assert (state["state"], state["title"]) == ("running", "Job 7 on rank 0")
    assert mean(state) == list(range(50))
    assert state["ranks"][0]["state"] == "line 1"
    log(folder, 50, 2)
    assert mean(await page.until_points(52)) == list(range(52))
    assert page.sizes[-1] < page.sizes[0] - 50 * 20, "the first 50 are not sent once more"
    late = Follower(await jp_ws_fetch(*API, "stream"))
    late.ask("watch", folder.name)
    assert mean(await late.hear()) == list(range(52))
    late.ask("unwatch", folder.name)
    log(folder, 52, 1)
    assert mean(await page.until_points(53))[-1] == 52, "one that leaves does not stop others"
    page.ask("watch", folder.name)  # a second view that has nothing yet
    state = await page.hear()
    while not state["whole"]:
        state = await page.hear()
    assert mean(state) == list(range(53))


async def test_views_of_two_jobs_are_not_mixed_up(
    jp_ws_fetch: Fetch, folder: Path, tmp_path: Path
) -> None:
    other = tmp_path / "20260101-101010-fedcba"
    other.mkdir()
    log(other, 100, 3)
    put(state_of("aa", jobs=[job_in(folder)]))
    put(state_of("bb", jobs=[job_in(other)]))
    page = Follower(await jp_ws_fetch(*API, "stream"))
    page.ask("watch", folder.name)
    page.ask("watch", other.name)
    seen = {(state["folder"], len(mean(state))) for state in [await page.hear() for _ in range(2)]}
    assert seen == {(folder.name, 50), (other.name, 3)}


async def test_a_page_learns_how_its_job_ended(jp_ws_fetch: Fetch, folder: Path) -> None:
    record = state_of("aa", jobs=[job_in(folder, began=1.0)])
    put(record)
    page = Follower(await jp_ws_fetch(*API, "stream"))
    page.ask("watch", folder.name)
    await page.hear()
    log(folder, 50, 5)
    record.jobs[0].state, record.jobs[0].seconds = "failed", 12.5
    put(record)
    state = await page.until(state="failed")
    assert (state["seconds"], len(mean(state))) == (12.5, 55)


async def test_when_its_kernel_dies_a_page_is_told_and_keeps_all(
    jp_ws_fetch: Fetch, folder: Path
) -> None:
    job = job_in(folder, began=1.0)
    job.ranks = [RankRecord(0, "busy", "line 7", cpu=99.0)]
    path = put(state_of("aa", pid=NOBODY, jobs=[job]))
    page = Follower(await jp_ws_fetch(*API, "stream"))
    page.ask("watch", folder.name)
    state = await page.until(state="lost")
    assert state["note"].startswith(f"Kernel died (pid {NOBODY})")
    assert state["note"].endswith("Showing last known state")
    assert (state["ranks"][0]["state"], state["ranks"][0]["cpu"]) == ("last seen: line 7", None)
    assert mean(state) == list(range(50))
    path.unlink()  # a restarted kernel takes its place
    late = Follower(await jp_ws_fetch(*API, "stream"))
    late.ask("watch", folder.name)
    assert mean(await late.until(state="lost")) == list(range(50))


async def test_a_job_nobody_knows_is_said_to_be_unknown(
    jp_ws_fetch: Fetch, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followed, "UNKNOWN_SECONDS", 0.0)
    page = Follower(await jp_ws_fetch(*API, "stream"))
    page.ask("watch", folder.name)
    assert await page.hear() == {"folder": folder.name, "job": "7", "unknown": True}
    monkeypatch.setattr(followed, "LONGEST_PAUSE", 0.1)
    put(state_of("aa", jobs=[job_in(folder)]))
    assert mean(await page.hear()) == list(range(50))


@pytest.mark.parametrize(
    "asked",
    [
        ("..", "7"),
        ("a/../..", "7"),
        ("", "7"),
        (".", "7"),
        ("a", "../7"),
        ("a", ""),
        ("a", "x/y"),
    ],
)
async def test_a_page_may_name_no_path(
    jp_ws_fetch: Fetch, folder: Path, asked: tuple[str, Any]
) -> None:
    with pytest.raises(ValueError, match="no job has the name"):
        followed.Place.of(*asked)
    put(state_of("aa", jobs=[job_in(folder)]))
    page = Follower(await jp_ws_fetch(*API, "stream"))
    page.ask("watch", *asked)
    page.ask("watch", folder.name)
    assert mean(await page.hear()) == list(range(50)), "and what is asked for then is answered"


async def test_all_values_can_be_saved_as_csv(jp_fetch: Fetch, folder: Path) -> None:
    log(folder, 0, 2, 'a, "b"', rank=1)
    job = job_in(folder)
    job.ranks.append(RankRecord(1, "busy", "line 1"))
    put(state_of("aa", jobs=[job]))
    answer = await jp_fetch(*API, "metrics", folder.name, "7.csv")
    assert answer.headers["Content-Type"].startswith("text/csv")
    rows = list(csv.reader(io.StringIO(answer.body.decode())))
    assert rows[0] == ["name", "rank", "step", "time", "value"]
    assert rows[3] == ["loss", "0", "2", "1002.0", "2.0"]
    assert rows[-1] == ['a, "b"', "1", "1", "1001.0", "1.0"]
    assert len(rows) == 1 + 50 + 2
    assert "has no data of job" in await refused(jp_fetch, 404, "metrics", folder.name, "8.csv")
    shutil.rmtree(folder)
    assert "cannot be seen" in await refused(jp_fetch, 404, "metrics", folder.name, "7.csv")


async def test_a_file_that_is_broken_does_not_stop_other_jobs(
    jp_ws_fetch: Fetch, folder: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    points_file(other, "7", 0).write_bytes(b"\x04\x00\x00\x00oops")
    put(state_of("aa", jobs=[job_in(other)]))
    put(state_of("bb", jobs=[job_in(folder)]))
    assert records.folder().is_dir()
    page = Follower(await jp_ws_fetch(*API, "stream"))
    page.ask("watch", other.name)
    page.ask("watch", folder.name)
    heard = {state["folder"]: state for state in [await page.hear() for _ in range(2)]}
    assert mean(heard[folder.name]) == list(range(50))
    assert heard["other"]["note"].startswith("Metrics of rank 0 cannot be read")


async def test_a_kernel_that_was_shut_down_is_not_said_to_have_died(
    jp_ws_fetch: Fetch, folder: Path
) -> None:
    path = put(state_of("aa", jobs=[job_in(folder)]))
    page = Follower(await jp_ws_fetch(*API, "stream"))
    page.ask("watch", folder.name)
    await page.hear()
    path.unlink()  # as a kernel does that ends in good order
    assert (await page.until(state="lost"))["note"] == "Kernel has ended. Showing last known state"


async def test_files_that_are_elsewhere_are_said_to_be(jp_ws_fetch: Fetch, folder: Path) -> None:
    shutil.rmtree(folder)
    put(state_of("aa", jobs=[job_in(folder)]))
    page = Follower(await jp_ws_fetch(*API, "stream"))
    page.ask("watch", folder.name)
    note = (await page.hear())["note"]
    assert note == "The files of job 7 cannot be seen from the Jupyter server"
