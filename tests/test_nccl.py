"""What nbdist does with NCCL: stand-ins take the place of NCCL and of its recorder.

What NCCL itself does is in tests/gpu.
"""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import json
import os
import runpy
import socket
import threading
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from nbdist.errors import NbdistError, UsageError
from nbdist.hub.asking import rank_equality
from nbdist.hub.link import forming
from nbdist.hub.link.ranks import Rank
from nbdist.wire.group_reports import Digest, GroupInfo
from nbdist.wire.rank_calls import ListGroups
from tests.helpers.notebook import new_ranks, on_ranks
from tests.helpers.waiting import allowed, within

if TYPE_CHECKING:
    from tests.helpers.kernel import Kernel

torch: Any = pytest.importorskip("torch")
# They need torch, too.
from nbdist.backends.ddp import current_collective, rank_group  # noqa: E402
from nbdist.backends.ddp.joining import Joining  # noqa: E402
from nbdist.backends.ddp.renew_with_new_groups import Anew, Before  # noqa: E402
from nbdist.backends.groups import nccl  # noqa: E402
from nbdist.backends.groups.recovery import Recovery  # noqa: E402
from nbdist.backends.groups.registry import Group, Made  # noqa: E402
from nbdist.backends.torch_private import recorder  # noqa: E402
from nbdist.machine import sockets  # noqa: E402


def record(**parts: Any) -> dict[str, Any]:
    """Return a record as NCCL's flight recorder writes it."""
    return {
        "profiling_name": "nccl:all_reduce", "process_group": ["0", "default_pg"],
        "collective_seq_id": 7, "p2p_seq_id": 0, "is_p2p": False, "state": "scheduled",
        "retired": False, "timeout_ms": 600_000, "time_created_ns": int(time.time() * 1e9),
    } | parts  # fmt: skip


def recording(monkeypatch: pytest.MonkeyPatch, *records: dict[str, Any]) -> None:
    """Have NCCL's recorder hold this."""

    def dump(*, includeCollectives: bool, onlyActive: bool) -> bytes:  # noqa: N803  # torch's names
        del includeCollectives
        ended = [] if onlyActive else [each for each in records if each["state"] == "completed"]
        active = [each for each in records if each["state"] != "completed"]
        return json.dumps({"entries": active + ended} if active + ended else {}).encode()

    monkeypatch.setattr(recorder, "_nccl", dump)
    monkeypatch.setattr(recorder, "_since", 0)


