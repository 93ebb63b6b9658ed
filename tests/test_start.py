"""Ranks come to life: forked from the warm process, or fresh where forking is not safe."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
from textwrap import dedent
from typing import TYPE_CHECKING

import psutil
import pytest

from nbdist.backends.groups.recovery import Recovery
from nbdist.errors import LaunchError
from nbdist.launchers.host import child_processes, engines, protocol, warm_process_client
from nbdist.launchers.host.engines import Host
from nbdist.launchers.host.protocol import Died, Refused, Started, StartLauncher
from nbdist.machine.process_lives import started
from nbdist.rank.rank_spec import CLUSTER_NAME, RankSpec
from nbdist.wire.channel import Keys
from tests.helpers.notebook import new_ranks, on_ranks
from tests.helpers.processes import runs
from tests.helpers.waiting import allowed, until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import KernelFactory
    from tests.helpers.kernel import Kernel

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


@pytest.fixture(scope="module")
def ranks(start_shared: KernelFactory, without_torch: dict[str, str]) -> Kernel:
    """Return a kernel with two forked ranks; its warm process has a descriptor of a high number."""
    kernel = start_shared(env=without_torch)
    kernel.run(MANY_FILES)
    kernel.run("%load_ext nbdist")
    on_ranks(kernel, "pass", "-np 2 --backend none")
    return kernel


def test_ranks_that_cannot_be_forked_are_started_fresh(start_kernel: KernelFactory) -> None:
    kernel = start_kernel(env={"NBDIST_NO_FORK": "1"})
    kernel.run(MANY_FILES)
    kernel.run("%load_ext nbdist")
    kernel.run("%dist start -np 2", timeout=90)
    assert "sum 2" in kernel.run(SUM).text
    check_that_a_rank_that_cannot_be_started_is_refused(kernel)
    assert "sum 2" in kernel.run(SUM, timeout=90).seen()
    assert (
        kernel.run(
            "import psutil\n"
            "print({psutil.Process(r.pid).ppid() == warm.pid for r in nbdist.cluster().ranks})"
        ).text.strip()
        == "{True}"
    )


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs Linux")
def test_a_rank_that_cannot_be_forked_is_refused_and_the_others_live(ranks: Kernel) -> None:
    new_ranks(ranks)
    check_that_a_rank_that_cannot_be_started_is_refused(ranks)


def check_that_a_rank_that_cannot_be_started_is_refused(kernel: Kernel) -> None:
    """Let a rank die when no other can be started, and then when one can; the other one lives."""
    on_ranks(kernel, "held = rank")
    failed = on_ranks(kernel, "import os\nif rank == 1: os._exit(4)", check=False)
    assert "Rank 1 exited with code 4" in failed.seen()
    kernel.run("import nbdist; warm = nbdist.cluster().hub.host.warm")
    if hasattr(resource, "prlimit"):
        warm = int(kernel.run("print(warm.pid)").stdout)
        before = resource.prlimit(warm, resource.RLIMIT_NOFILE)
        resource.prlimit(warm, resource.RLIMIT_NOFILE, (3, before[1]))
        failed = on_ranks(kernel, "pass", check=False, timeout=90)
        resource.prlimit(warm, resource.RLIMIT_NOFILE, before)
        assert "Too many open files" in failed.seen()
        assert kernel.run("print(warm.gone.is_set())").stdout == "False\n"
    told = on_ranks(kernel, "print('there')", "--output all", timeout=90).text
    assert told.count("there") == 2, told
    on_ranks(kernel, "assert rank or held == 0, 'this one has lived on'")


def a_rank(folder: Path, environ: dict[str, str]) -> RankSpec:
    """Return what one rank is to be."""
    return RankSpec(
        rank=0, local_rank=0, world_size=1, local_world_size=1, host="", incarnation=0,
        backend="none", recovery=Recovery(), url="", keys=Keys.new(), folder=str(folder),
        cells="", temp="", engine="", profile_dir="", cluster_id="", cwd="",
        environ=environ, threads=1,
    )  # fmt: skip


@pytest.mark.parametrize("then", ["", "sleep 600"])
def test_nothing_is_left_of_a_rank_that_does_not_take_what_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    program = tmp_path / "deaf"
    program.write_text(f"#!/bin/sh\nexec <&-\n{then}\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    before = psutil.Process().children()
    with pytest.raises(BrokenPipeError):
        child_processes._fresh(a_rank(tmp_path, {"LARGE": "x" * 1_000_000}))
    assert set(psutil.Process().children()) <= set(before)


@pytest.mark.starts_processes
@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_a_fresh_rank_is_killed_before_its_parent_and_with_it(tmp_path: Path) -> None:
    """A program that only waits stands in for the rank: the system is asked before it runs."""
    program = tmp_path / "waits"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o700)
    (tmp_path / "spec").write_bytes(protocol.encode(a_rank(tmp_path, {})))
    ours, pid, its = map(
        int,
        in_a_process(
            f"""
            import msgspec, pathlib, sys
            from nbdist.launchers.host import child_processes
            from nbdist.rank.rank_spec import RankSpec
            sys.executable = {str(program)!r}
            spec = msgspec.msgpack.decode(pathlib.Path("spec").read_bytes(), type=RankSpec)
            pid = child_processes._fresh(spec)
            for of in ("self", pid):
                print(of, pathlib.Path(f"/proc/{{of}}/oom_score_adj").read_text())
            """,
            tmp_path,
        ).split()[1:],
    )
    assert ours < its or its == 1000
    with contextlib.suppress(psutil.NoSuchProcess):
        fresh = psutil.Process(pid)
        until(lambda: not runs(fresh))


def test_forked_ranks_have_random_numbers_of_their_own(ranks: Kernel) -> None:
    new_ranks(ranks)
    cell = ranks.run(
        "%%distributed --output all\nimport random, numpy\n"
        "print(random.random(), numpy.random.rand(), numpy.random.randint(1 << 30))"
    )
    first, second = (line.split()[1:] for line in cell.text.splitlines())
    assert all(a != b for a, b in zip(first, second, strict=True))


def test_folders_nobody_could_remove_go_with_the_next_start(
    start_kernel: KernelFactory, without_torch: dict[str, str]
) -> None:
    first = start_kernel(home="twice", env=without_torch)
    first.run("%load_ext nbdist")
    first.run("%dist start -np 2 --backend none", timeout=90)
    told = first.run("import nbdist; print(nbdist.cluster().hub.host.warm.pid)").text
    warm = psutil.Process(int(told))
    os.kill(first.pid, signal.SIGSTOP)  # it must not notice
    warm.kill()
    until(lambda: not runs(warm))
    first.sigkill()
    assert len(list((first.home / "clusters").iterdir())) == 1
    second = start_kernel(home="twice", env=without_torch)
    second.run("%load_ext nbdist")
    second.run("%dist start -np 1 --backend none", timeout=90)
    assert len(list((first.home / "clusters").iterdir())) == 1
    second.run("%dist stop")


def test_files_called_like_modules_and_a_folder_that_goes(
    start_kernel: KernelFactory, without_torch: dict[str, str], tmp_path: Path
) -> None:
    """The notebook's folder is where its cells run, and nowhere near our own processes."""
    folder = tmp_path / "notebooks"
    folder.mkdir()
    kernel = start_kernel(cwd=folder)
    kernel.run("%load_ext nbdist\nimport os, nbdist")
    for name in ("code", "queue", "random", "select", "token"):
        (folder / f"{name}.py").write_text("raise RuntimeError('taken for the real one')\n")
    (folder / "mine.py").write_text("x = 3\n")
    kernel.run("%dist stop", check=False)
    code = "import mine\nprint(os.path.basename(os.getcwd()), mine.x)"
    assert kernel.run(f"%%distributed -np 2 --launcher torchrun\n{code}").stdout == "notebooks 3\n"
    assert kernel.run(f"%%distributed -np 2 --launcher engines\n{code}").stdout == "notebooks 3\n"
    assert "Preloaded mine: " in kernel.run("%dist preload mine").stdout
    kernel.run(f"%%distributed -np 2 --detach\n{code}")
    assert kernel.run("job = nbdist.attach()\nprint(job.wait(200).output(1))").stdout[:1] == "n"
    shutil.rmtree(folder)
    for flags in ("--launcher torchrun", "--detach"):
        cell = kernel.run(f"%%distributed -np 2 {flags}\n1", check=False)
        assert "working directory has been removed: `%cd` to an existing one" in cell.error
    # What starts elsewhere needs no torch, which a new warm process would import for seconds.
    kernel.run(f"%dist stop\nos.chdir({str(tmp_path)!r})\nos.environ.update({without_torch})")
    again = on_ranks(kernel, "print(os.path.basename(os.getcwd()))", "-np 2 --backend none")
    assert again.stdout == f"{tmp_path.name}\n"


