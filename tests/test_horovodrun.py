"""`--launcher horovodrun`: what is its own; the rest is in `test_launchers`."""

from __future__ import annotations

import asyncio
import importlib
import socket
import subprocess
import sys
from contextlib import nullcontext
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from nbdist.backends.horovod import listening as servers
from nbdist.errors import LaunchError, UsageError
from nbdist.launchers.scripts import horovodrun
from nbdist.launchers.scripts.hosts import hosts_named
from nbdist.launchers.scripts.launcher import Launch
from tests.helpers.faults import LOST, shown
from tests.helpers.notebook import distributed, forget_environment, on_ranks, printed_by
from tests.helpers.processes import listening
from tests.helpers.waiting import allowed
from tests.test_launchers import HOROVODRUN, run_own_script

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import KernelFactory
    from tests.helpers.cell import Cell
    from tests.helpers.kernel import Kernel

FLAGS = "-np 2 --backend horovod"
MEET = "import os\nprint(os.environ['HOROVOD_GLOO_TIMEOUT_SECONDS'])"
PLACES = """
    import os
    hvd.allreduce(torch.ones(1))
    names = "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "HOROVOD_HOSTNAME"
    print(*(os.environ[name] for name in names))
"""


@pytest.fixture(scope="module")
def shared_kernel(start_shared: KernelFactory) -> Kernel:
    """Return a kernel in whose environment stands what a rank of another job would find."""
    return start_shared(env={"HOROVOD_RANK": "1", "HOROVOD_SIZE": "4"})


@pytest.fixture(scope="module")
def before_imports(shared_kernel: Kernel) -> tuple[Cell, Cell]:
    """Return cells that use torch and Horovod, and Horovod alone; nothing was imported then."""
    shared_kernel.run("%load_ext nbdist")
    cell = on_ranks(
        shared_kernel, "print(hvd.rank(), hvd.size(), torch.ones(1))", FLAGS, check=False
    )
    return cell, on_ranks(shared_kernel, "print(hvd.rank(), hvd.size())", FLAGS)


@pytest.fixture(scope="module")
def horovod(shared_kernel: Kernel, before_imports: tuple[Cell, Cell]) -> Kernel:
    """Return a kernel with nbdist and Horovod loaded."""
    assert before_imports
    shared_kernel.run("import torch, horovod.torch as hvd")
    return shared_kernel


@pytest.fixture(autouse=True)
def _no_environment_of_others(request: pytest.FixtureRequest) -> None:
    """Let each test begin without an `--env`."""
    if "horovod" in request.fixturenames:
        forget_environment(request.getfixturevalue("horovod"))


@pytest.fixture(scope="module")
def plain(shared_kernel: Kernel) -> Kernel:
    """Return a kernel with nbdist loaded; there need not be a Horovod."""
    shared_kernel.run("%load_ext nbdist")
    return shared_kernel


@pytest.mark.horovod
def test_hosts_and_their_slots(horovod: Kernel) -> None:
    cell = on_ranks(horovod, PLACES, "--backend horovod -H localhost:1,127.0.0.1:1")
    assert cell.stdout == "0 0 2 1 localhost\n"
    assert printed_by(horovod, 1) == "1 0 2 1 127.0.0.1\n"


@pytest.mark.horovod
def test_cold_ranks_do_what_warm_ones_do(horovod: Kernel, tmp_path: Path) -> None:
    """Here and in `test_launchers`: a script of its own, hosts and slots, time to start."""
    file = tmp_path / "hosts"
    file.write_text("# both are this machine\nlocalhost slots=1\n\n127.0.0.1 slots=1\n")
    horovod.run(HOROVODRUN.setup)
    cell = run_own_script(
        horovod,
        f"--backend horovod --hostfile {file} --cold",
        dedent(PLACES) + MEET,
    )
    seconds = start_seconds(horovod)
    assert cell.stdout == f"0 2 42.0 __main__\n0 0 2 1 localhost\n{seconds}"
    assert printed_by(horovod, 1) == f"1 2 42.0 __main__\n1 0 2 1 127.0.0.1\n{seconds}"


