"""What is too much to be shown, kept or started."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from nbdist.errors import UsageError
from nbdist.hub.link.log_folders import Logs
from nbdist.hub.link.ranks import Rank
from nbdist.job.bounded_output import DISPLAYS, HEAD, Screen
from nbdist.job.events import Shown, Text
from nbdist.launchers import rank_counts
from nbdist.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path


def test_a_screen_tells_of_what_it_hides() -> None:
    told: list[Any] = []
    screen = Screen(told.append, 0)
    screen.hide("x" * 1_499_999 + "\n")
    screen.end()
    assert "… 1 line (1.5 MB) hidden" in told[0].text


def test_a_screen_shows_so_many_displays_and_then_tells_of_it() -> None:
    told: list[Any] = []
    screen = Screen(told.append, 0)
    for number in range(DISPLAYS):
        screen.show(Shown("display_data", {"number": number}))
    assert [each.content["number"] for each in told] == list(range(DISPLAYS))
    told.clear()
    for _ in range(2):
        screen.show(Shown("display_data", {}))
    assert [each.text for each in told] == [
        f"More than {DISPLAYS} displays came of this cell; the rest is not shown."
    ]
    screen.show(Shown("clear_output", {}))
    screen.show(Shown("display_data", {"number": -1}))
    assert told[-1].content == {"number": -1}


def test_a_screen_shows_hidden_text_that_is_short() -> None:
    told: list[Any] = []
    screen = Screen(told.append, 0)
    screen.text("x" * HEAD)
    screen.text("the end\n")
    screen.end()
    assert told[1:] == [Text("the end\n")]


def test_ranks_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_counts, "free_memory", lambda: 1_500_000_000)
    assert rank_counts.check_size(35) == 35
    with pytest.raises(UsageError, match=r"need 1\.5 GB .* has 1\.5 GB free"):
        rank_counts.check_size(36)


def test_cores_are_counted_where_nobody_says_which_ones_are_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on macOS, for which it stands in."""
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert rank_counts.core_count() == 7


def test_a_log_is_large_beyond_so_many_megabytes(tmp_path: Path) -> None:
    logs = Logs(Settings(home=tmp_path, log_megabytes=1.0))
    first = logs.folder
    log = first / "rank0.log"
    log.write_bytes(bytes(1_000_001))
    rank = Rank(0, first, log_end=1_000_000)
    assert logs.place([rank], [rank]) == first
    os.truncate(log, 10)  # by hand, to make room
    assert logs.place([rank], [rank]) == first
    assert rank.log_end == 10
    rank.log_end = 1_000_001
    assert logs.place([rank], [rank]) != first
    logs.close()
