"""Build what runs in the page, or say in a line what that lacks, for hatch-jupyter-builder."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent / "labextension"
ADVICE = (
    "Live metrics and the sidebar are built with it. Install it (https://nodejs.org), or set "
    "SKIP_JUPYTER_BUILDER=1: metrics are plain pictures then, and there is no sidebar."
)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version))


def _fits(version: str, wanted: str) -> bool:
    """Tell whether a version is in a range of npm's such as ``^20.19 || >=22.12``."""
    found = _numbers(version)
    return any(
        found >= _numbers(part) and ("^" not in part or found[0] == _numbers(part)[0])
        for part in wanted.split("||")
    )


def lacking() -> str:
    """Return what building the page lacks, by what its package.json asks for, or nothing."""
    wanted = json.loads((PAGE / "package.json").read_text())["engines"]["node"]
    readable = "Node.js " + ", ".join(re.findall(r"[\d.]+", wanted)) + " or newer"
    node = shutil.which("node") or shutil.which("nodejs")  # as jlpm looks for it
    if node is None:
        return f"nbdist lacks {readable}: there is no 'node' on PATH."
    asked = subprocess.run([node, "--version"], capture_output=True, text=True, check=False)
    found = asked.stdout.strip()
    if not found or not _fits(found, wanted):
        return f"nbdist needs {readable}: {node} is {found or 'of no version'}."
    return ""


def build_page(target_name: str, version: str, **options: Any) -> None:
    """Build as npm_builder does; exit with a line where pip would show a traceback."""
    from hatch_jupyter_builder import npm_builder  # there while a wheel is built

    if complaint := lacking():
        sys.exit(f"{complaint} {ADVICE}")
    try:
        npm_builder(target_name, version, **options)
    except subprocess.CalledProcessError:
        sys.exit(
            "nbdist could not build its live metrics and sidebar; what went wrong is said above. "
            "SKIP_JUPYTER_BUILDER=1 installs nbdist without them."
        )


if __name__ == "__main__":
    sys.exit(lacking() or 0)
