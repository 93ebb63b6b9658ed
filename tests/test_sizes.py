"""Sizes are counted and written in one way: 1 kB is 1000 bytes, 1 MB 10**6."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from nbdist import memory, sizes
from nbdist.errors import UsageError
from nbdist.hub.jobs import Shown, Text, in_time
from nbdist.hub.logs import Logs
from nbdist.hub.screen import DISPLAYS, HEAD, Screen
from nbdist.magics import table
from nbdist.settings import Settings
from nbdist.widgets import picture

if TYPE_CHECKING:
    from pathlib import Path

    from nbdist.hub.ranks import Rank


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (999, "999 B"), (1000, "1.0 kB"), (1_500_000, "1.5 MB"), (2**30, "1.1 GB"),
        (42 * 10**14, "4200.0 TB"),
    ],
)  # fmt: skip
def test_all_write_a_size_alike(size: int, words: str) -> None:
    assert memory.in_words(size) == table.size(size) == picture._size(size) == words


def test_a_screen_tells_of_what_it_hides() -> None:
    told: list[Any] = []
    screen = Screen(told.append, 0)
    screen.hide("x" * 1_499_999 + "\n")
    screen.end()
    assert "… 1 lines (1.5 MB) are not shown here" in told[0].text


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


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (3.21, "3.2 s"), (59.4, "59 s"), (60, "1 min 0 s"), (725, "12 min 5 s"),
        (3599.9, "1 h 0 min"), (7_500, "2 h 5 min"),
    ],
)  # fmt: skip
def test_durations_in_words(seconds: float, words: str) -> None:
    assert in_time(seconds) == words


def test_ranks_that_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "free_memory", lambda: 1_500_000_000)
    assert sizes.check_size(35) == 35
    with pytest.raises(UsageError, match=r"need 1\.5 GB .* has 1\.5 GB free"):
        sizes.check_size(36)


def test_a_log_is_large_beyond_so_many_megabytes(tmp_path: Path) -> None:
    logs = Logs(Settings(home=tmp_path, log_megabytes=1.0))
    rank = cast("Rank", SimpleNamespace(logs=logs.folder, log_end=1_000_000))
    first = logs.folder
    assert logs.place([rank], [rank]) == first
    rank.log_end = 1_000_001
    assert logs.place([rank], [rank]) != first
    logs.close()
