"""Ranks come to life: forked from the warm process, or fresh where forking is not safe."""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING

import psutil
import pytest

from nbdist.backends.recovery import Recovery
from nbdist.launchers import children
from nbdist.launchers.engines import Host
from nbdist.launchers.supervised import Died, Refused, Started, StartLauncher
from nbdist.rank.spec import RankSpec
from nbdist.wire.channel import Keys

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import KernelFactory

MANY_FILES = """
import os, resource
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 4096), most))
files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
"""
SUM = """%%distributed
import torch, torch.distributed as dist
total = torch.ones(1)
dist.all_reduce(total)
print("sum", int(total))
"""


def test_ranks_that_cannot_be_forked_are_started_fresh(start_kernel: KernelFactory) -> None:
    kernel = start_kernel(env={"NBDIST_NO_FORK": "1"})
    kernel.run("%load_ext nbdist")
    kernel.run("%dist start -np 2", timeout=90)
    assert "sum 2" in kernel.run(SUM).text
    failed = kernel.run("%%distributed\nimport os\nif rank == 1: os._exit(4)", check=False)
    assert "Rank 1 exited with code 4" in failed.seen()
    assert "sum 2" in kernel.run(SUM, timeout=90).seen()
    assert (
        kernel.run(
            "import nbdist, psutil\n"
            "warm = nbdist.cluster().hub.host.warm.pid\n"
            "print({psutil.Process(r.pid).ppid() == warm for r in nbdist.cluster().ranks})"
        ).text.strip()
        == "{True}"
    )


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs Linux")
@pytest.mark.parametrize("env", [{"NBDIST_NO_FORK": "1"}, {}])
def test_a_rank_that_cannot_be_started_is_refused_and_the_others_live(
    start_kernel: KernelFactory, env: dict[str, str]
) -> None:
    kernel = start_kernel(env=env)
    kernel.run(MANY_FILES)  # the warm process begins with a descriptor of a high number
    kernel.run("%load_ext nbdist")
    kernel.run("%%distributed -np 2\nheld = rank", timeout=90)
    kernel.run("%%distributed\nimport os\nif rank == 1: os._exit(4)", check=False)
    kernel.run("import nbdist; warm = nbdist.cluster().hub.host.warm")
    warm = int(kernel.run("print(warm.pid)").stdout)
    before = resource.prlimit(warm, resource.RLIMIT_NOFILE)
    resource.prlimit(warm, resource.RLIMIT_NOFILE, (3, before[1]))
    failed = kernel.run("%%distributed\npass", check=False, timeout=90)
    assert "Too many open files" in failed.seen()
    assert not kernel.run("print(warm.gone.is_set())").stdout.count("True")
    resource.prlimit(warm, resource.RLIMIT_NOFILE, before)
    assert "sum 2" in kernel.run(SUM, timeout=90).text
    kernel.run("%%distributed\nassert rank or held == 0, 'this one has lived on'")


@pytest.mark.parametrize("then", ["", "sleep 60"])
def test_nothing_is_left_of_a_rank_that_does_not_take_what_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    program = tmp_path / "deaf"
    program.write_text(f"#!/bin/sh\nexec <&-\n{then}\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    spec = RankSpec(
        rank=0, local_rank=0, world_size=1, local_world_size=1, host="", incarnation=0,
        backend="none", recovery=Recovery(), url="", keys=Keys.new(), folder=str(tmp_path),
        cells="", temp="", engine="", profile_dir="", cluster_id="", cwd="",
        environ={"LARGE": "x" * 1_000_000}, threads=1,
    )  # fmt: skip
    with pytest.raises(BrokenPipeError):
        children._fresh(spec)
    assert not psutil.Process().children()


def test_forked_ranks_have_random_numbers_of_their_own(start_kernel: KernelFactory) -> None:
    kernel = start_kernel()
    kernel.run("%load_ext nbdist")
    kernel.run("%dist start -np 2", timeout=90)
    cell = kernel.run(
        "%%distributed --output all\nimport random, numpy\n"
        "print(random.random(), numpy.random.rand(), numpy.random.randint(1 << 30))"
    )
    first, second = (line.split()[1:] for line in cell.text.splitlines())
    assert all(a != b for a, b in zip(first, second, strict=True))


def test_folders_nobody_could_remove_go_with_the_next_start(start_kernel: KernelFactory) -> None:
    first = start_kernel(home="twice")
    first.run("%load_ext nbdist")
    first.run("%dist start -np 2", timeout=90)
    warm = int(first.run("import nbdist; print(nbdist.cluster().hub.host.warm.pid)").text)
    os.kill(first.pid, signal.SIGSTOP)  # it must not notice
    psutil.Process(warm).kill()
    psutil.wait_procs([psutil.Process(warm)], timeout=5)
    first.sigkill()
    assert len(list((first.home / "clusters").iterdir())) == 1
    second = start_kernel(home="twice")
    second.run("%load_ext nbdist")
    second.run("%dist start -np 1 --backend none", timeout=90)
    assert len(list((first.home / "clusters").iterdir())) == 1
    second.run("%dist stop")