def test_the_nccl_that_is_loaded_decides_whether_ranks_may_share_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Somebody has put a newer one in the place of the one that torch was built with."""

    def tell(number: Any) -> int:
        number._obj.value = 23_007
        return 0

    def not_loaded(*_: object, **__: object) -> None:
        raise OSError

    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 28, 9))
    monkeypatch.setattr(ctypes, "CDLL", not_loaded)
    assert nccl.version() == (2, 28, 9), "what torch was built with"
    loaded = SimpleNamespace(ncclGetVersion=tell)
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: loaded)
    assert nccl.version() == (2, 30, 7)


def test_a_collective_on_a_gpu_is_waited_for_wherever_the_main_thread_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    then = time.time() - 20
    recording(
        monkeypatch,
        record(collective_seq_id=8),
        record(time_created_ns=int(then * 1e9)),
        record(collective_seq_id=6, time_created_ns=1, retired=True),
    )
    seen = current_collective.Watch().look()  # this thread is in no call of torch's
    assert seen is not None
    assert (seen.op, seen.group, seen.seq, seen.limit) == ("all_reduce", "0", 7, 598)
    assert 19 < seen.since < time.time() - then + 1
    recording(monkeypatch)
    assert current_collective.Watch().look() is None


def test_gloos_recorder_is_read_while_the_main_thread_sleeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, watch = threading.Event(), current_collective.Watch()

    def running_collectives() -> list[dict[str, Any]]:
        read.set()
        return []

    monkeypatch.setattr(recorder, "running_collectives", running_collectives)
    monkeypatch.setattr(recorder, "_rested", 0.0)
    graph = tmp_path / "torch" / "autograd" / "graph.py"
    graph.parent.mkdir(parents=True)
    graph.write_text("def backward(do):\n    do()\n")
    backward = runpy.run_path(str(graph))["backward"]
    backward(watch.look)  # the main thread runs: it looks itself
    assert not read.is_set()

    def look() -> None:
        while not read.is_set():
            watch.look()

    looker = threading.Thread(target=look)
    looker.start()
    backward(looker.join)
    assert read.is_set()


def test_a_recorder_that_takes_long_to_read_is_read_seldom(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recording(monkeypatch, record())
    monkeypatch.setattr(recorder, "_rested", 0.0)
    worked = 0.0
    clocks = SimpleNamespace(thread_time=lambda: worked, perf_counter=lambda: 0.0)
    monkeypatch.setattr(recorder, "time", clocks)
    assert recorder.on_gpu()
    assert not recorder.rests()
    quick: Any = recorder._nccl

    def slow(**options: bool) -> Any:
        nonlocal worked
        worked += 2 * recorder.LONG_SECONDS
        return quick(**options)

    monkeypatch.setattr(recorder, "_nccl", slow)
    watch = current_collective.Watch()
    first = watch.look()
    assert first is not None
    assert first.limit > 0
    assert recorder.rests()
    again = watch.look()
    assert again is not None, "the wait is not over because nobody looks"
    assert (again.op, again.seq, again.limit) == (first.op, first.seq, 0), "it is told, and no more"
    assert again.since >= first.since
    assert current_collective.Watch().look() is None, "it was read again at once"
    assert recorder._rested <= recorder.REST_SECONDS < current_collective.BEFORE_SECONDS
    assert recorder.on_gpu(), "whoever must know is told"


def test_recorders_hold_what_is_looked_at_unless_the_user_wants_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for before, after in ((None, "16"), ("5000", "5000")):
        monkeypatch.setenv(recorder.ROOM, before or "")
        if before is None:
            monkeypatch.delenv(recorder.ROOM)
        recorder.hold_few()
        assert os.environ[recorder.ROOM] == after
    monkeypatch.delenv(recorder.ROOM)
    monkeypatch.setenv(recorder.OTHER_ROOM, "7000")
    recorder.hold_few()
    assert recorder.ROOM not in os.environ, "torch would not look at the other"


def test_parts_of_a_batch_that_are_never_noted_as_ended_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    part = record(profiling_name="nccl:send 0->1", is_p2p=True, p2p_seq_id=3)
    alone = record(profiling_name="nccl:recv 0<-1", is_p2p=True, p2p_seq_id=4)
    other = record(
        profiling_name="nccl:send 0->1", is_p2p=True, p2p_seq_id=3, process_group=["5", "mine"]
    )
    batch = record(
        profiling_name="nccl:coalesced", is_p2p=True, p2p_seq_id=3, state="completed", retired=True
    )
    recording(monkeypatch, part, alone, other, batch)
    assert recorder.on_gpu() == [alone, other]
    seen = current_collective.Watch().look()
    assert seen is not None
    assert seen.limit == 0, "one that was broken off is never noted as ended: it is told only"


def test_what_only_has_not_ended_yet_is_not_called_broken_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = iter([[record()], [record()], []])
    monkeypatch.setattr(
        current_collective, "END_SECONDS", 4.0
    )  # or a busy machine is late for all three
    monkeypatch.setattr(recorder, "_nccl", lambda **_: b"{}")
    monkeypatch.setattr(recorder, "on_gpu", lambda: next(answers))
    assert current_collective.unfinished() == set()
    monkeypatch.setattr(current_collective, "END_SECONDS", 0.1)
    monkeypatch.setattr(recorder, "on_gpu", lambda: [record(), record(collective_seq_id=8)])
    assert current_collective.unfinished() == {"all_reduce #7", "all_reduce #8"}
    monkeypatch.setattr(recorder, "on_gpu", lambda: [{"name": "another form"}])
    assert current_collective.unfinished() == {current_collective.NAMELESS}
    assert current_collective.Watch().look() is None
    monkeypatch.setattr(recorder, "_nccl", None)
    assert current_collective.unfinished() == {current_collective.NAMELESS}


def test_what_was_broken_off_is_no_wait_of_the_groups_that_came_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recording(monkeypatch, record(time_created_ns=int((time.time() - 900) * 1e9)))
    assert len(recorder.on_gpu()) == 1
    recorder.forget_older()
    assert recorder.on_gpu() == []


class Stuck:
    """Stands for a communicator whose abort ends when it is told to."""

    def __init__(self) -> None:
        self.calls, self.let_go = 0, threading.Event()

    def abort(self) -> None:
        """Wait, then raise as a communicator does that was aborted before."""
        self.calls += 1
        self.let_go.wait(600)
        raise RuntimeError("NCCL communicator was aborted")


def test_nobody_waits_for_an_abort_longer_than_he_wants() -> None:
    aborting, first, second = nccl.Aborting(), Stuck(), Stuck()
    second.let_go.set()
    aborting.begin([first, second])
    with within(60):
        assert not aborting.over_within(0.1)
        aborting.begin([first, second])
        assert not aborting.over_within(0)
    first.let_go.set()
    assert aborting.over_within(allowed(20))
    assert (first.calls, second.calls) == (1, 1)


def test_a_gpu_that_is_still_at_work_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    let_go, asked = threading.Event(), []
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)

    def synchronize(device: int) -> None:
        asked.append(device)
        let_go.wait()
        raise RuntimeError("an error of the kernel before")

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    assert not nccl.settled_within(0.1)
    let_go.set()
    assert nccl.settled_within(allowed(20)), "the next operation will raise the error again"
    assert asked == [3, 3]


def test_nothing_is_formed_while_nccl_or_the_gpu_is_at_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend, stuck = rank_group.Ddp(rank=1, local_rank=1, world_size=2), Stuck()
    monkeypatch.setattr(rank_group, "LET_GO_SECONDS", 0.1)
    settled = False
    monkeypatch.setattr(nccl, "settled_within", lambda _: settled)
    backend._aborting.begin([stuck])
    with pytest.raises(NbdistError, match="abort on rank 1 has not ended"):
        backend._end_aborts()
    stuck.let_go.set()
    assert backend._aborting.over_within(allowed(20))
    with pytest.raises(NbdistError, match="the GPU of rank 1 is still busy 30 s after"):
        backend._end_aborts()
    settled = True
    backend._end_aborts()


def test_a_store_that_cannot_be_reached_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_group, "_CONNECT_LIMIT", timedelta(seconds=0.1))
    with socket.socket() as nobody:
        nobody.bind((sockets.LOOPBACK, 0))
        port = nobody.getsockname()[1]
        with pytest.raises(NbdistError, match=f"could not reach the store .* 127.0.0.1:{port}"):
            rank_group.Ddp(rank=1, local_rank=1, world_size=2).form(port, 1)


def test_an_error_by_debugging_does_not_end_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
    monkeypatch.delenv("TORCH_DISTRIBUTED_DEBUG", raising=False)
    assert nccl.environ()[name] == "0"
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")
    assert nccl.environ() == nccl.ENVIRON | {name: nccl.CLEAN_UP_ONLY}


class OnGpu:
    """Stands for a group that NCCL serves, as torch shows it."""

    def __init__(self) -> None:
        self.part = object()

    def _get_backend(self, device: Any) -> Any:
        assert device.type == "cuda"
        return SimpleNamespace(wrapped_pg=self.part)


def test_of_groups_made_anew_those_on_gpus_are_aborted(
    one_gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    del one_gpu
    backend = rank_group.Ddp(
        rank=0, local_rank=0, world_size=2, recovery=Recovery(groups="the test says so")
    )
    made = backend._made
    mine, other, plain = OnGpu(), OnGpu(), object()
    kinds = {mine: "cuda:nccl", other: "gloo", plain: "cpu:gloo,cuda:nccl"}
    monkeypatch.setattr(torch.distributed, "get_backend_config", kinds.__getitem__)
    none = torch.distributed.GroupMember.NON_GROUP_MEMBER
    for group in (none, mine, other, plain):  # and there is no WORLD: torch raises for both
        made.groups.append(Group(0, [0], {}, group))
    assert backend._on_nccl() == [mine.part, plain]
    assert not backend.goes_on_when_freed(), "as long as the GPU is not used"
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert backend.goes_on_when_freed()
    del made.groups[1], made.groups[-1]
    assert not backend.goes_on_when_freed()


def test_groups_that_torch_does_not_let_go_of_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made(connections=False)
    anew, there = Anew(made, Joining(0, 2, made, lambda: False)), True

    def destroy() -> None:
        raise ValueError("it is broken")

    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: there)
    monkeypatch.setattr(torch.distributed, "destroy_process_group", destroy)
    with pytest.raises(NbdistError, match=r"not destroy its .* groups: ValueError: it is broken"):
        anew.give_up(Before([], [], 0, None))
    there = False
    anew.give_up(Before([], [], 0, None))


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let torch have a GPU, number 3."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    return torch.device("cuda", 3)


def test_the_group_of_all_ranks_is_bound_to_the_ranks_gpu(one_gpu: Any) -> None:
    asked: list[Any] = []
    joining = Joining(0, 2, Made(connections=False), lambda: False)
    joining._torchs_own = lambda **args: asked.append(args.get("device_id"))
    for backend in ("nccl", "cpu:gloo,cuda:nccl", "gloo"):
        joining.begin(backend, None)
    joining.begin("nccl", None, bound=False)  # as the ranks have it that were there before
    assert asked == [one_gpu, one_gpu, None, None]


def test_what_a_user_asks_for_is_begun_on_our_store_and_bound_to_the_gpu(one_gpu: Any) -> None:
    begun: list[dict[str, Any]] = []

    def begin(**asked: Any) -> None:
        begun.append(asked)

    begin.__signature__ = inspect.signature(torch.distributed.init_process_group)  # type: ignore[attr-defined]
    joining = Joining(0, 1, Made(connections=False), lambda: False)
    joining._torchs_own = begin
    joining.meet([0], None)  # nobody to meet while there is no store
    store = torch.distributed.HashStore()
    joining.on(store)
    joining.ask("nccl", "env://")
    (seen,) = begun
    assert (seen["device_id"], seen["rank"], seen["world_size"]) == (one_gpu, 0, 1)
    assert "init_method" not in seen
    seen["store"].set("seen", "1")
    assert store.get("user/1/seen") == b"1"
    assert store.check(["met/0/1/0"]), "ranks meet before NCCL connects them"


def test_nccl_is_refused_where_ranks_share_a_gpu_and_the_group_stays(
    one_gpu: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    del one_gpu
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    joining = Joining(0, 2, Made(connections=False), lambda: True)
    joining.backend = "gloo"
    joining.ask()  # the formed one is given
    with pytest.raises(
        UsageError, match="nccl needs one GPU for each rank, and the ranks here share 1 GPU:"
    ):
        joining.ask("nccl")


SUBGROUPS = """
import warnings
warnings.simplefilter("ignore")  # this torch has no NCCL
import torch, torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
torch.cuda.is_available, torch.cuda.current_device = lambda: True, lambda: 0  # stands for a GPU
world, device, helper = dist.group.WORLD, torch.device("cuda", 0), c10d._new_process_group_helper
def noting(*args, **kwargs):
    print(str(args[3]), world.bound_device_id, kwargs.get("device_id"))
    raise ValueError("seen")
