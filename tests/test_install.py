"""`python -m nbdist.install horovod`: its checks and its errors; `make env` is the real thing."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from nbdist import install

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.starts_processes


def run(tmp_path: Path, *flags: str, **environ: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "tmp").mkdir()
    return subprocess.run(
        [sys.executable, "-m", "nbdist.install", "horovod", "--wheels", tmp_path / "w", *flags],
        capture_output=True, text=True, check=False,
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp"), **environ},
    )  # fmt: skip


def test_what_is_missing_is_named_before_anything_is_done(tmp_path: Path) -> None:
    done = run(tmp_path, "--mpi", PATH=str(tmp_path))
    assert done.returncode == 1
    for what in ("a C++ compiler", "cmake", "make", "mpicxx"):
        assert what in done.stderr
    assert "apt-get install -y g++ cmake make" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "w").exists()


def test_frameworks_must_be_there(tmp_path: Path) -> None:
    done = run(tmp_path, "--frameworks", "torch,mxnet")
    assert done.returncode == 1
    assert "--frameworks mxnet: possible are torch, tensorflow" in done.stderr


@pytest.mark.horovod  # then all that the build needs is there
def test_a_build_that_fails_shows_the_end_of_the_log(tmp_path: Path) -> None:
    done = run(tmp_path, PIP_NO_INDEX="1")
    assert done.returncode == 1
    assert "could not be built" in done.stderr
    assert "No matching distribution found for horovod" in done.stderr
    assert not list((tmp_path / "tmp").iterdir())
    assert not (tmp_path / "w").exists()


def test_the_compiler_is_asked_for_cpp17(tmp_path: Path) -> None:
    wrapper = tmp_path / "c++"
    wrapper.write_text(f'{install.COMPILER}printf "%s\\n" "$@"\n')
    wrapper.chmod(0o700)
    words = ["-std=gnu++14", "-I", "with space", "-std=c++14", "-std=c++11", ""]
    done = subprocess.run([wrapper, *words], capture_output=True, text=True, check=True)
    expected = ["-std=gnu++17", "-I", "with space", "-std=c++17", "-std=c++11", ""]
    assert done.stdout.split("\n")[:-1] == expected


def test_wheels_are_kept_by_what_they_were_built_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(install, "version_of", lambda _: "1.0")
    plain = install.wheel_folder(tmp_path, ["torch"], mpi=False)
    assert plain == install.wheel_folder(tmp_path, ["torch"], mpi=False)
    monkeypatch.setenv("HOROVOD_GPU_OPERATIONS", "NCCL")
    assert install.wheel_folder(tmp_path, ["torch"], mpi=False) != plain
    monkeypatch.setattr(install, "version_of", lambda _: "2.0")
    monkeypatch.delenv("HOROVOD_GPU_OPERATIONS")
    assert install.wheel_folder(tmp_path, ["torch"], mpi=False) != plain
    assert install.wheel_folder(tmp_path, ["torch"], mpi=True) != plain