ENDED_FIRST = """
import time
from nbdist.notebook.session import session
make = session.hubs.host

def host():
    made = make()
    while not made.warm.gone.is_set():
        time.sleep(0.01)
    return made

session.hubs.host = host
"""


def test_a_warm_process_that_cannot_start_leaves_nothing(
    start_kernel: KernelFactory, tmp_path: Path
) -> None:
    """Whether it ends while it is asked for something or before."""
    (tmp_path / "zmq.py").write_text("raise RuntimeError('not the real one')\n")
    kernel = start_kernel()
    path = f"os.pathsep.join([{str(tmp_path)!r}, os.environ.get('PYTHONPATH', '')])"
    kernel.run(f"import os, zmq\nos.environ['PYTHONPATH'] = {path}")
    kernel.run("%load_ext nbdist")
    for before in ("", ENDED_FIRST):
        kernel.run(before)
        told = kernel.run("%dist preload this", check=False).error
        assert "the warm process, which starts the ranks, ended at its own start" in told, before
    kernel.shutdown()
    assert not list((kernel.home / "clusters").iterdir())


def test_a_detached_job_that_is_late_leaves_nothing(
    start_kernel: KernelFactory, without_torch: dict[str, str]
) -> None:
    kernel = start_kernel(env=without_torch | {"NBDIST_START_SECONDS": "0.1"})
    kernel.run("%load_ext nbdist")
    cell = kernel.run("%%distributed -np 1 --detach\n1", check=False)
    assert "did not start within 0.1 s (NBDIST_START_SECONDS)" in cell.error
    assert "No cell has run yet" in kernel.run("%dist jobs").stdout