def make(call, *args, **kwargs):
    world.bound_device_id, c10d._new_process_group_helper = device, noting
    try:
        call(*args, **kwargs)
    except ValueError as error:
        assert str(error) == "seen", error
    finally:
        print(world.bound_device_id)
        world.bound_device_id, c10d._new_process_group_helper = None, helper
make(dist.new_group, [0], backend="nccl")
make(dist.new_group, [0], backend="gloo")
from nbdist.backends.torch_private import process_groups
info = process_groups.describe(world)
import msgspec
part = msgspec.structs.replace(info, name="9", world=False, backend="nccl", bound=True)
make(process_groups.build, part, 0, c10d._get_default_store())
"""


def test_subgroups_are_never_split_from_the_group_of_all_ranks(notebook: Kernel) -> None:
    new_ranks(notebook, 1)
    shown = on_ranks(notebook, SUBGROUPS).stdout
    eager = "nccl None cuda:0\ncuda:0\n"
    assert shown == f"{eager}gloo None None\ncuda:0\n{eager}"


LATE = """
import torch, torch.distributed as dist, nbdist.backends.groups.nccl as nccl
kept, device_of, world = rank, nccl.bound_device, dist.group.WORLD
nccl.bound_device = lambda backend: torch.device("cuda", 0)  # stands for a GPU
world.bound_device_id = torch.device("cuda", 0)
try:
    if rank == 1:
        raise ValueError("boom")
    dist.new_group([0, 1], backend="nccl")
