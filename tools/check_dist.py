"""Check an sdist and a wheel before they are published: their files, and their installation.

`make dist` runs this on the archives that it has built. Links of README are checked as PyPI will
show them. Both archives are installed into a clean environment without Node.js, and run cells.
"""

from __future__ import annotations

import argparse
import email
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from email.message import Message

ROOT = Path(__file__).parent.parent
PAGE = ("nbdist/labextension/", "nbdist/widgets/static/")
LINK = re.compile(r"""(?:\]\(|\b(?:src|href)=["'])([^)\s"']+)""")
# What the wheel installs for Jupyter besides the package: the place, and the source in a checkout.
SHARED = {
    "share/jupyter/labextensions/nbdist/": "nbdist/labextension/",
    "share/jupyter/labextensions/nbdist/install.json": "labextension/install.json",
    "etc/jupyter/jupyter_server_config.d/nbdist.json": "labextension/server-config.json",
}
LOOK = """
import json, sys
from pathlib import Path
from jupyter_core.paths import jupyter_config_path, jupyter_path
import nbdist

def ours(folders, name):
    found = [Path(folder) / name for folder in folders if folder.startswith(sys.prefix)]
    assert any(path.exists() for path in found), f"{name} is in none of {found}"
    return next(path for path in found if path.exists())

assert nbdist.__file__.startswith(sys.prefix), nbdist.__file__
ours(jupyter_config_path(), "jupyter_server_config.d/nbdist.json")
extension = ours(jupyter_path("labextensions"), "nbdist/package.json")
assert (extension.parent / "install.json").exists()
told = json.loads(extension.read_text())
assert told["version"] == nbdist.__version__, f"the page is of {told['version']}: make env"
assert (extension.parent / told["jupyterlab"]["_build"]["load"]).exists()
"""
CELLS = """
import importlib.util
assert importlib.util.find_spec("torch") is None
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "nbdist")
result = shell.run_cell("%%distributed -np 2 --backend ddp\\nprint(rank)")
error = result.error_before_exec or result.error_in_exec
print("error:", type(error).__name__, error)
print("NOW WITHOUT A GROUP")
shell.run_cell("%%distributed --backend none\\nprint(f'rank {rank} of {world_size}')")
"""


def say(line: str) -> None:
    """Print a line at once, as the steps take long."""
    print(line, flush=True)


def git(*arguments: str) -> list[str]:
    """Run a git command in the checkout; return the lines that it prints."""
    ran = subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True)
    return ran.stdout.splitlines()


def in_checkout() -> set[str]:
    """Return the files of the project, including those that are not committed yet."""
    listed = git("ls-files", "--cached", "--others", "--exclude-standard")
    return {name for name in listed if (ROOT / name).exists()}


def in_sdist(path: Path) -> set[str]:
    """Return the files of an sdist, by their names in a checkout."""
    with tarfile.open(path) as archive:
        return {file.name.partition("/")[2] for file in archive.getmembers() if file.isfile()}


def in_wheel(path: Path) -> set[str]:
    """Return the files of a wheel without its metadata, by their names in a checkout."""
    names = set()
    for name in zipfile.ZipFile(path).namelist():
        top, _, rest = name.partition("/")
        if top.endswith(".data"):
            target = rest.removeprefix("data/")
            start = max(
                (start for start in SHARED if target.startswith(start)), default="", key=len
            )
            names.add(SHARED.get(start, "") + target.removeprefix(start))
        elif not top.endswith(".dist-info"):
            names.add(name)
    return names


def wrong_files(sdist: set[str], wheel: set[str], checkout: set[str]) -> Iterator[str]:
    """Describe each file that should not be there, and each file that is missing."""
    page = {name for name in sdist if name.startswith(PAGE)}
    # Only files with these endings are served to the page; package.json.orig is not.
    served = {name for name in page if Path(name).suffix in {".css", ".js", ".json"}}
    for name in sorted(sdist - checkout - served - {"PKG-INFO"}):
        yield f"the sdist has {name}, which is no file of the project"
    installed = {name for name in checkout if name.startswith("nbdist/")} | served
    installed |= {name for name in SHARED.values() if not name.endswith("/")}
    for kind, names in (("sdist", sdist), ("wheel", wheel)):
        for name in sorted(installed - names):
            yield f"the {kind} lacks {name}"
        for folder in PAGE:
            if not any(name.startswith(folder) for name in names):
                yield f"the {kind} has nothing in {folder}"
    for name in sorted(wheel - installed):
        yield f"the wheel has {name}, which is not to be installed"


