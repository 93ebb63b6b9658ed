"""Cleared is what clusters left: folders nobody owns, logs by age and size; nothing in use."""

from __future__ import annotations

import errno
import os
import time
from typing import TYPE_CHECKING

import msgspec
import pytest

from nbdist import leftovers
from nbdist.errors import UsageError
from nbdist.hub.logs import Logs
from nbdist.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Return a folder with logs of 1, 10 and 40 days, 1 MB each, of clusters that have ended."""
    gone = leftovers.Owner(pid=1, created=1e9)
    for days in (1, 10, 40):
        folder = tmp_path / str(days)
        folder.mkdir()
        (folder / "rank0.log").write_bytes(b"x" * 1_000_000)
        (folder / leftovers.OWNER).write_bytes(msgspec.json.encode(gone))
        at = time.time() - days * 86400
        for path in (*folder.iterdir(), folder):
            os.utime(path, (at, at))
    return tmp_path


def kept(logs: Path) -> set[str]:
    return {path.name for path in logs.iterdir()}


def test_old_logs_go(logs: Path) -> None:
    leftovers.clear_logs(logs, days=30, gigabytes=1)
    assert kept(logs) == {"1", "10"}


def test_the_oldest_go_when_all_take_too_much(logs: Path) -> None:
    leftovers.clear_logs(logs, days=365, gigabytes=0.0015)
    assert kept(logs) == {"1"}


def test_logs_in_use_stay(logs: Path) -> None:
    leftovers.sign(logs / "40")
    leftovers.clear_logs(logs, days=0, gigabytes=0)
    assert kept(logs) == {"40"}


def test_logs_without_a_signature_go_if_they_are_ours(logs: Path) -> None:
    for name in ("20260101-120000-abcdef", "tensorboard"):
        (logs / name).mkdir()
        os.utime(logs / name, (0, 0))
    leftovers.clear_logs(logs, days=30, gigabytes=1)
    assert kept(logs) == {"1", "10", "tensorboard"}


def test_a_signature_is_never_seen_in_part(tmp_path: Path) -> None:
    leftovers.sign(tmp_path)
    inode = (tmp_path / leftovers.OWNER).stat().st_ino
    leftovers.sign(tmp_path)
    assert (tmp_path / leftovers.OWNER).stat().st_ino != inode
    leftovers.disown(tmp_path)
    assert not leftovers.owner(tmp_path).alive
    assert [path.name for path in tmp_path.iterdir()] == [leftovers.OWNER]


def test_a_disk_that_is_full_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(leftovers, "sign", full)
    with pytest.raises(UsageError, match=r"No space left.*NBDIST_HOME"):
        Logs(Settings(home=tmp_path))
    assert not list((tmp_path / "logs").iterdir())


def test_a_folder_without_a_signature_goes_when_it_is_old(tmp_path: Path) -> None:
    for name, age in (("being-made", 0.0), ("died-early", 3600.0)):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    (tmp_path / "unreadable").mkdir()
    (tmp_path / "unreadable" / leftovers.OWNER).write_bytes(b"of a newer version")
    os.utime(tmp_path / "unreadable", (0, 0))
    leftovers.clear(tmp_path)
    assert kept(tmp_path) == {"being-made", "unreadable"}
