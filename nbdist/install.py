"""``python -m nbdist.install horovod``: build Horovod for the frameworks of this Python.

Horovod's last release calls the compiler with C++14, and CMake with policies that CMake 4 has
removed. PyTorch since 2.1 and TensorFlow since 2.16 need C++17, so ``pip install horovod`` fails.
Here the compiler is called through a script that sets C++17 instead. The wheel is cached by the
versions it was built for, so that another environment with the same frameworks gets it at once.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs
import psutil

from nbdist.errors import NbdistError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

VERSION = "0.28.1"
REQUIRES = ("cffi", "cloudpickle", "packaging", "psutil", "pyyaml")
"""Horovod's requirements, installed before the build: otherwise setuptools downloads them."""
BUILT_AS = {"torch": "PYTORCH", "tensorflow": "TENSORFLOW"}
"""The name of each framework in Horovod's build."""
DISTRIBUTIONS = {
    "torch": ("torch",),
    "tensorflow": ("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tf-nightly"),
}
COMPILER = """\
#!/bin/sh
# Horovod asks for C++14, what it is built against needs 17.
for word do
    shift
    case $word in -std=gnu++14 | -std=c++14) word=${word%14}17 ;; esac
    set -- "$@" "$word"
done
exec """
GIGABYTES_EACH = 1.5
"""The memory that one compiler process needs."""
STEP = re.compile(r"\[ *(\d+)%\] (?:Building|Linking)")
LAST_LINES = 25
CHECK = """
import importlib, sys
common = importlib.import_module("horovod.common.util")
for name in sys.argv[1:]:
    hvd = importlib.import_module(f"horovod.{name}")
links = {"gloo": hvd.gloo_built(), "mpi": hvd.mpi_built(), "nccl": hvd.nccl_built()}
print(", ".join(name for name, built in links.items() if built))
"""


class BuildError(NbdistError):
    """Horovod could not be built or does not work."""


@dataclass(frozen=True)
class Missing:
    """Something that the build needs, and the Debian package that contains it."""

    what: str
    package: str


# -- what is installed -------------------------------------------------------------------------


def frameworks_here() -> list[str]:
    """Return the installed frameworks for which Horovod can be built."""
    return [name for name in BUILT_AS if importlib.util.find_spec(name)]


def version_of(framework: str) -> str:
    """Return the installed version of a framework."""
    for name in DISTRIBUTIONS[framework]:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    raise UsageError(f"{framework} can be imported, but pip does not know its version")


def compiler() -> str | None:
    """Return the command of the C++ compiler; None without a compiler."""
    named = os.environ.get("CXX")
    if named:
        return named if shutil.which(shlex.split(named)[0]) else None
    return next(
        (found for name in ("c++", "g++", "clang++") if (found := shutil.which(name))), None
    )


def missing(*, mpi: bool = False) -> list[Missing]:
    """Return what is missing on this machine for the build."""
    python = f"python{sysconfig.get_python_version()}-dev"
    header = Path(sysconfig.get_path("include"), "Python.h")
    found = {
        Missing(f"a C++ compiler{_named('CXX')}", "g++"): compiler(),
        Missing("cmake", "cmake"): shutil.which(os.environ.get("HOROVOD_CMAKE", "cmake")),
        Missing("make", "make"): shutil.which("make"),
        Missing(f"Python's headers ({header})", python): header.exists(),
    }
    if mpi:
        found[Missing("MPI (mpicxx)", "libopenmpi-dev")] = shutil.which("mpicxx")
        found[Missing("mpirun", "openmpi-bin")] = shutil.which("mpirun")
    return [each for each, there in found.items() if not there]


def _named(variable: str) -> str:
    value = os.environ.get(variable)
    return f" ({variable}={value})" if value else ""


def check(*, mpi: bool) -> None:
    """Raise `UsageError` that lists everything missing, before anything is done."""
    lacking = missing(mpi=mpi)
    if lacking:
        packages = " ".join(each.package for each in lacking)
        also = "; without root, `pip install cmake` installs cmake" if "cmake" in packages else ""
        raise UsageError(
            f"Horovod cannot be built: {_listed([each.what for each in lacking])} missing.\n"
            f"On Debian or Ubuntu: apt-get install -y {packages}   (as root{also})"
        )
    if importlib.util.find_spec("setuptools") is None:
        raise UsageError(
            "Horovod cannot be built: this Python has no setuptools. To install setuptools: "
            f"{sys.executable} -m pip install setuptools"
        )