def test_a_home_that_moves_with_the_notebook_is_refused(start_kernel: KernelFactory) -> None:
    kernel = start_kernel(env={"NBDIST_HOME": "state"})
    kernel.run("%load_ext nbdist")
    cell = kernel.run("%%distributed -np 1 --launcher torchrun\n1", check=False)
    assert "use a path that begins with /" in cell.error


@pytest.fixture
def _hosts_without_torch(monkeypatch: pytest.MonkeyPatch, without_torch: dict[str, str]) -> None:
    """Let warm processes that are started here import no torch, which takes seconds."""
    for name, value in without_torch.items():
        monkeypatch.setenv(name, value)


@pytest.mark.starts_processes
@pytest.mark.usefixtures("_hosts_without_torch")
def test_the_controllers_files_are_read_when_it_listens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It writes them before; engines that found nothing in theirs would look elsewhere."""

    async def read() -> str:
        host = Host(tmp_path, lambda _: None, controller=False)
        try:
            with monkeypatch.context() as patch:
                patch.setattr(engines, "CONTROLLER_SECONDS", 0.1)
                late = r"controller did not start within 100 ms; its log .*\.log is empty"
                with pytest.raises(LaunchError, match=late):
                    await host.engine_info()
            host.connection_file("client").write_text("{}")
            host.connection_file("engine").write_text('{"key": "k"}')
            reading = asyncio.create_task(host.engine_info())
            await asyncio.sleep(0.1)
            assert not reading.done()
            (host.folder / "controller.ready").touch()
            return await reading
        finally:
            await host.stop()

    assert asyncio.run(read()) == '{"key": "k"}'


@pytest.mark.starts_processes
@pytest.mark.usefixtures("_hosts_without_torch")
def test_a_rank_that_no_controller_answers_brings_that_ones_words(tmp_path: Path) -> None:
    async def words(log: str) -> str:
        host = Host(tmp_path, lambda _: None, controller=False)
        try:
            (host.folder / "rank1.log").write_text(log)
            (host.folder / "controller.log").write_text("purging stalled registration\n")
            return host.log_in_words(1)
        finally:
            await host.stop()

    advice = "ipyparallel's advice\n" * 6  # which comes after it, in that many lines
    told = asyncio.run(words(f"Registration timed out after 30.0 seconds\n{advice}"))
    assert "advice\nipyparallel's controller did not answer; its log" in told
    assert "Registration timed out after 30.0 seconds" in told
    assert told.endswith("purging stalled registration")
    assert "did not answer" not in asyncio.run(words("MemoryError\n"))


LOSES_PORTS = """
import pathlib
tries = pathlib.Path({folder!r}, "tries")
tries.touch()
with tries.open("r+") as file:
    begun = len(file.read())
    file.write(".")
