"""Cleared is what clusters left: folders nobody owns, logs by age and size; nothing in use."""

from __future__ import annotations

import errno
import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from nbdist.detached import job_folders as keeping
from nbdist.errors import UsageError
from nbdist.hub.link.log_folders import Logs
from nbdist.hub.running.script_ends import Ends
from nbdist.job.job import Job
from nbdist.machine import leftovers, process_lives
from nbdist.settings import Settings
from nbdist.wire.messages import Hello
from tests.helpers.states import NOBODY

if TYPE_CHECKING:
    from tests.conftest import KernelFactory

pytestmark = pytest.mark.repeats

INIT = 'export JPY_PARENT_PID=0; "$@"; exit $?'
"""The first process of a namespace, which is no sign to a kernel that its parent is gone."""
FOLDERS = "import nbdist; print(nbdist.cluster().hub.host.folder)"


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Return a folder with logs of 1, 10 and 40 days, 1 MB each, of clusters that have ended."""
    gone = leftovers.Owner(pid=1, created=1e9, place=process_lives.here())
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
    assert not leftovers.owned(tmp_path, 1.0)
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


def elsewhere(**other: str) -> process_lives.Place:
    """Return a place that is not this one."""
    ours = msgspec.structs.asdict(process_lives.here())
    return process_lives.Place(**ours | other)


@pytest.mark.parametrize(
    ("other", "kept_for"),
    [
        ({"pids": "pid:[1]"}, process_lives.FORGOTTEN_SECONDS),  # a container of this machine
        ({"host": "far", "machine": "1", "boot": "2"}, process_lives.FORGOTTEN_SECONDS),
        (
            {"machine": "1", "boot": "2"},
            process_lives.FORGOTTEN_SECONDS,
        ),  # a container called alike
        ({"host": "", "machine": "", "boot": "", "pids": ""}, process_lives.FORGOTTEN_SECONDS),
        (
            {"boot": "2"},
            process_lives.SILENT_SECONDS,
        ),  # this machine, or one copied from the same image
    ],
)
def test_what_a_process_owns_that_cannot_be_seen_goes_when_that_has_long_been_silent(
    tmp_path: Path, other: dict[str, str], kept_for: float
) -> None:
    # Its pid is nobody's here, or somebody else's: that says nothing.
    owner = leftovers.Owner(NOBODY, 1.0, place=elsewhere(**other))
    names = ("20260101-120000-abcdef", "20260101-120000-fedcba")
    for name, age in zip(names, (kept_for - 30, kept_for + 30), strict=True):
        for folder in (tmp_path / "clusters" / name, tmp_path / "logs" / name):
            folder.mkdir(parents=True)
            (folder / leftovers.OWNER).write_bytes(msgspec.json.encode(owner))
            os.utime(folder / leftovers.OWNER, (time.time() - age,) * 2)
    leftovers.clear(tmp_path / "clusters")
    leftovers.clear_logs(tmp_path / "logs", days=0, gigabytes=0)
    assert kept(tmp_path / "clusters") == kept(tmp_path / "logs") == {names[0]}


def test_a_job_whose_keeper_cannot_be_seen_is_cleared_early_only_by_name(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    folder = tmp_path / "logs" / "20260101-120000-abcdef"
    folder.mkdir(parents=True)
    job = keeping.Kept(
        id="abcdef", code="", number=1, lines=0, np=2, launcher="torchrun", backend="ddp",
        output="0", returns=[], state="running",
    )  # fmt: skip
    keeping.write(folder, keeping.STATE, job)
    # It calls its host as this one is called: containers made from one image do.
    owner = leftovers.Owner(NOBODY, 1.0, place=elsewhere(pids="pid:[1]"))
    (folder / leftovers.OWNER).write_bytes(msgspec.json.encode(owner))
    assert not keeping.lost(folder, job)
    os.utime(folder / leftovers.OWNER, (time.time() - 2 * process_lives.SILENT_SECONDS,) * 2)
    assert keeping.lost(folder, job)
    assert keeping.clean(settings) == ([], [])
    assert not keeping.may_go(folder)
    assert [each.id for each in keeping.clean(settings, folder)[0]] == ["abcdef"]
    assert not folder.exists()


def test_a_job_that_cannot_be_read_or_is_anothers_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "logs" / "20260101-120000-abcdef"
    folder.mkdir(parents=True)
    (folder / keeping.STATE).write_text('{"version": 99}')
    assert not keeping.may_go(folder)
    found, unreadable = keeping.all_kept(Settings(home=tmp_path))
    assert not found
    assert [each.folder for each in unreadable] == [folder]
    if os.geteuid() == 0:  # who else could give it to another
        os.chown(folder / keeping.STATE, 12345, -1)
        assert keeping.all_kept(Settings(home=tmp_path)) == ({}, [])


def test_a_script_is_not_over_while_ranks_of_a_container_speak(tmp_path: Path) -> None:
    job = Job(id="7", code="", ranks=(0,), folder=tmp_path, number=1)
    for place in (process_lives.here().name, "another"):
        ends = Ends(job, lambda _: [])
        ends.began(0, Hello(0, 0, NOBODY, process_lives.here().host, size=1, place=place))
        assert ends.all_well() == (place == process_lives.here().name)


def test_a_process_touches_what_is_its_own_and_nothing_else(tmp_path: Path) -> None:
    for name in ("mine", "handed-over", "removed", "left"):
        (tmp_path / name).mkdir()
        leftovers.sign(tmp_path / name)
    keeper = leftovers.Owner(NOBODY, 1.0, place=process_lives.here())
    (tmp_path / "handed-over" / leftovers.OWNER).write_bytes(msgspec.json.encode(keeper))
    shutil.rmtree(tmp_path / "removed")
    leftovers.disown(tmp_path / "left")
    signatures = sorted(tmp_path.glob(f"*/{leftovers.OWNER}"))
    for path in signatures:
        os.utime(path, (0, 0))
    leftovers.beat()
    assert [path.parent.name for path in signatures if path.stat().st_mtime] == ["mine"]
    leftovers.disown(tmp_path / "mine")


def test_a_cluster_in_a_container_lives_on_beside_one_that_shares_its_home(
    start_kernel: KernelFactory, without_torch: dict[str, str]
) -> None:
    if os.geteuid() != 0 or not shutil.which("unshare"):
        pytest.skip("needs root and unshare, for another namespace of pids")
    within = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", INIT, "sh"]
    kernels = []
    for where in (within, [], within):
        kernels.append(start_kernel(home="shared", env=without_torch, within=where))
        kernels[-1].run("%load_ext nbdist")
        kernels[-1].run("%%distributed -np 1 --backend none\nx = 7", timeout=120)
    pids = [kernel.run("import os; os.getpid()").text.strip() for kernel in kernels]
    assert pids[0] == pids[2] == "2" != pids[1], "two have pids of their own"
    folders = [Path(kernel.run(FOLDERS).stdout.strip()) for kernel in kernels]
    assert len(set(folders)) == len(kernels)
    assert all((folder / leftovers.OWNER).exists() for folder in folders)
    for kernel in kernels:
        kernel.run("%%distributed\nassert x == 7")
