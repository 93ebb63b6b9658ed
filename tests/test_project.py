"""The project as a whole: version, public names, an install without torch, links."""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import nbdist

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"\]\(([^)\s]+)\)")
WITHOUT_TORCH = """
import importlib.util, sys
assert importlib.util.find_spec("torch") is None
import nbdist
assert nbdist.__file__.startswith(sys.prefix)
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "nbdist")
result = shell.run_cell("%%distributed -np 2 --backend ddp\\nprint(rank)")
error = result.error_before_exec or result.error_in_exec
print("error:", type(error).__name__, error)
print("NOW WITHOUT A GROUP")
shell.run_cell("%%distributed --backend none\\nprint(f'rank {rank} of {world_size}')")
"""
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def test_the_version_is_one() -> None:
    assert importlib.metadata.version("nbdist") == nbdist.__version__, "run: touch pyproject.toml"
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert re.findall(r"^## ([\d.]+)", changes, flags=re.MULTILINE)[0] == nbdist.__version__
    package = json.loads((ROOT / "labextension" / "package.json").read_text())
    assert package["version"] == nbdist.__version__


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
    for target in ("env", "demo", "lab", "test", "lint", "bench", "clean"):
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


WHERE_JUPYTER_LOOKS = (
    "share/jupyter/labextensions/nbdist/package.json",
    "share/jupyter/labextensions/nbdist/install.json",
    "etc/jupyter/jupyter_server_config.d/nbdist.json",
)


@pytest.mark.timeout(600)
def test_it_installs_and_imports_without_torch(tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", ROOT], check=True, cwd=tmp_path)
    ran = subprocess.run(
        [python, "-c", WITHOUT_TORCH], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    said = ran.stdout + ran.stderr
    assert ran.returncode == 0, said
    for path in WHERE_JUPYTER_LOOKS:
        assert (tmp_path / "venv" / path).exists(), path
    mistake, _, worked = said.partition("NOW WITHOUT A GROUP")
    assert "pip install" in mistake, said
    assert "torch" in mistake, said
    assert "rank 0 of 2" in worked, said


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
