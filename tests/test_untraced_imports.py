"""Coverage with its plugin: what is installed runs untraced, and no line after it is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.repeats

CONFIG = """
[run]
branch = true
plugins = tools.untraced_imports
source_pkgs = counted
"""
COUNTED = """
import sys
def traced():
    try:
        import {name}
    except ImportError:
        return "not imported"
    result = {name}.TRACED
    return result
print(traced(), sys.gettrace() is not None)
"""
MODULE = "import sys\nTRACED = sys.gettrace() is not None\n"


@pytest.mark.parametrize(
    ("name", "printed", "not_run"),
    [
        ("installed", "False True\n", [6, 7]),
        ("installed_and_broken", "not imported True\n", [8, 9]),
        ("beside", "True True\n", [6, 7]),
    ],
)
def test_what_is_installed_is_imported_untraced(
    tmp_path: Path, name: str, printed: str, not_run: list[int]
) -> None:
    installed = tmp_path / "site-packages"
    installed.mkdir()
    (installed / "installed.py").write_text(MODULE)
    (installed / "installed_and_broken.py").write_text("raise ImportError\n")
    (tmp_path / "beside.py").write_text(MODULE)
    (tmp_path / "counted.py").write_text(COUNTED.format(name=name))
    (tmp_path / ".coveragerc").write_text(CONFIG)

    def coverage(*words: str) -> str:
        return subprocess.run(
            [sys.executable, "-m", "coverage", *words],
            cwd=tmp_path, env={"PYTHONPATH": str(installed)}, capture_output=True, text=True,
            check=True,
        ).stdout  # fmt: skip

    assert coverage("run", "counted.py") == printed
    coverage("json")
    [counted] = json.loads((tmp_path / "coverage.json").read_text())["files"].values()
    assert counted["missing_lines"] == not_run