def _listed(words: Sequence[str]) -> str:
    verb = "is" if len(words) == 1 else "are"
    return f"{', '.join(words)} {verb}"


# -- building ----------------------------------------------------------------------------------


def build_environ(frameworks: Sequence[str], *, mpi: bool, cxx: str, temp: str) -> dict[str, str]:
    """Return the environment of the build; the user's own ``HOROVOD_...`` variables go first."""
    ours = {
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITH_MPI" if mpi else "HOROVOD_WITHOUT_MPI": "1",
        "CMAKE_POLICY_VERSION_MINIMUM": "3.5",
        "MAKEFLAGS": f"-j{_jobs()}",
    }
    for name, built_as in BUILT_AS.items():
        ours[f"HOROVOD_WITH{'' if name in frameworks else 'OUT'}_{built_as}"] = "1"
    return {**ours, **os.environ, "CXX": cxx, "TMPDIR": temp, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


def _jobs() -> int:
    memory = psutil.virtual_memory().available / 1e9
    cores = len(psutil.Process().cpu_affinity()) if sys.platform == "linux" else os.cpu_count() or 1
    return max(1, min(cores, int(memory / GIGABYTES_EACH)))


def wheel_folder(wheels: Path, frameworks: Sequence[str], *, mpi: bool) -> Path:
    """Return the folder of the wheel for exactly these versions and settings."""
    parts = [f"{name}-{version_of(name)}" for name in frameworks] + ["mpi"] * mpi
    chosen = sorted(item for item in os.environ.items() if item[0].startswith("HOROVOD_"))
    if chosen:
        parts.append(hashlib.sha256(repr(chosen).encode()).hexdigest()[:8])
    tag = f"{sys.implementation.cache_tag}-{sysconfig.get_platform()}"
    return wheels / f"horovod-{VERSION}-{'-'.join(parts)}-{tag}"


def build(frameworks: Sequence[str], folder: Path, *, mpi: bool) -> Path:
    """Build the wheel into a folder; return it.

    Raises
    ------
    BuildError
        If the build fails; the message has the end of pip's log.
    """
    say(f"Building Horovod {VERSION} for {', '.join(frameworks)}: some minutes.")
    with _temp() as temp:
        wrapper = temp / "c++"
        wrapper.write_text(f'{COMPILER}{compiler()} "$@"\n', encoding="utf-8")
        wrapper.chmod(0o700)
        environ = build_environ(frameworks, mpi=mpi, cxx=str(wrapper), temp=str(temp))
        made = temp / "made"
        # Without pip's cache, which does not know for which versions a wheel was built.
        words = ["wheel", "-v", "--no-cache-dir", "--no-build-isolation", "--no-deps",
                 "--no-binary", "horovod", "-w", str(made), f"horovod=={VERSION}"]  # fmt: skip
        with (temp / "log").open("w+", encoding="utf-8", errors="replace") as log:
            code = _run_pip(words, environ, log)
            if code != 0:
                log.seek(0)
                raise BuildError(_failure(log.read()))
        folder.mkdir(parents=True, exist_ok=True)
        (wheel,) = made.glob("horovod-*.whl")
        # Renamed when complete, as another process may build at the same time.
        shutil.copy(wheel, folder / f"{wheel.name}.{os.getpid()}")
        return (folder / f"{wheel.name}.{os.getpid()}").replace(folder / wheel.name)


@contextlib.contextmanager
def _temp() -> Iterator[Path]:
    """Make a temporary folder, which is removed afterwards, also after SIGTERM."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        with tempfile.TemporaryDirectory(prefix="nbdist-horovod-") as name:
            yield Path(name)
    finally:
        signal.signal(signal.SIGTERM, before)


def _run_pip(words: list[str], environ: dict[str, str], log: object) -> int:
    """Run pip with its output in a log, and show the progress of the build."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pip", *words], env=environ, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    shown = -1
    try:
        for line in process.stdout:
            log.write(line)  # type: ignore[attr-defined]
            step = STEP.search(line)
            if step and int(step[1]) > shown:
                shown = _progress(int(step[1]), shown)
        return process.wait()
    finally:
        if process.poll() is None:  # an interrupt: the compilers are in pip's session
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if shown >= 0 and sys.stderr.isatty():
            say("")


