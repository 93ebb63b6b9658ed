"""Pictures of metrics, whatever was logged and whatever the notebook has set for its own."""

from __future__ import annotations

import base64
import itertools
import struct
from types import SimpleNamespace
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure

from nbdist.job.rows import RankRow
from nbdist.machine.tables import GROUND
from nbdist.metrics.thinned_curves import Curve
from nbdist.view.job_view import Seen
from nbdist.view.panels import panels
from nbdist.widgets import metrics_picture

NAMES = ("$x_{$", "\u635f\u5931", "a\nb", "\x00\x1b", "x" * 500, "_hid/_a", "_hid/_b", "", "/")
TAG = "<img src=x onerror=alert(1)>"


def curve(name: str, *values: float) -> Curve:
    """Return a curve on one rank."""
    made = Curve(name, (0,))
    made.add({0: len(values)}, np.arange(len(values)), np.array(values), np.zeros(len(values)))
    return made


def seen_of(curves: list[Curve], ranks: int = 2) -> Seen:
    """Return what is seen of a job that has ended."""
    rows = [
        RankRow(rank, "", "cpu", "done", 0.01, 99.0, 10**9, None, None) for rank in range(ranks)
    ]
    return Seen("Job 1 on ranks 0-1", "done", 1.0, [], "", rows, panels(curves)[0], "")


@pytest.mark.parametrize(
    "settings", [{}, {"text.usetex": True}, {"axes.formatter.use_mathtext": True}]
)
def test_any_name_and_value_is_drawn(settings: dict[Any, Any]) -> None:
    curves = [curve(name, 1, 2) for name in NAMES]
    curves += [curve("huge", 1.7e308, -1.7e308, 1), curve("tiny", 5e-324), curve("nan", np.nan)]
    with mpl.rc_context(settings):  # a warning is an error, as in all tests
        png, _, _ = metrics_picture.draw(panels(curves)[0])
    assert png.startswith(b"\x89PNG")


def test_a_machine_that_draws_slowly_is_warned_of_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(step=10)  # matplotlib asks it how long the best place has taken
    monkeypatch.setattr("matplotlib.legend.time", SimpleNamespace(perf_counter=clock.__next__))
    metrics_picture.draw(panels([curve("loss/a", 1, 2), curve("loss/b", 2, 1)])[0])
    assert next(clock) > 0, "it was asked"


def test_names_are_no_html() -> None:
    shown, _ = panels([curve(TAG, 1), curve(f"{TAG}/b", 1)])
    seen = Seen(TAG, TAG, 1.0, [], TAG, [], shown, TAG)
    assert "<img src=x" not in metrics_picture.as_html(seen, "", 1)
    assert "&lt;img src=x" in metrics_picture.as_html(seen, "", 1)


def test_a_lone_curve_has_its_whole_name_and_axes_say_what_they_are() -> None:
    drawn = []
    for panel in panels([curve("grad/norm", 1), curve("train/loss", 1), curve("val/loss", 1)])[0]:
        axes = Figure().subplots()
        metrics_picture._draw_panel(axes, panel)
        drawn.append((axes.get_title("left"), axes.get_xlabel()))
    assert drawn == [("grad/norm", "step"), ("loss", "step")]


def test_one_rank_is_no_ranks() -> None:
    rank = RankRow(0, "", "cpu", "idle", None, None, None, None, None)
    for count, told in ((1, ">1 rank<"), (2, ">2 ranks<")):
        seen = Seen("job", "done", 1.0, [], "", [rank] * count, [], "")
        assert told in metrics_picture.as_html(seen, "", 1)


def test_it_brings_its_own_ground() -> None:
    """A front end that paints no text would show dark letters on a dark ground."""
    shown = metrics_picture.as_html(seen_of([curve("loss", 1)]), "", 1)
    assert shown.startswith(f'<div style="{GROUND}">')
    assert shown.endswith("</div>")
    assert shown.count("<div") == shown.count("</div>")


def test_a_hundred_panels_are_shown_and_a_picture_has_the_first() -> None:
    shown, left_out = panels([curve(f"m{number}", 1, 2) for number in range(103)])
    assert (len(shown), left_out) == (100, ["m100", "m101", "m102"])
    seen = Seen("job", "done", 1.0, [], "", [], shown, "")
    data = metrics_picture.bundle(seen)
    encoded = data["text/html"].partition("data:image/png;base64,")[2].partition('"')[0]
    (height,) = struct.unpack_from(">I", base64.b64decode(encoded), 20)
    rows = metrics_picture.MOST_DRAWN / metrics_picture.COLUMNS
    assert height == int(rows * metrics_picture.HIGH * metrics_picture.DPI * metrics_picture.SHARP)
    assert "The table has 88 more metrics" in data["text/html"]
    assert data["text/html"].count(">m99<") == 1, "it is in the table"
