"""The same cells, the same truth: on engines, and as scripts of torchrun and horovodrun."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from textwrap import dedent
from typing import TYPE_CHECKING

import psutil
import pytest

from nbdist.errors import LaunchError
from nbdist.launchers.scripts import launcher as interface
from nbdist.launchers.scripts import torchrun
from tests.helpers.faults import shown
from tests.helpers.kernel import KERNEL_MARK
from tests.helpers.notebook import (
    distributed,
    forget_environment,
    in_background_until,
    on_ranks,
    printed_by,
)
from tests.helpers.processes import environment, family, listening
from tests.helpers.waiting import allowed, until
from tests.test_orphans import all_end

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conftest import KernelFactory
    from tests.helpers.cell import Cell
    from tests.helpers.kernel import Kernel

pytestmark = pytest.mark.repeats

BOTH = pytest.mark.parametrize("how", ["", "--cold"], ids=["warm", "cold"])
CHILDREN = """
import subprocess, time
child = subprocess.Popen(["sleep", "600"])
subprocess.run(["setsid", "--fork", "sleep", "600"], check=True)
"""
TRAIN = f"""{CHILDREN}
from torch.utils.data import DataLoader
loader = iter(DataLoader(list(range(100_000)), num_workers=1))
while True:
    next(loader)
    summed(torch.ones(1))
    open(begun + str(rank), "w").close()
    time.sleep(0.05)
"""
FORK = f"""{CHILDREN}
import multiprocessing
multiprocessing.get_context("fork").Process(target=time.sleep, args=[600]).start()
open(begun + str(rank), "w").close()
time.sleep(600)
"""
"""The same without torch, which each cold rank would have to import."""
NO_TORCH = """
import os, sys
if {"RANK", "HOROVOD_RANK"} & os.environ.keys():
    sys.modules["torch"] = None
"""
OWN_SCRIPT = """
answer = shifted(summed(torch.ones(1)))
print(rank, world_size, answer.item(), __name__)
if world_size > 2: nowhere = answer
"""


@dataclass(frozen=True)
class Launcher:
    """How a launcher is asked for, and what the notebook defines for its cells."""

    name: str
    backend: str
    setup: str
    stays: bool = False
    """Whether its ranks outlive a cell."""

    @property
    def flags(self) -> str:
        """Flags for two ranks."""
        return f"-np 2 --launcher {self.name} --backend {self.backend}"

    def light(self, folder: Path) -> str:
        """Return flags for two cold ranks that find no torch, which takes most of their time.

        torchrun itself needs it. In the folder stands what Python imports first of all.
        """
        (folder / "sitecustomize.py").write_text(NO_TORCH)
        path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
        return f"-np 2 --launcher {self.name} --backend none --cold --env PYTHONPATH={path}"


TORCHRUN = Launcher(
    "torchrun",
    "ddp",
    "import torch, torch.distributed as dist\n"
    "def summed(x):\n    dist.all_reduce(x)\n    return x\n",
)
ENGINES = Launcher("engines", "ddp", TORCHRUN.setup, stays=True)
HOROVODRUN = Launcher(
    "horovodrun",
    "horovod",
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
def shared_kernel(start_shared: KernelFactory) -> Kernel:
    """Return a kernel that soon tells of a hang."""
    return start_shared(env={"NBDIST_HANG_SECONDS": "1"})


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
    if "scripts" not in request.fixturenames:
        yield
        return
    kernel = request.getfixturevalue("scripts")
    forget_environment(kernel)
    yield
    for name in ("program.json", "rendezvous", "elastic", "horovod"):
        assert not list(kernel.home.glob(f"logs/*/{name}"))


def run_own_script(kernel: Kernel, flags: str, more: str = "") -> Cell:
    """Run a cell that uses the notebook's names; check what comes back to the notebook."""
    kernel.run("offset = torch.tensor([40.0])\ndef shifted(x):\n    return x + offset")
    flags += " --return answer,nowhere"
    cell = on_ranks(kernel, OWN_SCRIPT + more, flags, check=False)
    assert "`nowhere` cannot be returned from rank 0: it is not defined there" in shown(cell)
    assert kernel.run("print(answer)").stdout == "tensor([42.])\n"
    return cell


@pytest.mark.parametrize(
    ("launcher", "how"),
    [
        pytest.param(TORCHRUN, "", id="torchrun-warm"),
        pytest.param(TORCHRUN, "--cold", id="torchrun-cold"),
        pytest.param(HOROVODRUN, "", id="horovodrun-warm", marks=pytest.mark.horovod),
    ],
    indirect=["launcher"],
)
def test_a_cell_is_a_script_of_its_own(scripts: Kernel, launcher: Launcher, how: str) -> None:
    """The cold ranks of horovodrun do the same in `test_horovodrun`."""
    cell = run_own_script(scripts, f"{launcher.flags} {how}")
    assert cell.stdout == "0 2 42.0 __main__\n"
    assert printed_by(scripts, 1) == "1 2 42.0 __main__\n"


