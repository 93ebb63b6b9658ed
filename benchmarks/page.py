"""How soon JupyterLab shows live curves, and what the curves cost."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.report import Figure, Measured, Section, Target, measured
from benchmarks.streaming import HERTZ, NAMES
from benchmarks.systems import NBDIST

if TYPE_CHECKING:
    from benchmarks.systems import Options

HOW = """
    JupyterLab in a Chromium without a screen or a GPU. First chart: a cell of two real ranks whose
    cluster is up, from the command that runs it to the frame that has its first curve. Saved: the
    output of that cell, ten metrics of 100 steps, as it lies in the notebook; of it the picture,
    which front ends without nbdist show. Streaming: one process writes what so many ranks would
    ({names} metrics {hertz} times a second, what they take of the machine, a kernel's record:
    `benchmarks/streaming.py`), and the page follows: processor time of the page's own process, of
    the server's, and what comes over its websockets.
"""
ROOT = Path(__file__).parent.parent
RANKS = (2, 16, 64)


def measure(options: Options) -> Section:
    """Let a test of the page measure."""
    found = measured(partial(_figures, 2 if options.quick else 6))

    def figure(name: str, unit: str, key: str, target: Target | None = None) -> Figure:
        return Figure(
            name, unit, target,
            {NBDIST.name: found if isinstance(found, str) else found[key]},
        )  # fmt: skip

    figures = [
        figure("from the start of a cell to its first chart", " s", "first", Target("<", 1)),
        figure("the saved output", " kB", "saved"),
        figure("of it the picture", " kB", "picture"),
        figure("of it the curves", " kB", "curves"),
    ]
    for ranks in RANKS:
        figures += [
            figure(f"{ranks} ranks: a core's share, page", " %", f"page {ranks}"),
            figure(f"{ranks} ranks: a core's share, server", " %", f"server {ranks}"),
            figure(f"{ranks} ranks: over the websocket", " kB/s", f"bytes {ranks}"),
        ]
    return Section("page", HOW.format(names=NAMES, hertz=HERTZ), figures)


def _figures(turns: int) -> dict[str, Measured]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "figures.json")
        told = {"NBDIST_TEST_FIGURES": str(path), "NBDIST_TEST_TURNS": str(turns)}
        ran = subprocess.run(
            ["tools/page", "figures"], cwd=ROOT, env=os.environ | told, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        if ran.returncode or not path.exists():
            raise RuntimeError((ran.stdout + ran.stderr)[-2000:])
        values: defaultdict[str, list[float]] = defaultdict(list)
        for line in path.read_text(encoding="utf-8").splitlines():
            figure = json.loads(line)
            values[figure["figure"]].append(figure["value"])
    return {name: Measured(tuple(each)) for name, each in values.items()}
