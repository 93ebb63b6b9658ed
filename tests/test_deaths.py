"""A rank that dies: named with its cause and last words, replaced alone, taken in again."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import uuid
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from nbdist.machine import operating_system
from tests.helpers.faults import MODELS, ended_in_time, fails, shown, trains_on
from tests.helpers.notebook import on_ranks, preload_training
from tests.helpers.waiting import allowed, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.helpers.kernel import Kernel

pytestmark = pytest.mark.repeats

LAST_WORDS = "import os, time; print(f'last words at={time.monotonic():.3f}', flush=True)"
DEATHS = {
    "SIGKILL": ("os.kill(os.getpid(), 9)", "was killed by SIGKILL"),
    "os._exit": ("os._exit(3)", "exited with code 3"),
    "segfault": ("import ctypes; ctypes.string_at(0)", "was killed by SIGSEGV"),
    "abort": ("os.abort()", "was killed by SIGABRT"),
}
WORKERS = """
    from torch.utils.data import DataLoader
    loader = iter(DataLoader(list(range(1000)), num_workers=2))
    next(loader)
    print(*[worker.pid for worker in loader._workers])
"""
GIGABYTE = 1 << 30
SPARES = 16
CGROUPS = Path("/sys/fs/cgroup")


@pytest.fixture(scope="module")
def two_ranks(shared_kernel: Kernel) -> Kernel:
    """Return a kernel with two ranks."""
    preload_training(shared_kernel)
    on_ranks(shared_kernel, "pass", "-np 2")
    return shared_kernel


@pytest.fixture
def cluster(two_ranks: Kernel) -> Kernel:
    """Return it without names of earlier tests on its ranks."""
    on_ranks(two_ranks, "%reset -f")
    return two_ranks


@pytest.mark.parametrize("workers", [0, 2], ids=["alone", "with workers"])
@pytest.mark.parametrize("death", DEATHS)
def test_a_dead_rank_is_named_and_the_kept_model_takes_its_successor_in(
    cluster: Kernel, death: str, workers: int
) -> None:
    kind = {"SIGKILL": "ddp", "os._exit": "subgroup"}.get(death, "plain")
    on_ranks(cluster, MODELS[kind] + "\nfirst = step()")
    pids = on_ranks(cluster, WORKERS).stdout.split() if workers else []
    kill, told = DEATHS[death]
    failed = fails(cluster, f"{LAST_WORDS}\nif rank == 1: {kill}\nwhile True: step()")
    ended_in_time(failed)
    text = shown(failed)
    assert f"Rank 1 {told}" in failed.error
    assert "Its last output:\n    last words" in text
    assert re.search(r"Rank 0 (lost the connection|was waiting in|was stopped)", text)
    assert "Traceback" not in failed.text
    assert "`%dist restart 1 --like 0`" in text
    restarted = cluster.run("%dist restart 1 --like 0")
    lacking = "missing: loader (" if workers else "nothing is missing."
    assert f"Rank 1 restarted, {lacking}" in restarted.stdout
    trains_on(cluster, failed)
    if pids:
        assert all(psutil.pid_exists(int(pid)) for pid in pids), "rank 0's workers live on"
        on_ranks(cluster, "del loader", check=False)


def test_the_next_cell_replaces_it_and_lists_what_it_lacks(cluster: Kernel) -> None:
    on_ranks(cluster, "kept = rank")
    ended = fails(cluster, f"{LAST_WORDS}\nif rank == 1: os._exit(1)")
    ended_in_time(ended)
    go_on = """
        import torch, torch.distributed as dist
        total = torch.ones(1)
        dist.all_reduce(total)
        print("kept" in globals(), int(total))
    """
    cell = on_ranks(cluster, go_on)
    assert "rank 1 exited with code 1; it is being restarted" in cell.text
    assert re.search(r"missing: .*\bkept\b", cell.text)
    assert cell.stdout == "True 2\n"


def test_functions_copied_to_a_new_rank_see_its_own_names(cluster: Kernel) -> None:
    on_ranks(cluster, "x = 1\ndef f(): return x\nclass A:\n    def g(self): return x\na = A()")
    assert "nothing is missing" in cluster.run("%dist restart 1 --like 0").stdout
    on_ranks(cluster, "x = 5\nassert (f(), a.g(), A().g(), type(a)) == (5, 5, 5, A)")


def test_shards_that_died_are_said_to_be_lost(cluster: Kernel) -> None:
    on_ranks(cluster, MODELS["fsdp"] + "\nfirst = step()\nother = [1]")
    failed = fails(cluster, f"{LAST_WORDS}\nif rank == 1: os.kill(os.getpid(), 9)\nstep()")
    ended_in_time(failed)
    told = cluster.run("%dist restart 1 --like 0").stdout
    assert re.search(r"missing: .*\bmodel\b", told)
    assert re.search(r"^  model: .*shards.* of the replaced rank are lost", told, re.MULTILINE)
    assert on_ranks(cluster, "print(other)").stdout == "[1]\n"
    on_ranks(cluster, MODELS["fsdp"])
    trains_on(cluster, failed)


@contextmanager
def memory_limit(limit: int) -> Iterator[Path]:
    """Make a control group in which processes may take so much memory; skip where we may not."""
    name = f"nbdist-test-{uuid.uuid4().hex[:8]}"
    second = "memory" in _read(CGROUPS / "cgroup.subtree_control").split()
    group = CGROUPS / name if second else CGROUPS / "memory" / name
    file = "memory.max" if second else "memory.limit_in_bytes"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"a memory limit needs a control group, and none can be made: {error}")
    try:
        (group / file).write_text(str(limit))
        yield group
    except OSError as error:
        pytest.skip(f"the control group cannot be used: {error}")
    finally:
        until(lambda: _removed(group))


def _removed(group: Path) -> bool:
    with suppress(OSError):  # a process is still ending in it
        group.rmdir()
    return not group.exists()


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _move(pid: int, group: Path) -> None:
    try:
        (group / "cgroup.procs").write_text(str(pid))
    except OSError as error:
        pytest.skip(f"a process cannot be moved into the control group: {error}")


def _group_of(pid: int) -> Path:
    """Return the control group that counts the memory of a process."""
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    named = {names: path for _, names, path in (line.split(":", 2) for line in lines)}
    if "memory" in named:
        return CGROUPS / "memory" / named["memory"].lstrip("/")
    return CGROUPS / named[""].lstrip("/")


@contextmanager
def _moved(kernel: Kernel, group: Path) -> Iterator[None]:
    """Have a kernel, and all it has started, in a control group; put them back in the end."""
    home, processes = _group_of(kernel.pid), psutil.Process(kernel.pid).children(recursive=True)
    with _spares(group):
        try:
            for pid in (kernel.pid, *(process.pid for process in processes)):
                _move(pid, group)
            yield
        finally:
            until(lambda: not _put_back(group, home))  # some may have started others meanwhile


@contextmanager
def _spares(group: Path) -> Iterator[None]:
    """Have processes in a control group that Linux kills sooner than what a test looks at.

    Until a killed process has given its memory back, which may take 100 ms and more, Linux kills
    one more process whenever any in the group asks for memory.
    """
    with ExitStack() as ends:
        for _ in range(SPARES):
            spare = ends.enter_context(subprocess.Popen(["sleep", "infinity"]))
            ends.callback(spare.kill)
            _move(spare.pid, group)
            Path(f"/proc/{spare.pid}/oom_score_adj").write_text("900")
        yield


def _put_back(group: Path, home: Path) -> list[str]:
    """Move all processes of a control group into another one; return those that were there."""
    pids = _read(group / "cgroup.procs").split()
    for pid in pids:
        with suppress(ProcessLookupError):  # it has ended
            (home / "cgroup.procs").write_text(pid)
    return pids


def test_a_rank_killed_for_lack_of_memory_is_named_so(cluster: Kernel) -> None:
    with memory_limit(GIGABYTE) as group, _moved(cluster, group):
        hungry = f"if rank == 1: much = bytearray({4 * GIGABYTE})\ntime.sleep(60)"
        failed = fails(cluster, f"{LAST_WORDS}\n{hungry}")
        how = "killed by SIGKILL, most likely by the operating system for lack of memory"
        assert f"Rank 1 was {how}" in failed.error
        assert "warm process" not in failed.error
        ended_in_time(failed)
        assert on_ranks(cluster, "print('goes on')").stdout == "goes on\n"
        failed = fails(cluster, f"{LAST_WORDS}\nif rank == 1: os.kill(os.getpid(), 9)")
        assert "Rank 1 was killed by SIGKILL" in failed.error, "that other one died before it began"


def test_ranks_are_killed_for_lack_of_memory_before_what_keeps_them(cluster: Kernel) -> None:
    score = "print(open('/proc/self/oom_score_adj').read())"
    kernel = int(cluster.run(score).stdout)
    script = int(on_ranks(cluster, score, "--launcher torchrun").stdout)
    parent = "import os; print(os.getppid())"
    rank, warm = on_ranks(cluster, f"{score}; {parent}", "--launcher engines").stdout.split()
    assert kernel < int(Path(f"/proc/{warm}/oom_score_adj").read_text()) < min(int(rank), script)


def test_another_process_killed_for_lack_of_memory_is_not_to_blame(cluster: Kernel) -> None:
    if next(path for path in operating_system._oom_counters() if path.exists()) == Path(
        "/proc/vmstat"
    ):
        pytest.skip("no control group counts here what is killed for lack of memory")
    on_ranks(cluster, "pass")
    hungry = "input(); much = bytearray(1 << 30)"
    with (
        memory_limit(GIGABYTE // 10) as group,
        subprocess.Popen([sys.executable, "-c", hungry], stdin=subprocess.PIPE) as other,
    ):
        _move(other.pid, group)
        other.communicate(b"\n", timeout=allowed(60))
    assert other.returncode == -signal.SIGKILL
    failed = fails(cluster, "import os\nif rank == 1: os.kill(os.getpid(), 9)")
    assert "Rank 1 was killed by SIGKILL" in failed.error


def test_where_no_control_group_counts_the_whole_hosts_count_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operating_system, "CGROUPS", tmp_path)
    found = re.search(r"^oom_kill (\d+)$", _read(Path("/proc/vmstat")), re.MULTILINE)
    assert found is None or operating_system.oom_kills() in (int(found[1]), int(found[1]) + 1)


def test_a_new_rank_finds_the_modules_of_those_before(cluster: Kernel) -> None:
    (cluster.home / "beside.py").write_text("class Net:\n    size = 3\n")
    cluster.run("from beside import Net")
    on_ranks(cluster, "net = Net()")
    fails(cluster, "import os\nif rank == 1: os._exit(1)")
    assert "No module" not in cluster.run("%dist restart 1 --like 0").stdout
    cell = on_ranks(cluster, "print(net.size)", "--output all")
    assert sorted(cell.stdout.splitlines()) == ["[0] 3", "[1] 3"]
    cluster.run("%dist restart")
    assert cluster.run("net = Net()\n%dist push net").stdout == "Brought to 2 ranks: net (Net).\n"


def test_no_rank_is_left(cluster: Kernel) -> None:
    failed = fails(cluster, "import os\nos._exit(7)")
    told = re.findall(r"(Ranks? [-\d]+) exited with code 7(.*)", failed.error)
    if len(told) == 2:  # they differ: where it was is known of one of them only
        assert {who for who, _ in told} == {"Rank 0", "Rank 1"}  # who was seen to die first, first
        assert told[0][1] != told[1][1]
    else:
        assert [who for who, _ in told] == ["Ranks 0-1"], failed.error
    gone = "All ranks will be restarted before the next cell, without their variables."
    assert gone in failed.error
    assert "--like" not in failed.error, "nobody is left to copy from"
    cell = on_ranks(cluster, "print(rank)")
    assert cell.stdout == "0\n"
    assert "they are being restarted" in cell.text
    assert "All ranks were restarted; their variables are lost." in cell.text
    assert "--like" not in cell.text


def test_a_warm_process_killed_for_lack_of_memory_is_named_so(cluster: Kernel) -> None:
    warm = int(on_ranks(cluster, "import os; print(os.getppid())").stdout)
    hungry = f"""
        import time
        if rank == 1:
            open("/proc/self/oom_score_adj", "w").write("0")  # the warm process first
            much = bytearray({4 * GIGABYTE})
        time.sleep(60)
    """
    with memory_limit(GIGABYTE) as group, _moved(cluster, group):
        Path(f"/proc/{warm}/oom_score_adj").write_text("1000")
        failed = fails(cluster, hungry)
        how = "was killed, most likely by the operating system for lack of memory"
        assert (
            f"The cluster's warm process, the parent of its ranks, {how}, and all ranks"
            in failed.error
        )
