"""The project as a whole: version, public names, what the documents say and where they lead."""

from __future__ import annotations

import argparse
import ast
import functools
import importlib
import importlib.metadata
import json
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import nbdist
from nbdist.magics.dist import COMMANDS
from nbdist.magics.distributed import DistributedMagics
from nbdist.settings import Settings
from tools import rooms

pytestmark = pytest.mark.repeats

ROOT = Path(__file__).parent.parent
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.+)$", flags=re.MULTILINE)
GUIDES = ROOT / "docs" / "guides"
PAGES = sorted(
    path
    for pages in ("*.md", "docs/**/*.md", ".github/**/*.md", "notebooks/*.ipynb")
    for path in ROOT.glob(pages)
)
ARCHITECTURE = sorted(ROOT.glob("docs/architecture/*.md"))
ROOTS = (ROOT, ROOT / "nbdist", ROOT / "labextension" / "src")
MADE_LATER = {
    ".venv/bin/pytest",
    "build/docs/index.html",
    "build/gpu-rehearsal.md",
    "dist/",
    "nbdist/labextension/",
    "nbdist/widgets/static/",
    "wheels/",
}
"""Named in the documents, and no part of the repository."""
README_LINES = 220
"""A newcomer reads it to the end; what takes more lines is a guide."""


def test_the_version_is_one() -> None:
    assert importlib.metadata.version("nbdist") == nbdist.__version__, "run: touch pyproject.toml"
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert re.findall(r"^## ([\d.]+)", changes, flags=re.MULTILINE)[0] == nbdist.__version__
    package = json.loads((ROOT / "labextension" / "package.json").read_text())
    assert "version" not in package, "building takes it from nbdist/version.py"


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
    missing = []
    for link in LINK.findall(_prose(page)):
        name, _, heading = link.partition("#")
        if "://" in link:
            continue
        target = page.parent / name if name else page
        if not target.exists() or (heading and heading not in _headings(target)):
            missing.append(link)
    assert missing == []