if begun < {times}:
    from ipyparallel.util import select_random_ports
    c = get_config()
    c.IPController.engine_ports = [*select_random_ports({before}), {port}]
"""
LOST = {"first": 0, "last, when its files are written": 3}
"""Which port is lost: how many ports for engines the controller chooses before it."""
LOST_BY_A_THREAD = 4


def losing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, port: int, before: int, times: int
) -> Host:
    """Return a host whose controller wants another program's port so many times."""
    start = Host._start_controller

    def lose_ports(host: Host) -> None:
        config = LOSES_PORTS.format(folder=str(folder), times=times, before=before, port=port)
        (host.profile / "ipcontroller_config.py").write_text(config)
        start(host)

    monkeypatch.setattr(Host, "_start_controller", lose_ports)
    return Host(folder, lambda _: None)


@pytest.mark.starts_processes
@pytest.mark.usefixtures("_hosts_without_torch")
@pytest.mark.parametrize("before", LOST.values(), ids=LOST)
@pytest.mark.parametrize("times", [2, 3])
def test_a_controller_that_loses_its_ports_to_another_program_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int, before: int
) -> None:
    async def engine_info(port: int) -> str:
        host = losing(tmp_path, monkeypatch, port, before, times)
        try:
            return await host.engine_info()
        finally:
            await host.stop()

    with socket.create_server(("127.0.0.1", 0)) as other:
        reading = engine_info(other.getsockname()[1])
        if times == 3:
            with pytest.raises(LaunchError, match="Address already in use"):
                asyncio.run(reading)
        else:
            assert "registration" in asyncio.run(reading)
    assert (tmp_path / "tries").read_text() == "..."


@pytest.mark.starts_processes
@pytest.mark.usefixtures("_hosts_without_torch")
def test_a_controller_of_which_a_thread_loses_its_port_ends_and_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def engine_info(port: int) -> str:
        host = losing(tmp_path, monkeypatch, port, LOST_BY_A_THREAD, 1)

        async def ended() -> None:
            while host.controller_died is None:
                await asyncio.sleep(0.01)

        try:
            await asyncio.wait_for(ended(), allowed(60))
            assert "Exception in thread" in (host.folder / "controller.log").read_text()
            return await host.engine_info()
        finally:
            await host.stop()

    with socket.create_server(("127.0.0.1", 0)) as other:
        assert "registration" in asyncio.run(engine_info(other.getsockname()[1]))
    assert (tmp_path / "tries").read_text() == ".."