finally:
    nccl.bound_device, world.bound_device_id = device_of, None
"""


ALONE = """
import datetime, torch.distributed as dist
import nbdist.backends.ddp.joining, nbdist.backends.ddp.rank_group
nbdist.backends.ddp.joining.MEET_LIMIT = datetime.timedelta(seconds=1)
joining = nbdist.backends.ddp.rank_group.current._joining
joining.timeout = None
try:
    if rank == 0:
        joining.meet([0, 1], None)
        print("met")
except dist.DistError:
    print("nobody came")
nbdist.backends.ddp.joining.MEET_LIMIT = datetime.timedelta(seconds=600)
dist.barrier()
joining.meet([0, 1], None)
print("met")
"""


def test_who_gives_up_waiting_for_a_group_lets_nobody_pass_alone(notebook: Kernel) -> None:
    new_ranks(notebook, 2)
    shown = on_ranks(notebook, ALONE).stdout  # torch complains, too
    assert shown.endswith("nobody came\nmet\n")
    known = "try:\n    dist.new_group([0, 1, 2])\nexcept ValueError as error:\n    print('told')"
    stand_in = "dist.group.WORLD.bound_device_id = torch.device('cuda', 0)"
    body = (
        f"import torch, nbdist.backends.groups.nccl as nccl\nof = nccl.bound_device\n{stand_in}\n"
    )
    body += f"nccl.bound_device = lambda _: dist.group.WORLD.bound_device_id or 0\n{known}\n"
    body += "nccl.bound_device, dist.group.WORLD.bound_device_id = of, None"
    assert on_ranks(notebook, body).stdout == "told\n", "of ranks that there are none"


def test_who_is_early_for_a_group_on_gpus_can_be_freed(notebook: Kernel) -> None:
    new_ranks(notebook, 2)
    failed = on_ranks(notebook, LATE, check=False).seen()
    assert "Rank 1 failed: ValueError: boom" in failed
    assert "Rank 0 was waiting in new_group at cell line" in failed
    assert on_ranks(notebook, "print(kept)").stdout == "0\n"


NCCL = """
import json, time, torch, nbdist.backends.ddp.rank_group, nbdist.backends.groups.nccl as nccl
from nbdist.backends.torch_private import recorder
class Communicator:  # stands for one that hangs until it is aborted
    hangs, aborted_in = 0.0, ""
    def abort(self):
        Communicator.aborted_in, Communicator.hangs = str(interrupted), 0.0