@pytest.mark.horovod
def test_flags_of_horovods_own(horovod: Kernel) -> None:
    body = "import os\nprint(os.environ['HOROVOD_FUSION_THRESHOLD'])"
    cell = on_ranks(horovod, body, f"{FLAGS} --launcher-flags '--fusion-threshold-mb 3'")
    assert cell.stdout == f"{3 * 2**20}\n"


def start_seconds(kernel: Kernel) -> str:
    """Return how long nbdist waits for a rank to start, in whole seconds."""
    look = "import math, os\nprint(math.ceil(float(os.environ['NBDIST_START_SECONDS'])))"
    return kernel.run(look).stdout


@pytest.mark.horovod
@pytest.mark.parametrize(
    ("flags", "seconds"),
    [
        ("", None),
        ("--env HOROVOD_GLOO_TIMEOUT_SECONDS=70", "70"),
        ("--launcher-flags '--gloo-timeout-seconds 71'", "71"),
    ],
)
def test_ranks_wait_for_one_that_still_starts_as_long_as_nbdist_does(
    horovod: Kernel, flags: str, seconds: str | None
) -> None:
    told = on_ranks(horovod, MEET, f"{FLAGS} {flags}").stdout
    assert told == (f"{seconds}\n" if seconds else start_seconds(horovod))


@pytest.mark.horovod
def test_its_optimizer_trains(horovod: Kernel) -> None:
    cell = on_ranks(
        horovod,
        """
        torch.manual_seed(rank)
        model = torch.nn.Linear(4, 1)
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
        )
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
        weights = hvd.allgather(model.weight.detach())
        print(torch.equal(weights[0], weights[1]))
        """,
        FLAGS,
    )
    assert cell.stdout == "True\n"


@pytest.mark.horovod
def test_a_function_is_called_on_every_rank(horovod: Kernel) -> None:
    call = """
import nbdist
def summed(x):
    return hvd.allreduce(torch.tensor([x + hvd.rank()]), op=hvd.Sum).item()
print(nbdist.launch(summed, 1, np=2, backend="horovod"))
"""
    assert horovod.run(call).stdout == "[3, 3]\n"


@pytest.mark.horovod
def test_an_elastic_job_takes_in_a_rank_and_goes_on_without_it(
    horovod: Kernel, tmp_path: Path
) -> None:
    script, more = tmp_path / "hosts.sh", tmp_path / "more"
    script.write_text(f"#!/bin/sh\necho localhost:1\n[ ! -e {more} ] || echo 127.0.0.1:1\n")
    script.chmod(0o700)
    horovod.start(
        distributed(
            """
            import os, time
            state = hvd.elastic.TorchState(model=torch.nn.Linear(1, 1), step=0)
            @hvd.elastic.run
            def train(state):
                print("size", hvd.size(), flush=True)
                began = state.step
                while hvd.size() == 2 or state.step < began + 10 or not began:
                    hvd.allreduce(torch.ones(1))
                    if rank == 1 and os.path.exists("looked"):
                        os.kill(os.getpid(), 9)
                    state.step += 1
                    state.commit()
                    time.sleep(0.05)
                time.sleep(1)
            train(state)
            print("ended with", hvd.size())
            """,
            "-np 1 --backend horovod --launcher horovodrun --min-np 1 --max-np 2 "
            f"--host-discovery-script {script} "
            # In which the rank that is there waits for the newcomer's imports.
            f"--env HOROVOD_GLOO_TIMEOUT_SECONDS={allowed(60):.0f}",
        )
    )
    horovod.expect("size 1", 100)
    more.touch()
    horovod.expect("size 2", 100)
    found = listening(horovod)
    (horovod.home / "looked").touch()
    cell = horovod.wait(100)
    assert found
    assert found <= {"127.0.0.1", "::1"}
    sizes = [line for line in cell.stdout.splitlines() if "size" in line or "ended" in line]
    assert sizes == ["size 1", "size 2", "size 1", "ended with 1"]
    assert LOST.search(shown(cell))


