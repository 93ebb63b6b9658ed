"""The tutorials, run as a reader runs them: every cell, in order, in a real kernel."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from tests.helpers.faults import LOST
from tests.helpers.kernel import limits
from tests.helpers.waiting import allowed

pytestmark = [pytest.mark.starts_processes, pytest.mark.repeats, pytest.mark.long]

ROOT = Path(__file__).parent.parent


def run(name: str, folder: Path) -> str:
    """Run a copy of a tutorial in an empty folder; return all it has shown, and check it ended."""
    source = ROOT / "notebooks" / f"{name}.ipynb"
    for cell in nbformat.read(source, as_version=4).cells:
        assert not cell.get("outputs"), f"{cell.id} is stored with outputs"
    notebook = shutil.copy(source, folder)
    temp = folder / "tmp"  # a plain torchrun leaves its logs in the temp folder
    temp.mkdir()
    done = subprocess.run(
        [sys.executable, "tools/run_notebook.py", notebook, folder / "executed.ipynb"],
        cwd=ROOT,
        env=os.environ | limits() | {"TMPDIR": str(temp)},
        capture_output=True,
        text=True,
        timeout=allowed(300),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_from_a_cell_to_a_script(tmp_path: Path) -> None:
    shown = run("02_scripts", tmp_path)
    first, last = map(float, re.findall(r"rank 0 of 2: loss ([\d.]+) to ([\d.]+)", shown)[0])
    assert last < first / 2
    assert "Restart 1 of 2: rank 1 failed: RuntimeError: this host has a bad day" in shown
    lives = re.findall(r"life (\d), epoch (\d): loss", shown)
    assert lives == [("0", "0"), ("0", "1"), ("1", "2"), ("1", "3"), ("1", "4")]
    ran = re.findall(r"^train.py: loss ([\d.]+) after 5 epochs on 2 ranks", shown, re.MULTILINE)
    assert [float(loss) for loss in ran] == [last]
    for library in ("accelerate", "Fabric"):  # 1,797 digits by 25 are 72 batches
        assert f"{library}: 36 batches on each of 2 ranks" in shown
    assert "`mp.spawn` (cell line 20) makes its own workers: the cell runs as one program" in shown
    said = re.findall(r"^worker (\d) of 2: loss ([\d.]+)$", shown, re.MULTILINE)
    assert sorted(worker for worker, _ in said) == ["0", "1"]
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"02_scripts.ipynb", "executed.ipynb", "tmp"}


@pytest.mark.horovod
def test_horovod(tmp_path: Path) -> None:
    shown = run("03_horovod", tmp_path)
    assert set(re.findall(r"\[(\d)\] rank (\d) of 2, on this host (\d)", shown)) == {
        ("0", "0", "0"),
        ("1", "1", "1"),
    }
    began, broadcast = zip(
        *re.findall(r"a weight was ([+-]\S+), is ([+-]\S+)\n", shown), strict=True
    )
    assert len(set(began)) == 2
    assert len(set(broadcast)) == 1  # rank 0's; either rank may print first
    assert set(broadcast) < set(began)
    _learned_alike(shown)
    assert "the ranks' weights are equal: True" in shown
    bytes_sent = dict(re.findall(r"(fp\d\d): (\d+) bytes", shown))
    assert bytes_sent == {"fp32": "16384", "fp16": "8192"}
    right = re.findall(
        r"(?:fp\d\d: .*|checkpoint of epoch 4: |averaged .*|job: .*)accuracy (0\.\d+)", shown
    )
    assert len(right) == 5
    assert min(map(float, right)) > 0.8
    started, adasum = re.findall(r"started by it: (\w+)\n(.*)\n", shown)[0]
    assert started == "False"
    assert adasum == "Adasum cannot run here: No Adasum operation enabled"
    _went_on_from_a_commit(shown)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"03_horovod.ipynb", "executed.ipynb", "tmp"}


def _learned_alike(shown: str) -> None:
    """Check that both ranks had losses of their own, the same ones over ranks, and learned."""
    line = r"\[(\d)\] epoch (\d): own loss (\S+), over ranks (\S+), accuracy (\S+)"
    found = {(rank, int(epoch)): rest for rank, epoch, *rest in re.findall(line, shown)}
    assert len(found) == 10
    for epoch in range(5):
        (own, *everywhere), (other, *elsewhere) = found["0", epoch], found["1", epoch]
        assert own != other
        assert everywhere == elsewhere
        assert (float(own) + float(other)) / 2 == pytest.approx(float(everywhere[0]), abs=2e-4)
    assert float(found["0", 4][1]) < float(found["0", 0][1]) / 2
    assert float(found["0", 4][2]) > 0.8


def _went_on_from_a_commit(shown: str) -> None:
    """Check that the elastic job was whole, and that what it learned was not lost with a rank."""
    entered = re.findall(r"size (\d): from epoch (\d), batch (\d+), accuracy (\S+)", shown)
    assert [place for *place, _ in entered] == [["2", "0", "0"], ["1", "2", "8"]]
    epochs = re.findall(r"size (\d): epoch (\d), (\d+) batches, accuracy (\S+)", shown)
    assert [tuple(map(int, epoch[:3])) for epoch in epochs] == [
        (2, 0, 18), (2, 1, 18), (1, 2, 8 + 20), (1, 3, 36), (1, 4, 36),
    ]  # fmt: skip
    before, after = float(entered[0][3]), float(entered[1][3])
    assert after > 0.5 > before
    assert float(epochs[-1][3]) > after
    assert LOST.search(shown)


WAY = re.compile(r"^ *([^\d\n]+?)  +\d+ .* (\d\.\d+)$", re.MULTILINE)


def test_metrics_and_scaling(tmp_path: Path) -> None:
    shown = run("04_metrics_and_scaling", tmp_path)
    first, last = re.findall(r"digits: (0\.\d+) after 10 steps, (0\.\d+) after 100", shown)[0]
    assert float(first) < float(last)
    assert float(last) > 0.85
    learned = dict(re.findall(r"(full|mixed): accuracy (0\.\d+), [\d,]+ images/s", shown))
    assert float(learned["full"]) > 0.8
    assert float(learned["mixed"]) == pytest.approx(float(learned["full"]), abs=0.05)
    assert "DataParallel (2 of " in shown
    rows = re.findall(r"(\d) rank\(s\): [\d,]+ images/s, efficiency (\d+)%, \d+% of a step", shown)
    assert [ranks for ranks, _ in rows] == ["1", "2"]
    assert rows[0][1] == "100"
    cells = nbformat.read(tmp_path / "executed.ipynb", as_version=4).cells
    kept = {cell.id: cell.outputs for cell in cells if cell.cell_type == "code"}
    pictures = {
        name: sum("image/png" in str(out.get("data", {})) for out in outputs)
        for name, outputs in kept.items()
    }
    assert {name: number for name, number in pictures.items() if number} == {
        "curves": 1, "precision": 1, "ways": 1, "scale": 1,
    }  # fmt: skip
    (table,) = [out["data"]["text/plain"] for out in kept["ways"] if "data" in out]
    found = {name: float(last) for name, last in WAY.findall(table)}
    assert {"one process", "DataParallel", "DDP", "DDP, mixed precision"} <= set(found)
    assert ("Horovod" in found) == (importlib.util.find_spec("horovod") is not None)
    assert "n/a" not in table
    assert min(found.values()) > 0.75
    assert max(found.values()) - min(found.values()) < 0.05
    assert "of the storage's speed" in kept["reading"][0]["data"]["text/plain"]
    told = "".join(out.get("data", {}).get("text/plain", "") for out in kept["slow"])
    assert "Rank 1 is the slowest:" in told
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"04_metrics_and_scaling.ipynb", "executed.ipynb", "tmp"}


def test_when_things_go_wrong(tmp_path: Path) -> None:
    shown = run("05_when_things_go_wrong", tmp_path)
    told = (
        "Rank 1 failed: KeyError: 'label' (cell line 4)",
        "Rank 0 was waiting in all_reduce in backward at cell line 5, in `steps`",
        "rank 0 has waited in all_reduce",
        "rank 1 has waited in barrier",
        "The cell was stopped: it ran longer than --timeout 10 s.",
        "was interrupted",
        "Rank 1 was killed by SIGKILL",
        "Rank 1 restarted, nothing is missing.",
        "both ranks have the same weights: True",
        "The cell was interrupted.",
    )
    places = [shown.index(text) for text in told]
    assert places == sorted(places)
    first, second = shown.partition("=== rank 1 ===")[::2]
    assert re.search(r'File "Cell In\[2\]", line 16, in steps\n +loss.backward\(\)', first)
    assert re.search(r'File "Cell In\[6\]", line 5, in download\n +time.sleep\(1000\)', second)
    found = re.findall(r"^(?:loss|and on).*: (\d+\.\d+)", shown, re.MULTILINE)
    losses = [float(loss) for loss in found]
    assert losses == sorted(losses, reverse=True)  # nothing that went wrong has cost any training
    assert len(losses) == 4
    for picture in re.findall(r"\]\(\.\./(docs/\S+\.png)\)", shown):
        assert (ROOT / picture).exists(), picture


@pytest.mark.timeout(300)  # torch's compiler is imported, long on a busy machine
def test_quantization(tmp_path: Path) -> None:
    shown = run("08_quantization", tmp_path)
    line = r"\[(\d)\] (\d+) of 397 digits: accuracy (\S+), loss (\S+)\n"
    parts = re.findall(line, shown)
    assert sum(int(part) for _, part, *_ in parts) == 397
    ones = re.findall(r"\[(\d)\] all of them on one rank: +accuracy (\S+), loss (\S+)\n", shown)
    assert sorted(ones) == sorted((rank, *found) for rank, _, *found in parts)
    assert re.findall(r"on two ranks as on one: (\w+)", shown) == ["True", "True"]
    assert re.findall(r"each rank's part alone: (\w+)", shown) == ["False", "False"]
    both = re.findall(r"trained for it on two ranks: accuracy (0\S+), on one: (0\S+)", shown)[0]
    assert float(both[0]) == pytest.approx(float(both[1]), abs=1.1 / 397)
    left_out = r"\] channels kept: 16 of 32 32 of 64 - as on one rank: (\w+)"
    assert re.findall(left_out, shown) == ["True", "True"]
    pruned, of_one = re.findall(r"\] pruned: accuracy (0\S+), on one rank (0\S+)\n", shown)[0]
    assert float(pruned) == pytest.approx(float(of_one), abs=1.1 / 397)
    row = r"^(float|pruned|after training|in training) +(0\.\d+) +(\d+) "
    table = {name: found for name, *found in re.findall(row, shown, re.MULTILINE)}
    accuracies, sizes = ({name: float(table[name][n]) for name in table} for n in (0, 1))
    assert min(accuracies.values()) > 0.9
    assert accuracies["after training"] == pytest.approx(accuracies["float"], abs=0.02)
    assert sizes["float"] / 4 < sizes["after training"] == sizes["in training"]
    assert sizes["in training"] < sizes["float"] / 3.5
    assert sizes["pruned"] < sizes["float"] / 2
    assert table["pruned"][0] == pruned
    assert f"loaded again: accuracy {accuracies['after training']:.4f}" in shown
    alone = (
        r"evaluated alone: {'accuracy': ([\d.]+), 'seconds': ([\d.]+), 'digits a second': ([\d.]+)}"
    )
    correct, seconds, rate = map(float, re.findall(alone, shown)[0])
    assert correct == pytest.approx(accuracies["float"], abs=1e-4)
    assert seconds * rate == pytest.approx(397, rel=0.01)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"08_quantization.ipynb", "executed.ipynb", "tmp"}