interrupted = False
communicator = Communicator()
backend = nbdist.backends.ddp.rank_group.current
backend._on_nccl = lambda: [communicator]
torch.cuda.is_initialized, nccl.settled_within = lambda: True, lambda seconds: True
limit = 600
def dump(includeCollectives, onlyActive):
    entry = {
        "profiling_name": "nccl:all_reduce", "process_group": ["0", ""], "collective_seq_id": 7,
        "p2p_seq_id": 0, "is_p2p": False, "retired": False, "timeout_ms": 1000 * limit,
        "time_created_ns": 1e9 * Communicator.hangs,
    }
    return json.dumps({"entries": [entry] if Communicator.hangs else []}).encode()
recorder._nccl = dump
def wait_for_gpu():  # as `.item()` does: it returns when the communicator is aborted
    global interrupted
    Communicator.hangs = time.time()
    while Communicator.hangs:
        try:
            time.sleep(0.01)
        except KeyboardInterrupt:
            interrupted = True
    if interrupted:
        raise KeyboardInterrupt
model = torch.nn.Linear(2, 2)
"""
"""Ranks that believe in NCCL; what they send goes by gloo. `torch.cuda` says that it is in use, and
has no GPU, so that nothing else takes place there."""


def test_what_a_gpu_did_after_an_abort_is_not_trusted(notebook: Kernel) -> None:
    new_ranks(notebook, 3)
    on_ranks(notebook, NCCL)
    failed = on_ranks(
        notebook, "if rank == 1:\n    raise ValueError('boom')\nwait_for_gpu()", check=False
    ).seen()
    assert "Rank 1 failed: ValueError: boom" in failed
    assert "Ranks 0,2 were waiting in all_reduce at cell line" in failed
    assert (
        "On ranks 0,2 the GPU went on computing after a collective was aborted (all_red" in failed
    )
    assert "(all_reduce #7). Values that it has changed since then" in failed
    assert "cannot be trusted, even if they are equal on all ranks. On rank 1 no coll" in failed
    assert "no collective was aborted: `%dist sync model --from 1` copies its values to" in failed
    seen = on_ranks(notebook, "print(rank, Communicator.aborted_in)", "--output all").text
    assert "0 True" in seen, "its next line must not run with what was not finished"
    assert "1 " in seen
    notebook.run("%dist sync model --from 1")
    assert "cannot be trusted" not in on_ranks(notebook, "print(1)").seen(), "it is told once"


def test_a_wait_on_a_gpu_ends_with_the_limit_of_its_group(notebook: Kernel) -> None:
    new_ranks(notebook, 1)
    on_ranks(notebook, NCCL)
    failed = on_ranks(notebook, "limit = 3\nwait_for_gpu()", check=False, timeout=20).seen()
    assert "Rank 0 failed: TimeoutError: all_reduce #7 has waited" in failed
    assert "which is the limit of its process group (0)" in failed
    assert "(cell line 3)" in failed
    assert on_ranks(notebook, "print('on')").stdout == "on\n"


BROKEN = """
import time, nbdist.backends.ddp.rank_group
from nbdist.backends.torch_private import recorder
looks = []
def look(**_):
    looks.append(1)
    raise {error}("as torch has never done before")
