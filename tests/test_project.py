"""The project as a whole: version, public names, what README begins with, links."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import nbdist

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"\]\(([^)\s]+)\)")
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def test_the_version_is_one() -> None:
    assert importlib.metadata.version("nbdist") == nbdist.__version__, "run: touch pyproject.toml"
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert re.findall(r"^## ([\d.]+)", changes, flags=re.MULTILINE)[0] == nbdist.__version__
    package = json.loads((ROOT / "labextension" / "package.json").read_text())
    assert "version" not in package, "building takes it from nbdist/__init__.py"


def test_readme_begins_with_how_to_install_and_try_it() -> None:
    first_screen = "\n".join((ROOT / "README.md").read_text().splitlines()[:25])
    install = r"^ +pip install '\.\[([\w,]+)\]' +# \w"
    (extras,) = re.findall(install, first_screen, flags=re.MULTILINE)
    known = importlib.metadata.metadata("nbdist").get_all("Provides-Extra") or []
    assert set(extras.split(",")) <= set(known)
    for target in ("demo", "test"):
        assert re.search(rf"^ +make {target} +# \w", first_screen, flags=re.MULTILINE), target


@pytest.mark.starts_processes
def test_every_name_of_the_face_is_there_whatever_was_imported_before() -> None:
    code = """
import importlib, pkgutil, nbdist
for module in pkgutil.iter_modules(nbdist.__path__):
    importlib.import_module(f"nbdist.{module.name}")
for name in nbdist.__all__:
    assert name == "__version__" or callable(getattr(nbdist, name)), name
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    links = [link.partition("#")[0] for link in LINK.findall(page.read_text())]
    local = [link for link in links if link and "://" not in link]
    missing = [link for link in local if not (page.parent / link).exists()]
    assert missing == []


def test_make_lists_its_targets() -> None:
    listed = subprocess.run(["make", "-C", ROOT], check=True, capture_output=True, text=True).stdout
    targets = ("env", "demo", "lab", "check", "test", "coverage", "lint", "bench", "dist", "clean")
    for target in targets:
        assert re.search(rf"^ +make {target} +\w", listed, flags=re.MULTILINE), target


def test_the_table_of_versions_is_true() -> None:
    """What it names stands where the targets read it, and no requirement is lacking."""
    table = (ROOT / "docs" / "versions.md").read_text()
    project = (ROOT / "pyproject.toml").read_text()
    named = set(re.findall(r"`([\w-]+[<>=]=[^`]+)`", table))
    assert {one for one in named if f'"{one}"' not in project} == set()
    needed = re.search(r"^dependencies = \[(.*?)^\]", project, flags=re.MULTILINE | re.DOTALL)
    assert needed is not None
    assert set(re.findall(r'"(.+?)"', needed[1])) - named == set()
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"`(python3\.\d+)`.*?`make (test-\w+)`", table)
    assert len(targets) == 2
    for python, target in targets:
        first = f"(?:{target}|\\.venv-{target[5:]}/made)"
        assert re.search(rf"^{first}: PYTHON = {python}$", makefile, flags=re.MULTILINE), target
    tried = re.findall(
        r"make test-torch TORCH=([\d.]+)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE
    )
    assert len(tried) == 2
    assert f"| torch, oldest and newest | {tried[0]} and {tried[1]};" in table
    assert f'"torch>={tried[0].removesuffix(".0")}"' in project
    assert f"TORCH ?= {tried[1]}\n" in makefile


@pytest.mark.starts_processes
@pytest.mark.parametrize(
    "cell", ["", "%%distributed -np 2 --backend none\nrank"], ids=["load", "run"]
)
def test_a_shell_that_just_ends_leaves_nothing_and_says_nothing(cell: str) -> None:
    code = f"""
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "nbdist")
shell.run_cell({cell!r})
"""
    ran = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert ran.stderr == ""  # and the harness looks for what is left