@pytest.mark.starts_processes
@pytest.mark.usefixtures("_hosts_without_torch")
def test_a_warm_process_that_does_not_listen_holds_nobody_up(tmp_path: Path) -> None:
    """While it imports it reads no orders, and those may be large: an environment for each rank."""

    async def order() -> None:
        names = {str(number) * 100_000 for number in range(20)}  # so are its answers
        told = asyncio.Queue[Started | Died | Refused]()
        host = Host(tmp_path, told.put_nowait, controller=False)
        try:
            await host.ready()
            os.kill(host.warm.pid, signal.SIGSTOP)
            timer = threading.Timer(60, os.kill, (host.warm.pid, signal.SIGCONT))
            timer.start()
            large = {"LARGE": "x" * 100_000}
            for name in names:
                host.warm.order(
                    StartLauncher(name, "torchrun", [], "", dict(large), "/", "", cold=False)
                )
            assert timer.is_alive(), "until it went on nothing could be ordered"
            os.kill(host.warm.pid, signal.SIGCONT)
            timer.cancel()
            heard: set[str] = set()
            while heard != names:
                heard.add((await asyncio.wait_for(told.get(), allowed(60))).name)
        finally:
            await host.stop()

    asyncio.run(order())


@pytest.mark.starts_processes
@pytest.mark.usefixtures("_hosts_without_torch")
def test_an_order_that_cannot_be_followed_is_refused(tmp_path: Path) -> None:
    async def order() -> None:
        told = asyncio.Queue[Started | Died | Refused]()
        host = Host(tmp_path, told.put_nowait, controller=False)
        try:
            await host.ready()
            for module in ("nowhere", "torchrun"):  # it goes on afterwards
                host.warm.order(StartLauncher(module, module, [], "", {}, "/", "", cold=False))
            refused = await asyncio.wait_for(told.get(), allowed(60))
            assert isinstance(refused, Refused)
            assert refused.name == "nowhere"
            assert (
                "ModuleNotFoundError: No module named 'nbdist.launchers.scripts.nowhere'"
                in refused.why
            )
            assert isinstance(await asyncio.wait_for(told.get(), allowed(60)), Started)
            log = (host.folder / "warm.log").read_text()
            assert "Traceback" in log
            # Nobody has heard yet that it has gone.
            os.kill(host.warm.pid, signal.SIGKILL)
            until(lambda: not runs(psutil.Process(host.warm.pid)))
            host.check_controller()
            with pytest.raises(
                LaunchError, match="the warm process, which starts the ranks, has ended; its log"
            ):
                await asyncio.wait_for(host.preload(["json"], 100), allowed(60))
            with pytest.raises(LaunchError, match="the warm process of this cluster has died"):
                host.check_controller()
        finally:
            await host.stop()

    asyncio.run(order())


@pytest.mark.starts_processes
@pytest.mark.usefixtures("_hosts_without_torch")
def test_a_warm_process_that_does_not_end_is_killed(tmp_path: Path) -> None:
    async def stop() -> None:
        host = Host(tmp_path, lambda _: None, controller=False)
        warm = psutil.Process(host.warm.pid)
        warm.suspend()
        host.warm._read()
        assert not host.warm.gone.is_set(), "it has said nothing, which is no end"
        await host.warm.stop(grace=0.1)
        assert host.warm.gone.is_set()
        until(lambda: not runs(warm))
        with pytest.raises(LaunchError, match="the ranks, ended at its own start"):
            await host.ready()
        await host.stop()

    asyncio.run(stop())


@pytest.mark.starts_processes
def test_a_session_whose_number_is_somebody_elses_by_now_is_left_alone() -> None:
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        try:
            began = started(process.pid)
            warm_process_client.end_session(process.pid, began - 100)
            process.terminate()
            assert process.wait(allowed(30)) == -signal.SIGTERM
        finally:
            process.kill()


@pytest.mark.starts_processes
def test_what_bears_the_mark_of_a_cluster_is_killed_wherever_it_is(tmp_path: Path) -> None:
    marks = {name: {**os.environ, CLUSTER_NAME: f"{name}-{tmp_path}"} for name in ("ours", "other")}
    ours, other = (
        subprocess.Popen(["sleep", "600"], env=env, start_new_session=True)
        for env in marks.values()
    )
    try:
        warm_process_client.end_marked(marks["ours"][CLUSTER_NAME])
        assert ours.wait(allowed(30)) == -signal.SIGKILL
        other.terminate()
        assert other.wait(allowed(30)) == -signal.SIGTERM
    finally:
        for process in (ours, other):
            process.kill()
            process.wait()