recorder._nccl = look
while len(looks) < 3:
    time.sleep(0.05)
"""


@pytest.mark.parametrize("error", ["RuntimeError", "AssertionError"])
def test_a_rank_whose_recorder_cannot_be_read_hears_and_speaks_on(
    notebook: Kernel, error: str
) -> None:
    new_ranks(notebook, 2)
    on_ranks(notebook, BROKEN.format(error=error))
    assert on_ranks(notebook, "for _ in nbdist.progress(range(3)): pass\nprint(2)").stdout == "2\n"
    stuck = "import torch.distributed as dist\nprint('in', flush=True)\nif not rank: dist.barrier()"
    notebook.start(f"%%distributed\n{stuck}\ntime.sleep(600)")
    notebook.expect("in")
    notebook.interrupt()
    assert "The cell was interrupted" in notebook.wait(10).seen()
    assert on_ranks(notebook, "print(1)").stdout == "1\n"


def test_ranks_that_stay_keep_torchs_watchdog_from_ending_them(notebook: Kernel) -> None:
    new_ranks(notebook, 1)
    show = "import os\nprint([os.environ.get(name) for name in sorted({names!r})])"
    shown = on_ranks(notebook, show.format(names=list(nccl.ENVIRON))).stdout
    assert shown == f"{[nccl.ENVIRON[name] for name in sorted(nccl.ENVIRON)]}\n"


def digest(content: str, **parts: Any) -> Digest:
    """Return what a rank tells of something it trains."""
    return Digest("outline", content, **parts)


def test_without_a_sound_rank_nothing_is_advised_that_does_not_help() -> None:
    told = {rank: {"model": digest("same")} for rank in (0, 1)}
    broken = {0: ["all_reduce #7"], 1: ["all_reduce #8"]}
    assert rank_equality._doubtful({}, told) == []
    (note,) = rank_equality._doubtful(broken, told)
    assert note.startswith(
        "On ranks 0-1 the GPU went on computing after a collective was aborted (all_reduce #7, "
    )
    assert note.endswith(
        "No other rank has correct values: load a checkpoint, or re-create the objects."
    )
    shards = {rank: {"model": digest("x", sharded=True)} for rank in (0, 1)}
    (note,) = rank_equality._doubtful({0: ["reduce_scatter #2"]}, shards)
    assert note.endswith("load a checkpoint, or re-create the objects.")
    (note,) = rank_equality._doubtful({0: ["all_reduce #7"]}, {0: {}, 1: {}})
    assert note.endswith("even if they are equal on all ranks.")
    parted = {rank: {"model": digest(text, together=True)} for rank, text in enumerate("ab")}
    (note,) = rank_equality._parted(parted, rank_equality.PARTED, {0: ["all_reduce #7"]})
    assert "--from 1` makes them equal" in note


async def _sharing(devices: list[str], backend: str) -> list[str]:
    async def call(rank: int, question: ListGroups) -> list[GroupInfo]:
        assert (rank, question) == (0, ListGroups())
        return [GroupInfo("0", list(range(len(devices))), backend, 600.0, world=True)]

    ranks = {rank: Rank(rank, Path(), device=device) for rank, device in enumerate(devices)}
    hub: Any = SimpleNamespace(backend="ddp", ranks=ranks, size=len(ranks), call=call)
    return await forming._sharing(hub)


SLOWER = "The process group uses gloo, because nccl needs a GPU for each rank."


@pytest.mark.parametrize(
    ("devices", "backend", "told"),
    [
        (["cpu", "cpu"], "gloo", []),
        (["cuda:0", "cuda:1"], "nccl", []),
        (["cuda:0", "cuda:1", "cuda:0"], "gloo", [f"3 ranks share 2 GPUs. {SLOWER}"]),
        (["cuda:0", "cuda:0"], "nccl", ["2 ranks share 1 GPU under nccl."]),
    ],
)
def test_that_ranks_share_gpus_is_told(devices: list[str], backend: str, told: list[str]) -> None:
    assert asyncio.run(_sharing(devices, backend)) == told
