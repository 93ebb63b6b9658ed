"""The same cells, the same truth: on engines, and as scripts of torchrun and horovodrun."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil
import pytest

from nbdist.errors import LaunchError
from nbdist.launchers import torchrun
from tests.faults import shown
from tests.kernel import KERNEL_MARK
from tests.notebook import distributed, in_background_until, on_ranks, printed_by
from tests.processes import environment, family, listening
from tests.test_orphans import all_end
from tests.waiting import allowed, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conftest import KernelFactory
    from tests.kernel import Kernel

BOTH = pytest.mark.parametrize("how", ["", "--cold"], ids=["warm", "cold"])
TRAIN = """
    import subprocess, time
    from torch.utils.data import DataLoader
    loader = iter(DataLoader(list(range(100_000)), num_workers=1))
    child = subprocess.Popen(["sleep", "600"])
    subprocess.run(["setsid", "--fork", "sleep", "600"], check=True)
    while True:
        next(loader)
        summed(torch.ones(1))
        print("training", flush=True) if rank == 0 else None
        time.sleep(0.05)
"""


@dataclass(frozen=True)
class Launcher:
    """How a launcher is asked for, and what the notebook defines for its cells."""

    flags: str
    setup: str
    stays: bool = False
    """Whether its ranks outlive a cell."""


TORCHRUN = Launcher(
    "-np 2 --launcher torchrun --backend ddp",
    "import torch, torch.distributed as dist\n"
    "def summed(x):\n    dist.all_reduce(x)\n    return x\n",
)
ENGINES = Launcher("-np 2 --launcher engines --backend ddp", TORCHRUN.setup, stays=True)
HOROVODRUN = Launcher(
    "-np 2 --launcher horovodrun --backend horovod",
    "import torch, horovod.torch as hvd\ndef summed(x):\n    return hvd.allreduce(x, op=hvd.Sum)\n",
)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(ENGINES, id="engines"),
        pytest.param(TORCHRUN, id="torchrun"),
        pytest.param(HOROVODRUN, id="horovodrun", marks=pytest.mark.horovod),
    ],
)
def launcher(request: pytest.FixtureRequest) -> Launcher:
    """Return each launcher in its turn."""
    found: Launcher = request.param
    return found


@pytest.fixture(scope="module")
def of_scripts(launcher: Launcher) -> Launcher:
    """Return each launcher of scripts in its turn."""
    if launcher.stays:
        pytest.skip("engines run no scripts; test_orphans kills their kernel")
    return launcher


@pytest.fixture(scope="module")
def scripts(shared_kernel: Kernel, launcher: Launcher) -> Kernel:
    """Return a kernel with nbdist loaded, and what the launcher's cells use."""
    shared_kernel.run("%load_ext nbdist\n" + launcher.setup)
    if launcher.stays:
        on_ranks(shared_kernel, "1", launcher.flags)
    return shared_kernel


@pytest.fixture(autouse=True)
def _only_what_is_to_stay(request: pytest.FixtureRequest) -> Iterator[None]:
    """Check that a job leaves its logs and script, and nothing that was only for its time."""
    ours = "scripts" in request.fixturenames
    home = request.getfixturevalue("scripts").home if ours else None
    yield
    if home is not None:
        for name in ("program.json", "rendezvous", "elastic", "horovod"):
            assert not list(home.glob(f"logs/*/{name}"))


@BOTH
def test_a_cell_is_a_script_of_its_own(scripts: Kernel, of_scripts: Launcher, how: str) -> None:
    launcher = of_scripts
    scripts.run("offset = torch.tensor([40.0])\ndef shifted(x):\n    return x + offset")
    cell = on_ranks(
        scripts,
        """
        answer = shifted(summed(torch.ones(1)))
        print(rank, world_size, answer.item(), __name__)
        """,
        f"{launcher.flags} {how} --return answer,nowhere",
        check=False,
    )
    assert cell.stdout == "0 2 42.0 __main__\n"
    assert "`nowhere` cannot be returned from rank 0: it is not defined there" in shown(cell)
    assert scripts.run("print(answer)").stdout == "tensor([42.])\n"
    assert printed_by(scripts, 1) == "1 2 42.0 __main__\n"


@BOTH
def test_the_true_cause_is_told(scripts: Kernel, launcher: Launcher, how: str) -> None:
    if how and launcher.stays:
        pytest.skip("--cold is for scripts")
    cell = on_ranks(
        scripts,
        """
        print("before")
        if rank == 1:
            raise ValueError("the true cause")
        summed(torch.ones(1))
        """,
        f"{launcher.flags} {how}",
        check=False,
    )
    told = shown(cell)
    assert "Rank 1 failed: ValueError: the true cause (cell line 4)" in told
    assert 'raise ValueError("the true cause")' in told
    assert cell.reply is not None
    assert re.search(rf'Cell In\[{cell.reply["execution_count"]}\]"?, line 4', told)
    assert cell.stdout == "before\n"


def test_a_killed_rank_is_named(scripts: Kernel, launcher: Launcher) -> None:
    cell = on_ranks(
        scripts,
        """
        import os, signal
        if rank == 1:
            print("last words")
            os.kill(os.getpid(), signal.SIGKILL)
        summed(torch.ones(1))
        """,
        launcher.flags,
        check=False,
    )
    assert "Rank 1 was killed by SIGKILL" in shown(cell)
    assert "last words" in shown(cell)