def test_files_called_like_modules_and_a_folder_that_goes(
    start_kernel: KernelFactory, tmp_path: Path
) -> None:
    """The notebook's folder is where its cells run, and nowhere near our own processes."""
    folder = tmp_path / "notebooks"
    folder.mkdir()
    kernel = start_kernel(cwd=folder)
    kernel.run("%load_ext nbdist\nimport os, nbdist, torch")
    for name in ("code", "queue", "random", "select", "token"):
        (folder / f"{name}.py").write_text("raise RuntimeError('taken for the real one')\n")
    (folder / "mine.py").write_text("x = 3\n")
    kernel.run("%dist stop", check=False)
    code = "import mine\nprint(os.path.basename(os.getcwd()), mine.x)"
    assert kernel.run(f"%%distributed -np 2 --launcher torchrun\n{code}").stdout == "notebooks 3\n"
    assert kernel.run(f"%%distributed -np 2 --launcher engines\n{code}").stdout == "notebooks 3\n"
    assert kernel.run("%dist preload mine").stdout.startswith("Preloaded mine")
    kernel.run(f"%%distributed -np 2 --detach\n{code}")
    assert kernel.run("job = nbdist.attach()\nprint(job.wait(60).output(1))").stdout[:1] == "n"
    shutil.rmtree(folder)
    for flags in ("--launcher torchrun", "--detach"):
        cell = kernel.run(f"%%distributed -np 2 {flags}\n1", check=False)
        assert "working directory has been removed: `%cd` to one" in cell.error
    kernel.run(f"%dist stop\nos.chdir({str(tmp_path)!r})")
    assert "sum 2" in kernel.run(SUM).text


def test_a_warm_process_that_cannot_start_leaves_nothing(
    start_kernel: KernelFactory, tmp_path: Path
) -> None:
    (tmp_path / "zmq.py").write_text("raise RuntimeError('not the real one')\n")
    kernel = start_kernel()
    path = f"os.pathsep.join([{str(tmp_path)!r}, os.environ.get('PYTHONPATH', '')])"
    kernel.run(f"import os, zmq\nos.environ['PYTHONPATH'] = {path}")
    kernel.run("%load_ext nbdist")
    told = kernel.run("%dist preload this", check=False).error
    assert "the warm process ended at its start" in told
    kernel.shutdown()
    assert not list((kernel.home / "clusters").iterdir())


def test_a_detached_job_that_is_late_leaves_nothing(start_kernel: KernelFactory) -> None:
    kernel = start_kernel(env={"NBDIST_START_SECONDS": "0.1"})
    kernel.run("%load_ext nbdist")
    cell = kernel.run("%%distributed -np 1 --detach\n1", check=False)
    assert "did not start within 0.1 s (NBDIST_START_SECONDS)" in cell.error
    assert "No cell has run yet" in kernel.run("%dist jobs").stdout


def test_a_home_that_moves_with_the_notebook_is_refused(start_kernel: KernelFactory) -> None:
    kernel = start_kernel(env={"NBDIST_HOME": "state"})
    kernel.run("%load_ext nbdist")
    cell = kernel.run("%%distributed -np 1 --launcher torchrun\n1", check=False)
    assert "give it a path that begins with /" in cell.error


def test_the_controllers_files_are_read_when_they_are_whole(tmp_path: Path) -> None:
    """The client's is written first; engines that found nothing in theirs would look elsewhere."""

    async def read() -> str:
        host = Host(tmp_path, lambda _: None, controller=False)
        try:
            host.connection_file("client").write_text("{}")
            host.connection_file("engine").write_text("")
            reading = asyncio.create_task(host.engine_info())
            await asyncio.sleep(0.1)
            assert not reading.done()
            host.connection_file("engine").write_text('{"key": "k"}')
            return await reading
        finally:
            await host.stop()

    assert asyncio.run(read()) == '{"key": "k"}'


def test_a_warm_process_that_does_not_listen_holds_nobody_up(tmp_path: Path) -> None:
    """While it imports it reads no orders, and those may be large: an environment for each rank."""

    async def order() -> None:
        names = {str(number) for number in range(20)}
        told = asyncio.Queue[Started | Died | Refused]()
        host = Host(tmp_path, told.put_nowait, controller=False)
        try:
            await host.ready()
            os.kill(host.warm.pid, signal.SIGSTOP)
            timer = threading.Timer(5, os.kill, (host.warm.pid, signal.SIGCONT))
            timer.start()
            large, began = {"LARGE": "x" * 100_000}, time.monotonic()
            for name in names:
                host.warm.order(
                    StartLauncher(name, "torchrun", [], "", dict(large), "/", "", cold=False)
                )
            assert time.monotonic() - began < 4
            os.kill(host.warm.pid, signal.SIGCONT)
            timer.cancel()
            heard: set[str] = set()
            while heard != names:
                heard.add((await asyncio.wait_for(told.get(), 60)).name)
        finally:
            await host.stop()

    asyncio.run(order())
