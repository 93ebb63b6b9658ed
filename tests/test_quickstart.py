"""The quickstart, run as a newcomer runs it: every cell, in order, in a real kernel."""

from __future__ import annotations

import base64
import copy
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

from nbdist.view.page_state import VERSION
from nbdist.widgets.live_metrics import MIME
from tests.helpers.waiting import allowed
from tests.test_metrics import unpacked
from tools.run_notebook import about_a_machine, digest

pytestmark = [pytest.mark.starts_processes, pytest.mark.repeats]

ROOT = Path(__file__).parent.parent
MOST_STORED = 160_000
"""Bytes of the notebook in the repository."""
NOTEBOOK = ROOT / "notebooks" / "quickstart.ipynb"


def _text(cell: Any) -> str:
    """Return what a cell shows, without colours."""
    parts = []
    for out in cell.outputs:
        if out.output_type == "stream":
            parts.append(out.text)
        elif out.output_type == "error":
            parts += [*out.traceback, f"{out.ename}: {out.evalue}"]
        else:
            parts.append(out.data.get("text/plain", ""))
    return re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(parts))


def _losses(cell: Any) -> list[float]:
    return [float(loss) for loss in re.findall(r"epoch \d+: loss ([\d.]+)", _text(cell))]


def _accuracy(cell: Any) -> float:
    (figure,) = re.findall(r"accuracy on held-out digits: ([\d.]+)", _text(cell))
    return float(figure)


@pytest.fixture(scope="module")
def demo(
    tmp_path_factory: pytest.TempPathFactory, scratch: Path
) -> subprocess.CompletedProcess[str]:
    """Run what `make demo` runs; stdout is what it showed, the notebook is in its last line."""
    executed = tmp_path_factory.mktemp("demo") / "executed.ipynb"
    return subprocess.run(
        [sys.executable, "tools/run_notebook.py", NOTEBOOK, executed],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=allowed(300),
        check=False,
    )


@pytest.fixture(scope="module")
def cells(demo: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Return the executed cells by their ids."""
    path = demo.stdout.strip().rpartition("The executed notebook: ")[2]
    return {cell.id: cell for cell in nbformat.read(path, as_version=4).cells}


@pytest.fixture(scope="module")
def stored() -> Any:
    """Return the notebook as it is in the repository."""
    return nbformat.read(NOTEBOOK, as_version=4)


def test_its_outputs_are_stored_and_those_of_its_code(stored: Any) -> None:
    nbformat.validate(stored)
    made_by = stored.metadata.get("nbdist", {}).get("outputs_of")
    assert made_by == digest(stored), "its cells have changed: make quickstart"
    shown = {cell.id: _text(cell) for cell in stored.cells if cell.cell_type == "code"}
    assert "[1] rank 1 of 2" in shown["data"]
    assert "epoch 9: loss" in shown["train"]
    assert "epochs: 10 of 10" in shown["train"]
    assert "bad batch on rank 1" in shown["mistake"]
    data = {
        cell.id: out.data
        for cell in stored.cells
        for out in cell.get("outputs", ())
        if MIME in out.get("data", {}) or "image/png" in out.get("data", {})
    }
    assert set(data) == {"train", "plot"}
    assert '<img alt="Curves of loss"' in "".join(data["train"]["text/html"])


def test_stored_curves_are_of_the_format_that_the_page_reads(stored: Any) -> None:
    kept = [
        out.data[MIME]
        for cell in stored.cells
        for out in cell.get("outputs", ())
        if MIME in out.get("data", {})
    ]
    assert [each["version"] for each in kept] == [VERSION], "make quickstart"
    state = unpacked(base64.b64decode(kept[0]["state"]))
    assert (state["version"], state["state"]) == (VERSION, "done")
    (loss,) = state["panels"][0]["curves"]
    assert (loss["name"], loss["x"]) == ("loss", list(range(10)))
    assert {panel["title"] for panel in state["resources"]} >= {"Memory, bytes"}


def test_what_is_stored_is_small_and_of_no_machine(stored: Any) -> None:
    assert NOTEBOOK.stat().st_size < MOST_STORED
    for cell in stored.cells:
        assert "execution" not in cell.metadata, f"{cell.id}: times of the run"
    assert about_a_machine(stored) == []


def test_what_is_about_a_machine_is_found(stored: Any) -> None:
    spoilt = copy.deepcopy(stored)
    cell = next(cell for cell in spoilt.cells if cell.id == "data")
    for text in (f"on {socket.gethostname()}:", "File /home/me/x.py", "http://127.0.0.1:8888"):
        cell.outputs[-1].text = text
        assert len(about_a_machine(spoilt)) == 1


def test_the_demo_runs_to_its_end_and_shows_it(demo: subprocess.CompletedProcess[str]) -> None:
    assert demo.returncode == 0, demo.stdout[-4000:] + demo.stderr[-4000:]
    assert "accuracy on held-out digits" in demo.stdout
    assert "The executed notebook: " in demo.stdout


def test_loading_is_silent(cells: dict[str, Any]) -> None:
    assert _text(cells["load"]) == ""


def test_the_data_is_split_over_the_ranks(cells: dict[str, Any]) -> None:
    assert re.search(r"\[0\] rank 0 of 2 on .*: 700 of 1400 images", _text(cells["data"]))
    assert re.search(r"\[1\] rank 1 of 2 on .*: 700 of 1400 images", _text(cells["data"]))


def test_the_notebooks_names_are_brought_and_returned(cells: dict[str, Any]) -> None:
    assert re.search(r"Brought to 2 ranks: .*train \(.*Digits", _text(cells["data"]))
    assert "Net (class)" in _text(cells["model"])
    assert "Returned from rank 0: losses (" in _text(cells["train"])


def test_it_learns(cells: dict[str, Any]) -> None:
    losses = _losses(cells["train"])
    assert len(losses) == 10
    assert losses[-1] < losses[0] / 10
    assert _accuracy(cells["evaluate"]) > 0.95


def test_what_was_returned_is_plotted(cells: dict[str, Any]) -> None:
    data = [out.data for out in cells["plot"].outputs if "data" in out]
    assert any("image/png" in bundle for bundle in data)


def test_status_and_logs_show_both_ranks(cells: dict[str, Any]) -> None:
    assert re.search(r"\b0\b.*\n.*\b1\b", _text(cells["status"]))
    assert "idle" in _text(cells["status"])
    assert "accuracy on held-out digits" in _text(cells["logs"])


def test_the_mistake_is_told_first_and_shortly(cells: dict[str, Any]) -> None:
    said = _text(cells["mistake"])
    assert "bad batch on rank 1" in said
    assert next(line for line in said.splitlines() if "ank" in line).startswith("Rank 1 failed")
    for secondary in ("KeyboardInterrupt", "Connection", "RuntimeError"):
        assert secondary not in said, "what follows from the mistake is not shown as an error"
    assert len(said.splitlines()) < 40


def test_the_same_model_trains_on_after_the_mistake(cells: dict[str, Any]) -> None:
    losses = _losses(cells["after"])
    assert len(losses) == 4
    assert max(losses) < _losses(cells["train"])[2], "it went on where it was"
    assert _accuracy(cells["after"]) > 0.95