@pytest.mark.horovod
def test_a_rank_lost_just_before_a_good_end_is_told(horovod: Kernel, tmp_path: Path) -> None:
    script = tmp_path / "hosts.sh"
    script.write_text("#!/bin/sh\necho localhost:1\necho 127.0.0.1:1\n")
    script.chmod(0o700)
    # As if the job ended between two looks at its ranks.
    looks = "nbdist.hub.running.watch.LOOK_AT_RANKS_SECONDS"
    horovod.run(f"import nbdist.hub.running.watch\nlooks, {looks} = {looks}, 10**9")
    try:
        cell = on_ranks(
            horovod,
            """
            import os
            state = hvd.elastic.TorchState(model=torch.nn.Linear(1, 1))
            @hvd.elastic.run
            def train(state):
                if hvd.size() == 2:
                    hvd.allreduce(torch.ones(1))
                    if rank == 1:
                        os.kill(os.getpid(), 9)
                    hvd.allreduce(torch.ones(1))
            train(state)
            print("ended with", hvd.size())
            """,
            "-np 2 --backend horovod --launcher horovodrun --min-np 1 --max-np 2 "
            f"--host-discovery-script {script}",
        )
    finally:
        horovod.run(f"{looks} = looks")
    assert "ended with 1" in cell.stdout
    assert LOST.search(shown(cell))


@pytest.mark.horovod
def test_a_rank_whose_cell_raises_is_told_and_replaced(horovod: Kernel, tmp_path: Path) -> None:
    script, more = tmp_path / "hosts.sh", tmp_path / "more"
    third = f"[ ! -e {more} ] || echo {socket.gethostname()}:1\n"
    script.write_text(f"#!/bin/sh\necho localhost:1\necho 127.0.0.1:1\n{third}")
    script.chmod(0o700)
    cell = on_ranks(
        horovod,
        f"""
        import pathlib, time
        more = pathlib.Path({str(more)!r})
        state = hvd.elastic.TorchState(model=torch.nn.Linear(1, 1), step=0)
        @hvd.elastic.run
        def train(state):
            print("size", hvd.size(), flush=True)
            while hvd.size() == 1 or not more.exists() or state.step < 20:
                hvd.allreduce(torch.ones(1))
                state.step += 1
                if rank == 1 and not more.exists() and state.step == 5:
                    raise ValueError("bad batch")
                if hvd.size() == 1:
                    more.touch()
                    time.sleep(0.1)
                state.commit()
        train(state)
        step = state.step
        """,
        "-np 2 --return step --backend horovod --launcher horovodrun --min-np 1 --max-np 2 "
        f"--host-discovery-script {script} "
        f"--env HOROVOD_GLOO_TIMEOUT_SECONDS={allowed(60):.0f}",
        timeout=100,
    )
    assert [line for line in cell.stdout.splitlines() if "size" in line] == [
        "size 2", "size 1", "size 2",
    ]  # fmt: skip
    how = "failed: ValueError: bad batch (cell line 12)"
    assert shown(cell).count(f"Rank 1 {how}; the job goes on if enough ranks are left.") == 1
    assert horovod.run("step >= 20").text == "True\n"


@pytest.mark.horovod
def test_an_elastic_job_that_horovod_gives_up_says_why(horovod: Kernel, tmp_path: Path) -> None:
    """Of the two ranks that Horovod ends then, one heeds SIGTERM, and one does not.

    Their group is shut down before a rank is lost: in a collective at that moment, one of them
    could wait for the other, and both would be busy for Horovod's 30 s.
    """
    script = tmp_path / "hosts.sh"
    script.write_text("#!/bin/sh\necho localhost:3\n")
    script.chmod(0o700)
    cell = on_ranks(
        horovod,
        """
        import os, signal
        from horovod.common.exceptions import HorovodInternalError
        signal.signal(signal.SIGTERM, signal.SIG_IGN if rank == 2 else signal.SIG_DFL)
        state = hvd.elastic.TorchState(model=torch.nn.Linear(1, 1), step=0)
        @hvd.elastic.run
        def train(state):
            for state.step in range(10):
                hvd.allreduce(torch.ones(1))
                state.commit()
            hvd.shutdown()
            if rank == 1:
                os._exit(3)
            raise HorovodInternalError("as in a collective without rank 1")
        train(state)
        """,
        "-np 3 --backend horovod --launcher horovodrun --min-np 1 "
        f"--host-discovery-script {script}",
        check=False,
        timeout=100,
    )
    assert cell.error.startswith("CellFailed: Rank 1 exited with code 3"), cell.seen()
    assert "was killed by" not in shown(cell)
    assert "Horovod gives up a host when a rank on it ends badly" in shown(cell)
    assert "localhost:1 and 127.0.0.1:1" in shown(cell)