def wrong_links(metadata: Message, checkout: set[str]) -> Iterator[str]:
    """Describe each link and picture of README that will be broken on PyPI."""
    urls = dict(url.split(", ", 1) for url in metadata.get_all("Project-URL", []))
    blob = re.compile(re.escape(urls["Repository"]) + r"/(?:blob|raw)/([^/]+)/([^#]+)")
    tag = f"v{metadata['Version']}"
    for link in LINK.findall(str(metadata.get_payload())):
        if "://" not in link and not link.startswith("#"):
            yield f"README's {link} is relative: PyPI cannot find it"
        elif link.startswith(urls["Repository"] + "/"):
            found = blob.fullmatch(link.partition("#")[0])
            if not found or found[1] != tag or found[2] not in checkout:
                yield f"README's {link} is no file of the project at its tag {tag}"


def metadata_of(wheel: Path) -> Message:
    """Return the metadata of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_string(archive.read(name).decode())


class Clean:
    """A new environment where there is no Node.js, no torch and no checkout."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder / "venv", with_pip=False)
        self.folder = folder
        self.programs = folder / "venv" / "bin"
        self.env = os.environ | {
            "PATH": str(self.programs),
            "NBDIST_HOME": str(folder / "home"),
            "IPYTHONDIR": str(folder / "ipython"),
        }
        self.env.pop("PYTHONPATH", None)

    def python(self, *arguments: str | Path) -> str:
        """Run the environment's Python; return its output, or raise an error with it."""
        return self._run(self.programs / "python", *arguments)

    def install(self, path: Path, *flags: str) -> None:
        """Install a wheel or an sdist with uv, which takes a third of pip's time."""
        uv = (sys.executable, "-m", "uv", "pip", "install", "-q", *flags)
        self._run(*uv, "--python", self.programs / "python", path)

    def _run(self, *command: str | Path) -> str:
        ran = subprocess.run(
            command,
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if ran.returncode:
            raise RuntimeError(ran.stdout)
        return ran.stdout


def try_them(sdist: Path, wheel: Path, clean: Clean) -> Iterator[str]:
    """Install both where there is neither Node.js nor torch; describe what does not work."""
    try:
        say(f"Installing {wheel.name} and what it needs, without Node.js")
        clean.install(wheel)
        clean.python("-c", LOOK)
        say(f"Installing {sdist.name} without Node.js")
        clean.install(sdist, "--reinstall", "--no-deps")
        clean.python("-c", LOOK)
        say("Running cells there")
        said = clean.python("-c", CELLS)
    except RuntimeError as failed:
        yield str(failed)
        return
    mistake, _, worked = said.partition("NOW WITHOUT A GROUP")
    if "pip install" not in mistake or "torch" not in mistake:
        yield f"without torch, a cell that needs it does not say so:\n{said}"
    if "rank 0 of 2" not in worked:
        yield f"a cell does not run:\n{said}"


def before_publishing(version: str) -> Iterator[str]:
    """Describe what is left to do before the archives may be uploaded."""
    if git("status", "--porcelain"):
        yield "commit what has changed, and build again"
    if f"## {version} (unreleased)" in (ROOT / "CHANGELOG.md").read_text():
        yield f"put the date of {version} into CHANGELOG.md"


def main() -> int:
    """Check the only sdist and the only wheel in a folder; return 1 if anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the sdist and the wheel are")
    folder = parser.parse_args().folder
    (sdist,), (wheel,) = folder.resolve().glob("*.tar.gz"), folder.resolve().glob("*.whl")

    metadata, checkout = metadata_of(wheel), in_checkout()
    faults = list(wrong_files(in_sdist(sdist), in_wheel(wheel), checkout))
    faults += wrong_links(metadata, checkout)
    if not faults:
        with tempfile.TemporaryDirectory() as scratch:
            faults += try_them(sdist, wheel, Clean(Path(scratch)))
    if faults:
        say("\n".join(["These must not be published:", *faults]))
        return 1
    say(f"Built and checked, {metadata['Name']} {metadata['Version']}:")
    for path in (sdist, wheel):
        say(f"  {folder / path.name} ({path.stat().st_size / 1e6:.1f} MB)")
    todo = [f"Before it is published: {what}." for what in before_publishing(metadata["Version"])]
    upload = f"{os.path.relpath(sys.executable)} -m twine upload {folder}/*"
    say("\n".join(todo or [f"Ready to publish: {upload}"]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
