"""Scripts on two hosts, started by ssh; the second one is made of namespaces: `helpers.hosts`."""

from __future__ import annotations

import re
from contextlib import suppress
from textwrap import dedent
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.helpers.faults import shown
from tests.helpers.hosts import NAME, NEAR, FarHost, far_host
from tests.helpers.notebook import distributed, in_background_until, on_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conftest import KernelFactory
    from tests.helpers.kernel import Kernel

HOSTS = f"-H localhost:1,{NAME}:2"
TORCHRUN = f"--launcher torchrun --backend ddp {HOSTS}"
HOROVODRUN = f"--launcher horovodrun --backend horovod {HOSTS}"
PLACES = [(NEAR, 0), (NAME, 0), (NAME, 1)]
"""Each rank's host, and its number there."""
WAIT = """
    import time
    print("begun", flush=True)
    dist.barrier()
    while True:
        time.sleep(0.1)
"""


@pytest.fixture(scope="module")
def far(scratch: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarHost]:
    """Return a second host."""
    with far_host(tmp_path_factory.mktemp("far"), scratch / "tmp") as host:
        yield host


@pytest.fixture(scope="module")
def two(far: FarHost, start_shared: KernelFactory) -> Kernel:
    """Return a kernel that reaches it."""
    kernel = start_shared(env={"PATH": far.path}, within=far.near)
    kernel.run("%load_ext nbdist\nimport torch, torch.distributed as dist")
    return kernel


@pytest.fixture(autouse=True)
def _nothing_left_there(far: FarHost) -> Iterator[None]:
    """Check that a job leaves no process on the other host."""
    yield
    far.must_be_quiet()


@pytest.fixture
def bad_folder(two: Kernel, tmp_path: Path) -> Iterator[Path]:
    """Let cells run where a file is called like a module of Python's."""
    (tmp_path / "random.py").write_text("raise RuntimeError('taken for the real one')\n")
    two.run(f"import os\nhere = os.getcwd()\nos.chdir({str(tmp_path)!r})")
    yield tmp_path
    two.run("os.chdir(here)")


def test_torchrun_trains_on_both_and_a_restart_starts_both_anew(
    two: Kernel, bad_folder: Path
) -> None:
    cell = on_ranks(
        two,
        """
        import os, socket
        tries = os.environ["TORCHELASTIC_RESTART_COUNT"]
        if rank == 2 and tries == "0":
            raise ValueError("bad luck")
        model = torch.nn.Linear(2, 1)
        model(torch.ones(1, 2) * rank).sum().backward()
        grad = model.weight.grad
        dist.all_reduce(grad)  # by hand, as DDP would take seconds to import on each rank
        grad /= world_size
        hosts = [None] * world_size
        dist.all_gather_object(hosts, (socket.gethostname(), local_rank, os.getcwd()))
        print(*hosts, sep="\\n")
        print("try", tries, "of", world_size)
        """,
        f"{TORCHRUN} --return grad --max-restarts 1 --launcher-flags '--rdzv-conf read_timeout=50'",
    )
    wanted = [str((*place, str(bad_folder))) for place in PLACES]
    assert cell.stdout.splitlines() == [*wanted, "try 1 of 3"]
    assert two.run("print(grad)").stdout == "tensor([[1., 1.]])\n"
    assert f"Restart 1 of 1: rank 2 on {NAME} failed: ValueError: bad luck" in shown(cell)


@pytest.mark.horovod
def test_horovodrun_trains_on_both(two: Kernel) -> None:
    """A rank on each; with two there, see the interrupt."""
    two.run("import horovod.torch as hvd")
    cell = on_ranks(
        two,
        """
        import socket
        model = torch.nn.Linear(2, 1)
        model(torch.ones(1, 2) * rank).sum().backward()
        hvd.allreduce_(model.weight.grad)
        hosts = hvd.allgather_object((socket.gethostname(), hvd.local_rank()))
        print(model.weight.grad.tolist(), *hosts)
        """,
        f"--launcher horovodrun --backend horovod -H localhost:1,{NAME}:1 --cold "
        "--launcher-flags '-p 22'",
    )
    assert cell.stdout == f"[[0.5, 0.5]] ('{NEAR}', 0) ('{NAME}', 0)\n"


def test_a_failing_rank_is_told_with_its_host(two: Kernel) -> None:
    go = two.home / "go"
    body = f"""
        import os, time
        if rank == 2:
            while not os.path.exists({str(go)!r}): time.sleep(0.05)
            raise ValueError("bad luck")
        dist.barrier()
        """
    became = (
        r"Ranks? (\S+) (?:lost the connection|(?:was|were) waiting in barrier) at cell line 6\."
    )
    # All have told where they are: what became of each is known then.
    in_background_until(two, body, f"{TORCHRUN} --cold", [6, 6, 4])
    go.touch()
    told = shown(two.run("job.wait()", check=False))
    assert f"Rank 2 on {NAME} failed: ValueError: bad luck (cell line 5)" in told
    assert 'File "Cell In[' in told
    # Rank 1 may lose the connection before or after the launcher there ends it; it is told so.
    assert set(re.findall(became, told)) in ({"0-1"}, {"0", "1"})


def test_values_come_back_from_a_function_there(two: Kernel) -> None:
    call = f"""
import nbdist, socket
def large(name):
    return socket.gethostname(), torch.full((200_000,), float(dist.get_rank()))
for host, values in nbdist.launch(large, "x", hosts="{NAME}:2"):
    print(host, len(values), values.unique())
"""
    lines = two.run(call).stdout.splitlines()
    assert lines == [f"{NAME} 200000 tensor([{rank}.])" for rank in (0, 1)]