def _prose(page: Path) -> str:
    """Return a page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


@functools.cache
def _headings(page: Path) -> set[str]:
    """Return what stands behind `#` in a link to a heading, made as GitHub and MyST make it."""
    titles = HEADING.findall(_prose(page))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_readme_is_short_and_leads_to_every_guide() -> None:
    readme = (ROOT / "README.md").read_text()
    assert len(readme.splitlines()) <= README_LINES
    guides = {f"docs/guides/{guide.name}" for guide in GUIDES.glob("*.md")}
    assert guides - set(LINK.findall(readme)) == set()


def _flags() -> dict[str, str]:
    """Return the flags of `%%distributed` that a person may give, with what their help says."""
    parser: argparse.ArgumentParser = DistributedMagics.distributed.parser
    return {
        action.option_strings[-1]: action.help
        for action in parser._actions
        if action.option_strings and action.help and action.help != argparse.SUPPRESS
    }


def test_the_guides_explain_every_flag_command_and_setting() -> None:
    """The reference is made from the code; these tables are written by hand, and say more."""
    cells, commands, settings = (
        re.findall(r"^\| (.+?) \|", (GUIDES / f"{name}.md").read_text(), flags=re.MULTILINE)
        for name in ("cells", "dist", "settings")
    )
    flags = _flags().keys() - {"-h", "--help"}
    assert len(flags) > 1
    assert {flag for flag in flags if not re.search(rf"`{flag}\b", "\n".join(cells))} == set()
    named = set(re.findall(r"`(?:%dist )?(\w+)", "\n".join(commands)))
    assert COMMANDS.keys() - named == set()
    known = {f"NBDIST_{item.name.upper()}" for item in fields(Settings)}
    assert known - set(re.findall(r"NBDIST_\w+", "\n".join(settings))) == set()


def test_the_reference_that_is_made_from_the_code_lacks_nothing() -> None:
    made: Any = importlib.import_module("docs.made_from_code")  # no package: Sphinx reads it there
    flags, commands, settings, face = made.flags(), made.commands(), made.settings(), made.face()
    assert {flag for flag in _flags() if f"`{flag}" not in flags} == set()
    assert {name for name in COMMANDS if f"## `%dist {name}`" not in commands} == set()
    known = {f"NBDIST_{item.name.upper()}" for item in fields(Settings)}
    assert {name for name in known if f"`{name}`\n: " not in settings} == set()
    assert set(nbdist.__all__) - set(re.findall(r":: nbdist\.(\w+)", face)) == {
        "__version__",
        "load_ipython_extension",
    }


def test_the_guides_name_no_flag_command_or_setting_that_is_unknown() -> None:
    """A renamed one would else live on in the documents."""
    pages = "\n".join(page.read_text() for page in [ROOT / "README.md", *GUIDES.glob("*.md")])
    assert set(re.findall(r"%dist ([a-z]+)\b", pages)) - COMMANDS.keys() == set()
    table = (GUIDES / "cells.md").read_text()
    given = set(re.findall(r"(?<=[|,] `)(-[\w-]+)", table))
    assert given - _flags().keys() - {"--"} == set()
    lines = re.findall(r"%%distributed (.*?)(?:$|`|(?<= )-- )", pages, flags=re.MULTILINE)
    used = set(re.findall(r"(?:^| )(-[\w-]+)", "\n".join(re.sub("'.*?'", "", x) for x in lines)))
    assert used - _flags().keys() - {"-h", "--"} == set()
    sources = "\n".join(source.read_text() for source in (ROOT / "nbdist").rglob("*.py"))
    settings = set(re.findall(r"NBDIST_(\w+)", pages))
    assert {
        name for name in settings if not re.search(rf"{name}\b", sources, re.IGNORECASE)
    } == set()


def test_code_in_the_guides_is_python_and_uses_names_that_are_there() -> None:
    pages = "\n".join(page.read_text() for page in [ROOT / "README.md", *GUIDES.glob("*.md")])
    blocks = re.findall(r"^```python\n(.*?)^```", pages, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) > 1
    for block in blocks:
        ast.parse(re.sub(r"^%.*$", "", block, flags=re.MULTILINE))
    lazy = ("loops", "quantization")  # what they name is not imported: it needs other libraries
    public = {*nbdist.__all__, *lazy, "evaluation", "install"}
    assert set(re.findall(r"\bnbdist\.(\w+)[(`.]", pages)) - public == set()
    for name in lazy:
        module = importlib.import_module(f"nbdist.{name}")
        used = set(re.findall(rf"\bnbdist\.{name}\.(\w+)", pages))
        assert used
        assert used - set(module.__all__) == set()


def test_the_guides_tell_the_defaults_of_settings() -> None:
    rows = dict(
        re.findall(
            r"^\| `NBDIST_(\w+)` \|.*\| ([\d.]+) \|$",
            (GUIDES / "settings.md").read_text(),
            flags=re.MULTILINE,
        )
    )
    told = {name.lower(): float(value) for name, value in rows.items()}
    assert told == {
        item.name: item.default for item in fields(Settings) if isinstance(item.default, float)
    }


def test_files_that_contributing_names_are_there() -> None:
    text = _prose(ROOT / "CONTRIBUTING.md")
    names = re.findall(r"`([\w.*-]*(?:/[\w.*-]*)+)`|`(\w+\.(?:py|md|txt|toml))`", text)
    named = {one or other for one, other in names} - MADE_LATER
    folders = (ROOT, ROOT / "nbdist", ROOT / "tests" / "browser")
    missing = {
        name for name in named if not any(list(folder.glob(name.strip("/"))) for folder in folders)
    }
    assert missing == set()


@pytest.mark.parametrize("page", ARCHITECTURE, ids=lambda page: page.stem)
def test_modules_that_the_architecture_names_are_there(page: Path) -> None:
    named = set(re.findall(r"`([a-z_/]+(?:\.py|/))`", page.read_text()))
    assert {name for name in named if not any((r / name).exists() for r in ROOTS)} == set()


def test_the_table_of_rooms_is_that_of_the_code() -> None:
    page = rooms.PAGE.read_text()
    assert rooms.BLOCK.search(page)
    assert rooms.with_table(page) == page, "run: python tools/rooms.py"


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
