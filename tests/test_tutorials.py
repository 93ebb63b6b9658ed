"""The tutorials, run as a reader runs them: every cell, in order, in a real kernel."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat

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
        env=os.environ | {"TMPDIR": str(temp)},
        capture_output=True,
        text=True,
        timeout=300,
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
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"02_scripts.ipynb", "executed.ipynb", "tmp"}
