"""The tutorial on XLA, run as a reader runs it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.test_tutorials import run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.repeats


@pytest.mark.timeout(400)
def test_xla(tmp_path: Path) -> None:
    shown = run("06_xla", tmp_path)
    assert "rank 0 of 1 on xla:0, a mesh of {'data': 4}" in shown
    assert re.findall(r"^CPU:(\d) has \((\d), 2\)", shown, re.MULTILINE) == [
        ("0", "2"), ("1", "2"), ("2", "2"), ("3", "2"),
    ]  # fmt: skip
    full, mixed = re.findall(
        r"^accuracy ([\d.]+) in full precision, ([\d.]+) in mixed", shown, re.MULTILINE
    )[0]
    assert float(full) > 0.95
    assert float(mixed) == pytest.approx(float(full), abs=0.04)
    first, last = re.findall(r"mixed: loss ([\d.]+) to ([\d.]+) in 160 steps", shown)[0]
    assert float(last) < float(first) / 5
    assert "Rank 0 failed: RuntimeError: somebody has pulled a plug (cell line 25)" in shown
    assert "goes on after epoch 9 with accuracy" in shown
    resumed = re.findall(r"^accuracy ([\d.]+), without the accident", shown, re.MULTILINE)
    assert float(resumed[0]) == pytest.approx(float(full), abs=0.02)
    assert "-np 2: XLA's runtime runs in this kernel with 4 CPU devices" in shown
    assert "process 0: rank 0 of 1, 2048 points on xla:0" in shown
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"06_xla.ipynb", "executed.ipynb", "tmp"}