def test_an_interrupt_ends_both(two: Kernel) -> None:
    cell = two.start(distributed(WAIT, TORCHRUN))
    two.expect("begun", 60)
    two.interrupt()
    two.wait(60)
    assert "The cell was interrupted" in shown(cell)


@pytest.mark.horovod
def test_an_interrupt_ends_both_of_horovodrun(two: Kernel, bad_folder: Path) -> None:
    two.run("import horovod.torch as hvd")
    where = "print((socket.gethostname(), hvd.local_rank(), os.getcwd()), flush=True)"
    wait = f"import os, socket\n{where}\nhvd.barrier()" + dedent(WAIT)
    cell = two.start(distributed(wait.replace("dist", "hvd"), f"{HOROVODRUN} --output all"))
    two.expect("begun", 60)
    two.interrupt()
    two.wait(60)
    assert "The cell was interrupted" in shown(cell)
    for rank, place in enumerate(PLACES):
        assert f"[{rank}] {(*place, str(bad_folder))}\n" in cell.stdout, cell.seen()


def test_a_lost_host_is_told(two: Kernel, far: FarHost) -> None:
    two.start(distributed(WAIT, TORCHRUN))
    two.expect("begun", 60)
    lost = far.processes()
    for act in (psutil.Process.suspend, psutil.Process.kill):
        for process in lost:  # all at once: none may tell of another's death
            with suppress(psutil.NoSuchProcess):  # one that just started another
                act(process)
    told = shown(two.wait(60))
    assert f"on {NAME} failed: HostLost: {NAME}: ssh to it ended with" in told


def test_elastic_torchrun_goes_on_without_a_rank(two: Kernel) -> None:
    body = """
        import os, signal
        print(world_size, "ranks, here", local_rank)
        for step in range(20):
            dist.all_reduce(torch.ones(1))
            if world_size == 3 and rank == 0 and step == 10:
                os.kill(os.getpid(), signal.SIGKILL)
        """
    for hosts in ("-np 3", HOSTS):
        cell = on_ranks(two, body, f"--launcher torchrun --backend ddp {hosts} --min-np 1")
        assert cell.stdout.splitlines()[0] == "3 ranks, here 0"
        assert cell.stdout.splitlines()[-1] == f"2 ranks, here {0 if hosts == HOSTS else 1}"
        assert "was killed by SIGKILL" in shown(cell)
        assert "All ranks begin again, now 2 of 3." in shown(cell)


def test_elastic_torchrun_fails_below_the_least(two: Kernel) -> None:
    body = """
        import os, signal, time
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(600)
        """
    cell = on_ranks(two, body, "--launcher torchrun --backend ddp -np 2 --min-np 2", check=False)
    assert "Rank 1 was killed by SIGKILL" in shown(cell)


@pytest.mark.parametrize(
    ("hosts", "told"),
    [
        ("nowhere.invalid:1", "nowhere.invalid cannot be reached by ssh: ssh: Could not resolve"),
        ("unknown-to-ssh:1", "unknown-to-ssh cannot be reached by ssh: "),
        (f"unknown-to-ssh:1,{NAME}:1,nowhere.invalid:1", "Nothing was started:\nunknown-to-ssh"),
    ],
)
def test_a_host_that_is_not_there_is_named(two: Kernel, hosts: str, told: str) -> None:
    cell = on_ranks(two, "pass", f"--launcher torchrun --backend ddp -H {hosts}", check=False)
    assert told in shown(cell)
    assert "must work without a question" in shown(cell)


def test_a_kernel_that_is_killed_leaves_nothing_there(
    far: FarHost, start_kernel: KernelFactory, tmp_path: Path
) -> None:
    kernel = start_kernel(env={"PATH": far.path}, within=far.near)
    kernel.run("%load_ext nbdist")
    kernel.start(distributed("import torch.distributed as dist\n" + dedent(WAIT), TORCHRUN))
    kernel.expect("begun", 60)
    assert far.processes()
    kernel.sigkill()
    far.must_be_quiet()


def test_what_another_host_lacks_is_told(two: Kernel) -> None:
    """The temp folder is each host's own, and so is a home in it."""
    flags = f"-H {NAME}:1 --backend none --launcher"
    two.run(
        "import os, shutil, socket, sys, tempfile\nhome = os.environ['NBDIST_HOME']\n"
        "os.environ['NBDIST_HOME'] = tempfile.mkdtemp()"
    )
    told = shown(on_ranks(two, "pass", f"{flags} torchrun", check=False))
    two.run("shutil.rmtree(os.environ['NBDIST_HOME'])\nos.environ['NBDIST_HOME'] = home")
    assert f"{NAME} does not see the job's folder" in told
    assert "set NBDIST_HOME to a folder that all hosts share" in told
    two.run("python, sys.executable = sys.executable, '/nowhere/python'")
    told = shown(on_ranks(two, "pass", f"{flags} torchrun", check=False))
    two.run("sys.executable = python")
    assert f"{NAME} has no Python at /nowhere/python" in told


@pytest.mark.horovod
def test_horovod_needs_hosts_that_know_their_names(two: Kernel) -> None:
    two.run("import socket; name, socket.gethostname = socket.gethostname, lambda: 'localhost'")
    flags = f"-H {NAME}:1 --backend none --launcher horovodrun"
    told = shown(on_ranks(two, "pass", flags, check=False))
    two.run("socket.gethostname = name")
    assert (
        "this machine resolves its own host name to 127.0.0.1: Horovod looks this name up" in told
    )
