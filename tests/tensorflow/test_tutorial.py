"""The tutorial on TensorFlow, run as a reader runs it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.helpers.faults import LOST
from tests.test_tutorials import run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.repeats


@pytest.mark.timeout(400)
def test_tensorflow(tmp_path: Path) -> None:
    shown = run("07_tensorflow_horovod", tmp_path)
    places = re.findall(r"^\[(\d)\] rank (\d) of 2, on this host (\d): /CPU:0", shown, re.MULTILINE)
    assert sorted(places) == [("0", "0", "0"), ("1", "1", "1")]  # who prints first is open
    assert "digits of each rank: [720, 720]" in shown
    averaged = re.findall(r"^over ranks: \[(.*)\]", shown, re.MULTILINE)[0].split(", ")
    assert len(averaged) == 5
    assert float(averaged[-1]) > 0.9
    assert "the ranks' weights are equal: True" in shown
    told = r"^the checkpoint: accuracy ([\d.]+); TensorBoard's files: 2"  # training, validation
    right = float(re.findall(told, shown, re.MULTILINE)[0])
    assert right == pytest.approx(float(averaged[-1]), abs=0.001)
    assert "Rank 1 was killed by SIGKILL\n" in shown
    assert "model is now on all ranks as it was on rank 0." in shown
    assert "equal again: True" in shown
    assert re.search(r"in the notebook: accuracy 0\.9\d+, optimizer from keras\.", shown)
    first, last, right = re.findall(r"job: loss ([\d.]+) to ([\d.]+), accuracy ([\d.]+)", shown)[0]
    assert float(last) < float(first) / 2
    assert f"the job's checkpoint: accuracy {right};" in shown
    _elastic(shown)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"07_tensorflow_horovod.ipynb", "executed.ipynb", "tmp"}


def _elastic(shown: str) -> None:
    """Check that a worker came and went, and what was learned before stayed."""
    entered = re.findall(
        r"^size (\d): from epoch (\d+), batch (\d+), accuracy (\S+)", shown, re.MULTILINE
    )
    assert [size for size, *_ in entered] == ["1", "2", "1"]
    (*_, before), (_, *came, right), (_, *lost, after) = entered
    assert list(map(int, lost)) > list(map(int, came))
    assert float(before) < 0.5 < float(right)
    assert float(after) > float(right) - 0.1
    assert LOST.search(shown)
    last = re.findall(r"^ended with 1 after epoch (\d+): accuracy (\S+)", shown, re.MULTILINE)[0]
    assert int(last[0]) == int(lost[0]) + 1
    assert float(last[1]) > 0.9
