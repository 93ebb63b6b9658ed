"""What is too much to be shown, kept or started."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from nbdist import sizes
from nbdist.errors import UsageError
from nbdist.hub.jobs import Shown, Text
from nbdist.hub.logs import Logs
from nbdist.hub.screen import DISPLAYS, HEAD, Screen
from nbdist.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from nbdist.hub.ranks import Rank


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