def _progress(percent: int, shown: int) -> int:
    """Print the progress of the build; without a terminal, in steps of ten per cent."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r  {percent:3d} % ")
        sys.stderr.flush()
    elif percent // 10 == shown // 10:
        return shown
    else:
        say(f"  {percent} %")
    return percent


def _failure(log: str) -> str:
    lines = log.splitlines()
    errors = [line for line in lines if re.search(r"\berror[: ]|\*\*\*|CMake Error", line)]
    first = f"The first error was:\n  {errors[0].strip()}\n" if errors else ""
    end = "\n  ".join(line[:200] for line in lines[-LAST_LINES:])
    return f"Horovod {VERSION} could not be built.\n{first}pip's output ends with:\n  {end}"


# -- installing --------------------------------------------------------------------------------


def install(frameworks: Sequence[str], *, mpi: bool, wheels: Path) -> str:
    """Install Horovod into this Python; return the links it was built with (gloo, MPI).

    Raises
    ------
    UsageError
        If something is missing; nothing was done.
    BuildError
        If Horovod could not be built, or cannot be imported.
    """
    folder = wheel_folder(wheels, frameworks, mpi=mpi)
    wheel = next(folder.glob("horovod-*.whl"), None)
    if wheel is None:
        check(mpi=mpi)
        _pip("install", "-q", *REQUIRES)
        wheel = build(frameworks, folder, mpi=mpi)
        say(f"The wheel is kept for later installations: {wheel}")
    else:
        say(f"Installing the wheel that was built before: {wheel}")
    _pip("install", "-q", *REQUIRES)
    _pip("install", "-q", "--no-deps", "--no-index", "--force-reinstall", str(wheel))
    return verify(frameworks)


def _pip(*words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", *words, "--disable-pip-version-check"],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise BuildError(f"`pip {' '.join(words)}` failed:\n{done.stdout}")


def verify(frameworks: Sequence[str]) -> str:
    """Import Horovod as a rank does; return the links it was built with."""
    done = subprocess.run(
        [sys.executable, "-c", CHECK, *frameworks], stdin=subprocess.DEVNULL, capture_output=True,
        text=True, check=False, cwd="/",
    )  # fmt: skip
    if done.returncode != 0:
        raise BuildError(
            f"Horovod {VERSION} is installed, but cannot be imported:\n{done.stderr.strip()}"
        )
    return done.stdout.strip()


def say(text: str) -> None:
    """Print a line to stderr."""
    sys.stderr.write(f"{text}\n")


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m nbdist.install", description=main.__doc__)
    parser.description = "Install what pip alone cannot."
    parser.add_argument("package", choices=["horovod"])
    parser.add_argument(
        "--frameworks",
        metavar="torch,tensorflow",
        help="the frameworks to build for (default: all that are installed)",
    )
    parser.add_argument("--mpi", action="store_true", help="build with MPI in addition to gloo")
    parser.add_argument(
        "--wheels", type=Path, default=Path(platformdirs.user_cache_path("nbdist"), "wheels"),
        metavar="FOLDER", help="where built wheels are kept (default: %(default)s)",
    )  # fmt: skip
    args = parser.parse_args(words)
    try:
        frameworks = _chosen(args.frameworks)
        links = install(frameworks, mpi=args.mpi, wheels=args.wheels)
    except NbdistError as err:
        say(str(err))
        return 1
    except KeyboardInterrupt:
        say("Stopped; nothing was installed.")
        return 130
    built = ", ".join(f"{name} {version_of(name)}" for name in frameworks)
    say(
        f"Horovod {VERSION} for {built} is installed in {sys.prefix}; its ranks communicate by "
        f"{links}."
    )
    return 0


def _chosen(text: str | None) -> list[str]:
    here = frameworks_here()
    if text is None:
        if not here:
            raise UsageError("neither torch nor tensorflow is installed in this Python")
        return here
    chosen = [name.strip() for name in text.split(",")]
    for name in chosen:
        if name not in BUILT_AS:
            raise UsageError(f"--frameworks {name}: possible are {', '.join(BUILT_AS)}")
        if name not in here:
            raise UsageError(f"--frameworks {name}: {name} is not installed in this Python")
    return [name for name in BUILT_AS if name in chosen]


if __name__ == "__main__":
    sys.exit(main())