@BOTH
def test_a_rank_that_somebody_else_terminates_is_named(
    scripts: Kernel, of_scripts: Launcher, how: str, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    body = f"""
        import os, signal, time
        while not os.path.exists({str(go)!r}): time.sleep(0.05)
        if rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(600)
        """
    in_background_until(scripts, body, f"{of_scripts.flags} {how}", [3, 3])
    go.touch()
    cell = scripts.run("job.wait()", check=False)
    assert "Rank 1 " in cell.error.splitlines()[0]
    assert "SIGTERM" in cell.error or "got signal: 15" in cell.error
    assert "Rank 0 was stopped" in cell.error


@pytest.mark.parametrize("where", ["collective", "python"])
def test_an_interrupt_ends_it(scripts: Kernel, launcher: Launcher, where: str) -> None:
    waits = "summed(torch.ones(1))" if where == "collective" else "time.sleep(600)"
    before = family(scripts)
    scripts.start(
        distributed(
            f"""
            import time
            print("begun", flush=True)
            if rank == 0:
                {waits}
            time.sleep(600)
            """,
            launcher.flags,
        )
    )
    scripts.expect("begun", 60)
    scripts.interrupt()
    cell = scripts.wait(30)
    assert "The cell was interrupted." in shown(cell)
    if launcher.stays:
        assert on_ranks(scripts, "print(summed(torch.ones(1)))").stdout == "tensor([2.])\n"
    else:
        all_end([process for process in family(scripts) if process not in before])


def test_a_hang_is_told(start_kernel: KernelFactory, launcher: Launcher) -> None:
    kernel = start_kernel(env={"NBDIST_HANG_SECONDS": "1"})
    kernel.run("%load_ext nbdist\n" + launcher.setup)
    kernel.start(
        distributed(
            """
            import time
            if rank == 0:
                summed(torch.ones(1))
            else:
                time.sleep(600)
            """,
            launcher.flags,
        )
    )
    kernel.expect("Possible hang: ", 60)
    kernel.expect(
        "rank 1 has not reached it (cell line 6", 60
    )  # its last word may have been an earlier line
    kernel.interrupt()
    told = shown(kernel.wait(30))
    assert "rank 0 has waited in all" in told
    assert "rank 1 has not reached it (cell line 6" in told
    assert "no longer wait" not in told, "it was stopped, and not resolved"


def test_all_of_its_sockets_are_on_loopback(scripts: Kernel, launcher: Launcher) -> None:
    scripts.start(
        distributed(
            """
            import time
            summed(torch.ones(1))
            print("connected", flush=True)
            time.sleep(600)
            """,
            launcher.flags,
        )
    )
    scripts.expect("connected", 60)
    found = listening(scripts)
    scripts.interrupt()
    scripts.wait(30)
    assert found
    assert found <= {"127.0.0.1", "::1"}


@BOTH
def test_nothing_outlives_the_kernel(kernel: Kernel, of_scripts: Launcher, how: str) -> None:
    launcher = of_scripts
    kernel.run("%load_ext nbdist\n" + launcher.setup)
    kernel.start(distributed(TRAIN, f"{launcher.flags} {how}"))
    kernel.expect("training", 60)
    processes = family(kernel) + marked(kernel)  # one `sleep` has left the family
    os.kill(kernel.pid, signal.SIGKILL)
    all_end(processes)
    until(lambda: not marked(kernel))


def marked(kernel: Kernel) -> list[psutil.Process]:
    """Return what runs with a kernel's mark in its environment, whoever its parents are."""
    mark = kernel.mark
    return [p for p in psutil.process_iter() if environment(p).get(KERNEL_MARK) == mark]


def test_torchrun_without_torch_is_refused() -> None:
    with pytest.raises(LaunchError, match="--launcher torchrun needs PyTorch"):
        torchrun.check("")


@pytest.mark.starts_processes
def test_agents_that_cannot_be_forks_say_why_and_how_they_ended(tmp_path: Path) -> None:
    """Their parent is as on another host; it may have a child that an import has started."""
    code = """if True:
        import subprocess
        other = subprocess.Popen(["true"])
        from nbdist.launchers import agents
        agents.main()
    """
    wanted = {
        "agents": [{"place": 3, "flags": ["--no-such-flag"]}],
        "program": str(tmp_path / "program.json"), "token": "none", "cold": False,
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(wanted)],
        capture_output=True, text=True, timeout=allowed(60), check=False,
        env={**os.environ, "NBDIST_NO_FORK": "1"},
    )  # fmt: skip
    assert done.stdout == "nbdist: agent 3 ended with 2\n", done.stderr
    assert "ranks are not forked here: NBDIST_NO_FORK is set" in done.stderr
    assert "unrecognized arguments: --no-such-flag" in done.stderr
    assert done.returncode == 1


@pytest.mark.starts_processes
def test_a_host_whose_agents_have_ended_is_not_ended_again() -> None:
    """The number of their parent is nobody's by then, or somebody else's."""
    code = """if True:
        import os
        from nbdist.launchers.agents import Agents
        from nbdist.launchers.nodes import Node, Place
        place = Place(Node("", "127.0.0.1", []), Agents([], "", "none", False))
        place.start_here()
        assert os.read(place.output, 9) == b""
        print(place.ended())
        place.end()
    """
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, timeout=allowed(60), check=True, start_new_session=True,
    )  # fmt: skip
    assert done.stdout == "0\n"
