"""Files that grow are told of at once, and nobody looks at those that do not."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING

import pytest

from nbdist.job import file_growth
from nbdist.job.file_growth import Growth
from tests.helpers.waiting import allowed

if TYPE_CHECKING:
    from pathlib import Path

LONG, SHORT = 600.0, 0.05


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return a file."""
    path = tmp_path / "rank0.log"
    path.write_text("begin\n")
    return path


def add(path: Path) -> None:
    with path.open("a") as file:
        file.write("more\n")


async def ends(seen: Growth) -> None:
    """Wait for what ends a long wait at once."""
    await asyncio.wait_for(seen.wait(LONG), allowed(20))


def watches(seen: Growth, *files: Path) -> bool:
    """Whether files are watched; who asks first has to look at them once more."""
    assert not seen.sees(files)
    return seen.sees(files)


async def test_a_wait_ends_when_a_file_grows(log: Path) -> None:
    seen = Growth()
    assert watches(seen, log)
    asyncio.get_running_loop().call_later(SHORT, add, log)
    await ends(seen)
    seen.close()


async def test_what_grew_before_the_wait_began_ends_it(log: Path) -> None:
    seen = Growth()
    assert watches(seen, log)
    add(log)
    await ends(seen)
    add(log)  # and once more: the first was not the last that is told
    await ends(seen)
    seen.close()


async def test_a_wait_ends_by_itself_or_is_ended(log: Path) -> None:
    seen, began = Growth(), time.monotonic()
    assert watches(seen, log)
    await seen.wait(SHORT)
    assert time.monotonic() - began >= SHORT
    seen.wake()
    await ends(seen)
    seen.close()


async def test_files_that_are_not_there_yet_or_cannot_be_watched_are_to_be_looked_at(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, late = Growth(), log.with_name("rank1.log")
    assert not seen.sees([log, late])
    late.touch()
    assert watches(seen, log, late)
    seen.close()

    def refuse(*_: object) -> int:
        raise OSError("there are no more of these")

    monkeypatch.setattr(file_growth, "_call", refuse)
    seen = Growth()
    assert not seen.sees([log])
    await seen.wait(SHORT)  # still a wait
    seen.close()


async def test_nothing_is_left_open(log: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(3):
        seen = Growth()
        assert watches(seen, log)
        await seen.wait(0.0)
        seen.close()
    assert set(os.listdir("/proc/self/fd")) == before