@pytest.mark.horovod
def test_an_unknown_flag_is_named(horovod: Kernel) -> None:
    cell = on_ranks(horovod, "pass", f"{FLAGS} --launcher-flags --no-such-flag", check=False)
    assert "unrecognized arguments: --no-such-flag" in shown(cell)


@pytest.mark.horovod
def test_mpi_that_is_not_built_is_refused(horovod: Kernel) -> None:
    if horovod.run("print(hvd.mpi_built())").stdout != "False\n":
        pytest.skip("this Horovod was built with MPI")
    told = shown(on_ranks(horovod, "pass", f"{FLAGS} --launcher-flags --mpi", check=False))
    assert "--mpi: this Horovod was built without MPI" in told


@pytest.mark.horovod
def test_the_notebook_need_not_import_it(before_imports: tuple[Cell, Cell]) -> None:
    refused, cell = before_imports
    assert "`torch` has no value" in shown(refused)
    assert cell.stdout == "0 2\n"


def test_without_horovod_it_says_what_to_do(plain: Kernel) -> None:
    plain.run("import sys; kept = sys.modules.get('horovod'); sys.modules['horovod'] = None")
    cell = on_ranks(plain, "pass", "-np 2 --launcher horovodrun --backend none", check=False)
    plain.run("del sys.modules['horovod']\nif kept: sys.modules['horovod'] = kept")
    assert "-m nbdist.install horovod" in shown(cell)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("--backend horovod --launcher torchrun", "backend horovod does not go with"),
        ("--backend ddp --launcher horovodrun", "backend ddp does not go with"),
        (f"{FLAGS} --max-restarts 1", "--max-restarts is for scripts"),
        ("-np 2 --launcher engines -H localhost:2", "it needs --launcher torchrun or horovodrun"),
        (f"{FLAGS} -H localhost", "'localhost' is not HOST:SLOTS"),
        (f"{FLAGS} -H localhost:1", "-np 2: the hosts have 1 slots"),
        ("-np 2 --launcher torchrun --host-discovery-script x", "it needs --launcher horovodrun"),
        (f"{FLAGS} --hostfile /nowhere", "--hostfile cannot be read"),
        (f"{FLAGS} --min-np 3", "--min-np 3 is more than -np 2"),
        (f"{FLAGS} --min-np 1", "need --host-discovery-script, or two hosts"),
        (f"{FLAGS} --host-discovery-script /nowhere", "no such program"),
        (f"{FLAGS} -H localhost:2 --hostfile /nowhere", "exclude each other"),
    ],
)
def test_what_cannot_be_is_refused(plain: Kernel, flags: str, told: str) -> None:
    cell = on_ranks(plain, "pass", flags, check=False)
    assert told in shown(cell)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a slots=2\nb slots=two\n", "line 2: 'b slots=two' is not HOST slots=N"),
        ("# none\n\n", "names no host"),
        ("::1\n", "is not HOST slots=N; give an IPv4 address, or a name that ssh knows"),
        ("[fe80::1] slots=1\n", "give an IPv4 address"),
        ("me@a slots=1\n", "set the user in ssh's configuration"),
        ("a slots=1\n\na slots=2\n", "line 3: a is named twice"),
        ("a slots=0\n", "line 1: a has no slots"),
        ("a\xff slots=1\n", "is not text in UTF-8"),
    ],
)
def test_a_file_of_hosts_that_makes_no_sense_is_refused(
    tmp_path: Path, text: str, told: str
) -> None:
    file = tmp_path / "hosts"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(UsageError) as refused:
        hosts_named(None, str(file))
    assert str(file) in str(refused.value)
    assert told in str(refused.value)


