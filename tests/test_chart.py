"""The page's part of the live metrics, as Python sees it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from IPython.core.interactiveshell import InteractiveShell

from nbdist.errors import NbdistError
from nbdist.magics.showing import front_end
from nbdist.magics.showing.front_end import metrics_how
from nbdist.view.page_state import VERSION
from nbdist.widgets import chart, metrics_picture, page


@pytest.mark.skipif(not page.built(), reason="built without Node.js")
def test_all_a_page_needs_travels_with_the_widget() -> None:
    widget = chart.Chart(state=b"\x00\x01")
    sent = widget.get_state()
    widget.close()
    assert sent["state"] == b"\x00\x01"
    assert "export{" in sent["_esm"].replace(" ", "")
    assert "MIT License" in sent["_esm"], "uPlot's notice goes with it"
    assert ".nbdist-metrics" in sent["_css"]
    for text in (sent["_esm"], sent["_css"]):
        assert "http" not in text.partition("*/")[2].replace("http://www.w3.org/2000/svg", "")


def test_without_its_page_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chart.Chart, "_esm", "")
    with pytest.raises(NbdistError, match=r"metrics\.js.*Install Node\.js"):
        chart.Chart()


def test_the_page_is_built_when_all_of_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, becomes_main: None
) -> None:
    monkeypatch.setattr(page, "MODULE", tmp_path / "metrics.js")
    assert not page.built()
    monkeypatch.setenv("NBDIST_METRICS", "widget")
    assert metrics_how(InteractiveShell()) == "picture"


def test_pages_and_pictures_have_the_same_colours() -> None:
    style = Path(page.__file__).parents[2] / "labextension/src/metrics/style.css"
    light = style.read_text(encoding="utf-8").partition(".nbdist-dark")[0]
    assert tuple(re.findall(r"--nbdist-curve-\d: (#\w+);", light)) == metrics_picture.COLOURS


@pytest.mark.skipif(not page.built(), reason="built without Node.js")
def test_charts_of_jobs_that_are_over_stay_for_reloaded_pages_but_not_all_of_them() -> None:
    charts = [chart.Chart() for _ in range(chart.MOST_LEFT + 2)]
    for each in charts:
        each.leave()
    assert [each.comm is not None for each in charts] == [False] * 2 + [True] * chart.MOST_LEFT
    for each in charts:
        each.close()


class _Kernel:
    """A notebook's shell, whose running request has this cell id."""

    def __init__(self, cell: str | None) -> None:
        self.display_pub = self
        self.pub_socket = None
        self.kernel = self
        self._metadata = {} if cell is None else {"cellId": cell}

    def get_parent(self, _channel: str) -> dict[str, object]:
        return {"metadata": self._metadata}


@pytest.mark.skipif(not page.built(), reason="built without Node.js")
@pytest.mark.parametrize(
    ("server", "cell", "how"),
    [
        (str(VERSION), "1f2e", "page"),
        (str(VERSION), "vscode-notebook-cell:/a.ipynb#1", "widget"),
        (str(VERSION), None, "picture"),  # nbclient from a terminal of the server
        (str(VERSION + 1), "1f2e", "widget"),  # an nbdist that says it otherwise
        ("", "1f2e", "widget"),
    ],
)
def test_pages_that_have_our_extension_draw_by_themselves(
    monkeypatch: pytest.MonkeyPatch, server: str, cell: str | None, how: str
) -> None:
    for sign in front_end.SIGNS:
        monkeypatch.delenv(sign, raising=False)
    monkeypatch.delenv("NBDIST_METRICS", raising=False)
    monkeypatch.setenv("NBDIST_PAGE", server)
    assert metrics_how(_Kernel(cell)) == how  # type: ignore[arg-type]  # as far as it is used