def test_a_working_folder_that_was_removed_has_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", ["", "elsewhere"])
    assert engines._import_path() == [str(folder), "elsewhere"]
    folder.rmdir()
    assert engines._import_path() == sys.path


def in_a_process(code: str, folder: Path) -> str:
    """Return what code prints in a process of its own, which has children and no threads."""
    done = subprocess.run(
        [sys.executable, "-c", dedent(code)],
        capture_output=True, text=True, timeout=allowed(60), check=False, cwd=folder,
        env={**os.environ, "XDG_CACHE_HOME": str(folder)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.starts_processes
def test_how_a_child_has_ended_is_told(tmp_path: Path) -> None:
    told = in_a_process(
        """
        import os, select, signal, socket, sys
        from nbdist.launchers.host.child_processes import Children
        from nbdist.launchers.host.protocol import Died
        died = []
        def tell(word):
            if isinstance(word, Died):
                died.append(word)
        children = Children(socket.socketpair()[0], tell)
        def raises():
            raise RuntimeError
        for name, body in {
            "done": lambda: None, "says": lambda: sys.exit("why"), "code": lambda: sys.exit(3),
            "raises": raises, "signal": lambda: os.kill(os.getpid(), signal.SIGTERM),
        }.items():
            children.start(name, body)
            while not died or died[-1].name != name:
                select.select([children.wake], [], [])
                children.look()
            print(name, died[-1].signum, died[-1].code)
        # Their numbers may be anybody's by now.
        children.signal(os.getpid(), signal.SIGKILL)
        children.end(os.getpid(), 0)
        children.look()
        """,
        tmp_path,
    )
    assert told.splitlines() == ["done 0 0", "says 0 1", "code 0 3", "raises 0 1", "signal 15 0"]


@pytest.mark.starts_processes
def test_a_warm_process_tells_what_fails_and_ends_with_its_kernel(tmp_path: Path) -> None:
    """What fails stands in for an error that nobody has foreseen; all that can be is caught before.

    The kernel's end of the socket stays open, as in a process that the kernel's C code has forked.
    """
    (tmp_path / "spec").write_bytes(protocol.encode(a_rank(tmp_path, {})))
    told = in_a_process(
        """
        import msgspec, os, pathlib, socket, sys
        from nbdist.launchers.host import protocol
        from nbdist.launchers.host.protocol import Preload, Signal, StartController, StartRank
        from nbdist.launchers.host.warm_process import Supervisor
        from nbdist.rank.rank_spec import RankSpec
        kernel, (ours, theirs) = os.getpid(), socket.socketpair()
        os.mkdir("temp")
        if os.fork():
            spec = msgspec.msgpack.decode(pathlib.Path("spec").read_bytes(), type=RankSpec)
            for order in (
                StartRank(spec), Signal(1, 0), StartController([], {}, "", ""),
                Preload(3, [], [], {}, 1, tried=True),
            ):
                ours.sendall(protocol.pack(order))
            for _ in range(3):
                length = int.from_bytes(ours.recv(protocol.LENGTH, socket.MSG_WAITALL), "big")
                word = protocol.decode_word(ours.recv(length, socket.MSG_WAITALL))
                print(getattr(word, "name", "") or word.id, word.why, flush=True)
            os._exit(0)
        supervisor = Supervisor(theirs, kernel, ["temp"])
        def fail(order):
            raise MemoryError("unforeseen")
        supervisor._do = fail
        supervisor.serve()
        print("ended", os.path.exists("temp"))
        """,
        tmp_path,
    )
    why = "MemoryError: unforeseen"
    assert told.splitlines() == [f"rank 0.0 {why}", f"controller {why}", f"3 {why}", "ended False"]


@pytest.mark.starts_processes
@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs Linux")
def test_what_cannot_be_forked_is_refused(tmp_path: Path) -> None:
    """As in a container that may have no more processes."""
    told = in_a_process(
        """
        import encodings.ascii, os, resource, socket, sys, types
        from nbdist.launchers.host import recovery_probe
        from nbdist.launchers.host.child_processes import Children
        from nbdist.launchers.host.preloads import Preloads
        from nbdist.launchers.host.protocol import Preload
        told = []
        children = Children(socket.socketpair()[0], told.append)
        preloads = Preloads(children, told.append, str)
        probe = recovery_probe.Probing(children, told.append, "")
        file = recovery_probe.__file__
        torch = types.SimpleNamespace(__version__="9", __file__=file, version=None)
        sys.modules["torch"] = torch
        if os.getuid() == 0:  # whom no limit holds
            os.setresuid(65534, 65534, 0)
        limits = resource.getrlimit(resource.RLIMIT_NPROC)
        resource.setrlimit(resource.RLIMIT_NPROC, (0, limits[1]))
        before = os.listdir("/proc/self/fd")
        children.start("rank", list)
        for number in range(2):
            preloads.begin(Preload(number, ["json"], sys.path, {}, 10, tried=False))
        for fork in (True, False):
            probe.begin(fork=fork)
        assert os.listdir("/proc/self/fd") == before
        assert probe.found.whole and not probe.watched()
        for word in told:
            print(getattr(word, "why", "") or word.groups)
        resource.setrlimit(resource.RLIMIT_NPROC, limits)
        if os.getuid() == 65534:
            os.setresuid(0, 0, 0)
        """,
        tmp_path,
    ).splitlines()
    why = "[Errno 11] Resource temporarily unavailable"
    assert told[:3] == [f"fork failed: {why}", *2 * [f"the import could not be tried: {why}"]]
    assert told[3:] == 2 * [f"the probe: it could not be started: {why}"]


@pytest.mark.starts_processes
def test_a_probe_that_dies_hangs_or_is_not_sure_holds_nobody_up(tmp_path: Path) -> None:
    """The probe is a stand-in: this torch's own neither dies nor hangs."""
    (tmp_path / "stands_in.py").write_text("import os, sys, time\nexec(os.environ['DOES'])\n")
    told = in_a_process(
        """
        import os, select, socket, sys, time, types
        from nbdist.backends.groups import recovery
        from nbdist.launchers.host import recovery_probe
        from nbdist.launchers.host.child_processes import Children
        file = recovery_probe.__file__
        torch = types.SimpleNamespace(__version__="9", __file__=file, version=None)
        sys.modules["torch"] = torch
        recovery_probe.PROBE = "stands_in"
        children = Children(socket.socketpair()[0], None)
        says = "os.write(int(sys.argv[1]), b'{%s}\\\\n');"
        groups, rest = says % "", says % '"whole":true'
        unsure = rest.replace("true", 'true,"sure":false')
        sleep = "time.sleep(600)"
        for does, for_groups, for_all in [
            ("", 60, 60), (sleep, 0.1, 60), (groups, 60, 60), (groups + sleep, 60, 0.1),
            (groups + unsure + sleep, 60, 60), (rest + sleep, 60, 60),
        ]:
            os.environ["DOES"] = does
            recovery_probe.GROUPS_SECONDS, recovery_probe.SECONDS = for_groups, for_all
            told = []
            probe = recovery_probe.Probing(children, told.append, "")
            probe.begin(fork=False)
            while probe.watched():
                select.select(probe.watched(), [], [], max(0, probe.until() - time.monotonic()))
                probe.look()
            (found,) = told
            assert found is probe.found and found.whole and found.fsdp == found.models
            kept = recovery.known(torch) is not None
            print(found.groups or "-", found.models or "-", kept, sep="|")
            os.waitpid(probe._pid, 0)
        """,
        tmp_path,
    )
    dead, late = "the probe: it has crashed", "the probe: it did not end within 100 ms"
    assert told.splitlines() == [
        f"{dead}|{dead}|False", f"{late}|{late}|False", f"-|{dead}|False", f"-|{late}|False",
        "-|-|False", "-|-|True",
    ]  # fmt: skip