def test_hosts_of_a_file_have_a_slot_each_if_it_does_not_say(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("b # the second\n  a   slots = 3\n")
    assert list(hosts_named(None, str(file)).items()) == [("b", 1), ("a", 3)]


def test_its_flags_for_ssh_and_mpi_are_heeded(tmp_path: Path) -> None:
    assert horovodrun.ssh_options(["--cache-capacity", "3"]) == []
    assert horovodrun.ssh_options(["-p", "22", "--ssh-identity-file=k"]) == ["-p", "22", "-i", "k"]
    assert horovodrun.ssh_options(["-p"]) == []  # horovodrun says what it lacks

    def arguments(*passed_on: str) -> list[str]:
        wanted = Launch(
            np=2, max_restarts=0, hosts={}, reached=None, elastic=None,
            passed_on=list(passed_on), temp="", cold=False,
        )  # fmt: skip
        return horovodrun.arguments(wanted, tmp_path, "")

    assert "--gloo" in arguments()
    assert "--gloo" not in arguments("--mpi")


@pytest.mark.starts_processes
def test_whoever_stops_waiting_for_horovods_word_on_mpi_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "slow"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/begun\nexec sleep 600\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    before = psutil.Process().children()

    async def check() -> None:
        checking = asyncio.create_task(horovodrun.check_flags(["--mpi"]))
        while not (tmp_path / "begun").exists():
            await asyncio.sleep(0.01)
        checking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await checking

    asyncio.run(check())
    assert set(psutil.Process().children()) <= set(before)


@pytest.mark.starts_processes
@pytest.mark.parametrize("built", [True, False])
def test_horovods_word_on_mpi_is_its_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, built: bool
) -> None:
    """The program stands in for a Python whose Horovod was built so."""
    program = tmp_path / "says"
    program.write_text(f"#!/bin/sh\necho a warning\necho {built}\n")
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    with nullcontext() if built else pytest.raises(LaunchError, match="was built without MPI"):
        asyncio.run(horovodrun.check_flags(["--mpi"]))


@pytest.mark.horovod
def test_whether_horovod_has_gloo_is_known_without_torch(
    horovod: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = horovod.run("print(hvd.gloo_built())").stdout
    assert own == f"{horovodrun._built_with_gloo()}\n"
    monkeypatch.setattr(horovodrun, "GLOO", b"NoSuch" + b"Controller")
    assert not horovodrun._built_with_gloo()
    launch: Any = importlib.import_module("horovod.runner.launch")
    asked = launch.gloo_built
    found: list[object] = []
    monkeypatch.setattr(launch, "gloo_built", asked)  # put back at the end
    monkeypatch.setattr(launch, "run_commandline", lambda: found.append(launch.gloo_built))
    monkeypatch.setattr(servers, "listen_on", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["pytest"])
    monkeypatch.setenv(horovodrun.MEET, "60")
    horovodrun._run(["-np", "1", "--gloo", horovodrun.RANK])
    assert found == [asked], "Horovod itself is asked then"


@pytest.mark.horovod
def test_a_word_that_is_no_flag_is_not_taken_for_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "argv", ["pytest"])
    with pytest.raises(SystemExit, match="unrecognized arguments: train"):
        horovodrun._parse(["-np", "2", "train", horovodrun.RANK])


@pytest.mark.horovod
@pytest.mark.starts_processes
def test_a_forked_rank_that_does_not_heed_sigterm_is_killed(tmp_path: Path) -> None:
    """The rank's program is a stand-in: what a cell may do."""
    code = """
        import os, signal, sys, threading, time, types
        from nbdist.launchers.scripts import horovodrun
        def deaf(program):
            signal.signal(signal.SIGTERM, lambda *_: open("heard", "x").close())
            open(program, "x").close()
            while True: time.sleep(600)
        sys.modules[horovodrun.RANK] = types.SimpleNamespace(main=deaf)
        horovodrun.END_SECONDS = float(sys.argv[1])  # the rank is to hear SIGTERM first
        others_failed = threading.Event()
        def fail():
            while not os.path.exists("began"): time.sleep(0.01)
            others_failed.set()
        rank = horovodrun.ForkedRank("began")
        threading.Thread(target=fail).start()
        print(rank.run({}, [others_failed]), os.path.exists("heard"))
    """
    done = subprocess.run(
        [sys.executable, "-c", dedent(code), str(allowed(2))],
        capture_output=True, text=True, timeout=allowed(60), check=True, cwd=tmp_path,
    )  # fmt: skip
    assert done.stdout == f"{128 + 9} True\n"
