"""Pictures of metrics, whatever was logged and whatever the notebook has set for its own."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest

from nbdist.metrics.curves import Curve
from nbdist.view.panels import panels
from nbdist.view.seen import Seen
from nbdist.widgets import picture

NAMES = ("$x_{$", "\u635f\u5931", "a\nb", "\x00\x1b", "x" * 500, "_hid/_a", "_hid/_b", "", "/")
TAG = "<img src=x onerror=alert(1)>"


def curve(name: str, *values: float) -> Curve:
    """Return a curve on one rank."""
    made = Curve(name, (0,))
    made.add({0: len(values)}, np.arange(len(values)), np.array(values), np.zeros(len(values)))
    return made


@pytest.mark.parametrize(
    "settings", [{}, {"text.usetex": True}, {"axes.formatter.use_mathtext": True}]
)
def test_any_name_and_value_is_drawn(settings: dict[Any, Any]) -> None:
    curves = [curve(name, 1, 2) for name in NAMES]
    curves += [curve("huge", 1.7e308, -1.7e308, 1), curve("tiny", 5e-324), curve("nan", np.nan)]
    with mpl.rc_context(settings):  # a warning is an error, as in all tests
        png, _, _ = picture.draw(panels(curves)[0])
    assert png.startswith(b"\x89PNG")


def test_a_machine_that_draws_slowly_is_warned_of_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(step=10)  # matplotlib asks it how long the best place has taken
    monkeypatch.setattr("matplotlib.legend.time", SimpleNamespace(perf_counter=clock.__next__))
    picture.draw(panels([curve("loss/a", 1, 2), curve("loss/b", 2, 1)])[0])
    assert next(clock) > 0, "it was asked"


def test_names_are_no_html() -> None:
    shown, _ = panels([curve(TAG, 1), curve(f"{TAG}/b", 1)])
    seen = Seen(TAG, TAG, 1.0, [], TAG, [], shown, TAG)
    assert "<img src=x" not in picture.as_html(seen, "", 1)
    assert "&lt;img src=x" in picture.as_html(seen, "", 1)
