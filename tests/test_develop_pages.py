"""What `docs/develop` shows: added to a copy of nbdist, its cells run there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.repeats  # and a copy's files are gone when coverage looks for them
PAGES = sorted(ROOT.glob("docs/develop/*.md"))
BLOCK = re.compile(r"^```(python|diff|text)\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)
MODULE = re.compile(r"# (nbdist/\S+\.py)\n")
RUN = """
import sys
from pathlib import Path
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "nbdist")
shell.run_cell("import nbdist")
for cell in map(Path, sys.argv[1:]):
    print("--", cell.name, flush=True)
    shell.run_cell(cell.read_text())
"""


@pytest.mark.starts_processes
@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.stem != "index"], ids=lambda page: page.stem
)
def test_what_a_page_adds_works_as_it_says(
    page: Path, tmp_path: Path, without_torch: dict[str, str]
) -> None:
    shutil.copytree(ROOT / "nbdist", tmp_path / "nbdist", symlinks=True)
    cells: list[Path] = []
    expected: dict[str, list[str]] = {}
    for kind, text in BLOCK.findall(page.read_text()):
        module = MODULE.match(text)
        if kind == "diff":
            subprocess.run(["git", "apply", "-"], input=text, text=True, cwd=tmp_path, check=True)
        elif module:
            (tmp_path / module[1]).write_text(text.removeprefix(module[0]))
        elif kind == "python":
            cells.append(tmp_path / f"cell{len(cells)}.py")
            cells[-1].write_text(text)
        else:
            expected[cells[-1].name] = text.splitlines()
    found = os.pathsep.join([str(tmp_path), without_torch["PYTHONPATH"]])
    environ = {**os.environ, "PYTHONPATH": found, "NBDIST_HOME": str(tmp_path / "home")}
    ran = subprocess.run(
        [sys.executable, "-c", RUN, *cells], env=environ, cwd=tmp_path, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    told = dict(part.partition("\n")[::2] for part in ran.stdout.split("-- ")[1:])
    assert expected
    for cell, lines in expected.items():
        assert sorted(lines) == sorted(set(lines) & set(told[cell].splitlines())), ran