@BOTH
def test_the_true_cause_is_told(
    scripts: Kernel, launcher: Launcher, how: str, tmp_path: Path
) -> None:
    """Cold ranks that wait for each other when one raises are in `test_hosts`."""
    if how and launcher.stays:
        pytest.skip("--cold is for scripts")
    go = str(tmp_path / "go")
    waits = "time.sleep(600)" if how else "summed(torch.ones(1))"
    cell = on_ranks(
        scripts,
        f"""
        import os, time
        print("before")
        if rank == 1:
            while not os.path.exists({go!r}): time.sleep(0.05)
            raise ValueError("the true cause")
        open({go!r}, "w").close()
        {waits}
        """,
        launcher.light(tmp_path) if how else launcher.flags,
        check=False,
    )
    told = shown(cell)
    assert "Rank 1 failed: ValueError: the true cause (cell line 6)" in told
    assert 'raise ValueError("the true cause")' in told
    assert cell.reply is not None
    assert re.search(rf'Cell In\[{cell.reply["execution_count"]}\]"?, line 6', told)
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
    flags = of_scripts.light(tmp_path) if how else of_scripts.flags
    in_background_until(scripts, body, flags, [3, 3])
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


def test_a_hang_is_told(scripts: Kernel, launcher: Launcher) -> None:
    scripts.start(
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
    scripts.expect("Possible hang: ", 60)
    scripts.expect(
        "rank 1 has not reached it (cell line 6", 60
    )  # its last word may have been an earlier line
    scripts.interrupt()
    told = shown(scripts.wait(30))
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


@pytest.mark.timeout(200)
def test_nothing_outlives_the_kernel(kernel: Kernel, tmp_path: Path) -> None:
    """Each launcher has two jobs then: one whose ranks are forks, which train, and a cold one."""
    kernel.run("%load_ext nbdist")
    launchers = [TORCHRUN, *([HOROVODRUN] if find_spec("horovod") else [])]
    expected = 0
    for cold in (True, False):  # those that train take time while others begin
        for launcher in launchers:
            begun = f"begun = {str(tmp_path / f'began-{launcher.name}-{cold}-')!r}\n"
            body = FORK if cold else launcher.setup + TRAIN
            flags = launcher.light(tmp_path) if cold else launcher.flags
            on_ranks(kernel, begun + body, f"{flags} --async")
            expected += 2
        until(lambda all_=expected: len(list(tmp_path.glob("began-*"))) == all_, 60)  # type: ignore[misc]
    processes = family(kernel) + marked(kernel)  # some `sleep`s have left the family
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
        from nbdist.launchers.scripts import torchrun_agents
        torchrun_agents.main()
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
        from nbdist.launchers.scripts.torchrun_agents import Agents
        from nbdist.launchers.scripts.torchrun_on_hosts import Node, Place
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


@pytest.mark.parametrize("name", ["torchrun", "horovodrun", "python"])
def test_each_launcher_has_the_whole_interface(name: str) -> None:
    """No type checker can see that of a module that is imported by its name."""
    asked = [each for each in vars(interface.Launcher) if not each.startswith("_")]
    asked += interface.Launcher.__annotations__
    assert not [each for each in asked if not hasattr(interface.launcher(name), each)]
    assert isinstance(interface.launcher(name).needs([]), interface.Needs)


@pytest.mark.starts_processes
def test_agents_that_do_not_end_hold_the_launcher_of_several_up_no_longer(tmp_path: Path) -> None:
    """What an agent runs stands in for torch's, which takes seconds to import."""
    code = """
        import os, pathlib, signal, socket, sys, threading, time, types
        def deaf(*_):
            signal.signal(signal.SIGTERM, lambda *_: None)
            pathlib.Path("began").touch()
            while True: time.sleep(600)
        sys.modules["nbdist.rank.script_rank"] = types.SimpleNamespace(main=None)
        sys.modules["nbdist.backends.torch_private.elastic_agents"] = types.SimpleNamespace(
            run=deaf,
            listen=lambda address: socket.create_server((address, 0)),
            Table=lambda _: types.SimpleNamespace(is_ready=lambda *_: False),
        )
        from nbdist.launchers.scripts import torchrun_on_hosts
        from nbdist.launchers.scripts.torchrun_on_hosts import Node, Nodes
        torchrun_on_hosts.END_SECONDS = 0.1
        def end():
            while not os.path.exists("began"): time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGTERM)
        node = Node("", "127.0.0.1", [1])
        wanted = Nodes([node], "127.0.0.1", 1, [], "logs", "", "none")
        launcher = torchrun_on_hosts.Launcher(wanted, "program.json")
        threading.Thread(target=end, daemon=True).start()
        print(launcher.run(), os.waitpid(launcher._places[0].pid, os.WNOHANG))
    """
    done = subprocess.run(
        [sys.executable, "-c", dedent(code)],
        capture_output=True, text=True, timeout=allowed(60), check=True, cwd=tmp_path,
    )  # fmt: skip
    assert done.stdout == "1 (0, 0)\n"
