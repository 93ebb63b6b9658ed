"""Which GPU is whose. There need be none: stand-ins take the place of the driver and of torch's.

What a real GPU does is in tests/gpu.
"""

from __future__ import annotations

import io
import os
import pickle
import re
import sys
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from nbdist.backends.groups import wait_time
from nbdist.cell.script.preamble import preamble
from nbdist.errors import UsageError
from nbdist.hub.hub import Hub
from nbdist.hub.link.ranks import Rank
from nbdist.job.deaths import Death
from nbdist.job.gpu_failures import gpu_failure
from nbdist.job.job import Job
from nbdist.launchers import rank_counts
from nbdist.machine import gpus
from nbdist.notebook import scaling
from nbdist.notebook.session import Wish
from nbdist.published.records import rank_of_cluster
from nbdist.rank.metrics import gpu
from nbdist.rank.metrics.meter import Meter
from nbdist.wire.activity import Vitals
from nbdist.wire.messages import Fault, Pulse
from tests.helpers.notebook import forget_environment, on_ranks

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import KernelFactory
    from tests.helpers.kernel import Kernel

torch: Any = pytest.importorskip("torch")
from nbdist.backends.torch_private import timed_waits  # noqa: E402  # it needs torch, too

GB = 10**9


@pytest.fixture
def eight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process see eight GPUs: a folder of files stands for /dev."""
    for number in range(8):
        (tmp_path / f"nvidia{number}").touch()
    (tmp_path / "nvidiactl").touch()
    monkeypatch.setattr(gpus, "DEVICES", tmp_path)
    monkeypatch.delenv(gpus.VISIBLE, raising=False)


@pytest.mark.parametrize(
    ("named", "seen"),
    [
        (None, ["0", "1", "2", "3", "4", "5", "6", "7"]),
        ("4,5", ["4", "5"]),
        (" 6 , 02", ["6", "2"]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("3,-1,4", ["3"]),
        ("3,8,4", ["3"]),
        ("3,3", []),
        ("GPU-5a1f,GPU-77", ["GPU-5a1f", "GPU-77"]),
        ("MIG-1,MIG-2,MIG-3", ["MIG-1", "MIG-2", "MIG-3"]),
    ],
)
@pytest.mark.usefixtures("eight")
def test_visible_gpus_are_read_as_cuda_reads_them(named: str | None, seen: list[str]) -> None:
    environ = {} if named is None else {gpus.VISIBLE: named}
    assert gpus.visible(environ) == seen
    parts = named is not None and named.startswith("MIG-")  # CUDA shows a process the first
    assert rank_counts.default_size(None, environ) == (1 if parts else len(seen) or 2)


@pytest.mark.usefixtures("eight")
def test_gpus_that_are_chosen_are_counted_among_those_allotted() -> None:
    allotted = {gpus.VISIBLE: "4,5,GPU-77"}
    assert gpus.chosen([0, 1], allotted) == "4,5"
    assert gpus.chosen([2], allotted) == "GPU-77"
    assert gpus.environ_for([1], allotted) == {gpus.VISIBLE: "5"}
    assert rank_counts.default_size([0, 1], allotted) == 2
    with pytest.raises(UsageError, match="there is no GPU 3; 3 can be used here with CUDA_VIS"):
        gpus.chosen([0, 3], allotted)
    with pytest.raises(UsageError, match="no GPU can be seen on this machine with CUDA_VIS"):
        gpus.chosen([0], {gpus.VISIBLE: ""})


@pytest.mark.usefixtures("eight")
def test_torch_is_not_asked_for_gpus_while_modules_are_preloaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda = torch.cuda
    own = cuda.is_available, cuda.device_count
    with gpus.counted_without_torch():
        assert (cuda.is_available, cuda.device_count) == own, "this torch has no CUDA"
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    with gpus.counted_without_torch():
        kept = cuda.is_available, cuda.device_count
        assert [ask() for ask in kept] == [True, 8]
        monkeypatch.setenv(gpus.VISIBLE, "")
        assert [ask() for ask in kept] == [False, 0]
        monkeypatch.delenv(gpus.VISIBLE)
    assert (cuda.is_available, cuda.device_count) == own
    assert [ask() for ask in kept] == [ask() for ask in own]
    (gpus.DEVICES / "dxg").touch()
    for number in range(8):
        (gpus.DEVICES / f"nvidia{number}").unlink()
    with gpus.counted_without_torch():
        assert cuda.is_available is own[0], "these GPUs cannot be counted"


def test_gpus_that_cannot_be_counted_are_taken_at_their_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "DEVICES", tmp_path)
    assert gpus.count({}) == 0
    (tmp_path / "dxg").touch()  # Windows' GPUs in its Linux
    assert gpus.chosen([1], {}) == "1"
    assert gpus.visible({gpus.VISIBLE: "1"}) == ["1"]


@pytest.mark.usefixtures("eight")
def test_ranks_on_other_hosts_choose_among_those_that_they_see(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(gpus.VISIBLE, "6,7")
    monkeypatch.setenv(gpus.CHOSEN, "1")
    gpus.take()
    assert gpus.visible(dict(os.environ)) == ["7"]


@pytest.mark.usefixtures("eight")
def test_scaling_warns_by_what_is_allotted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(gpus.VISIBLE, "4,5")
    assert scaling.cautions([1, 2], Wish()) == []
    assert "4 ranks on 2 GPUs" in scaling.cautions([1, 4], Wish())[0]
    assert "2 ranks on 1 GPU:" in scaling.cautions([2], Wish(gpus=[1]))[0]


@pytest.fixture
def loaded(shared_kernel: Kernel) -> Kernel:
    """Return a kernel with nbdist loaded; each test says which ranks it needs."""
    shared_kernel.run("%load_ext nbdist")
    forget_environment(shared_kernel)
    return shared_kernel


LOOK = "import os\nprint(local_rank, os.environ.get('CUDA_VISIBLE_DEVICES'))"


def test_a_notebook_with_two_of_eight_gpus(kernel: Kernel, eight: None) -> None:
    del eight
    kernel.run(
        "%load_ext nbdist\n"
        "import os, pathlib, nbdist.machine.gpus\n"
        f"nbdist.machine.gpus.DEVICES = pathlib.Path({str(gpus.DEVICES)!r})\n"
        "os.environ['CUDA_VISIBLE_DEVICES'] = '4,5'"
    )
    shown = on_ranks(kernel, LOOK, "--backend none --output all").text
    assert "0 4,5" in shown
    assert "1 4,5" in shown
    assert "2 4,5" not in shown, "one rank for each that is allotted"
    assert "0 5" in on_ranks(kernel, LOOK, "--gpus 1 -np 1").text
    assert "0 5" in on_ranks(kernel, LOOK, "--launcher torchrun -np 1 --gpus 1").text
    wrong = on_ranks(kernel, LOOK, "--gpus 2", check=False)
    assert "--gpus 2: there is no GPU 2; 2 can be used here with CUDA_VISIBLE_DEVICES=4,5" in (
        wrong.seen()
    )


@pytest.mark.parametrize("how", ["", "--cold"], ids=["warm", "cold"])
def test_what_another_host_lacks_is_said_in_a_line(loaded: Kernel, how: str) -> None:
    flags = (
        f"-np 1 --launcher torchrun {how} --env {gpus.CHOSEN}=7"  # as ranks on other hosts are told
    )
    told = on_ranks(loaded, "print(1)", flags, check=False).seen()
    assert "nbdist: --gpus 7: no GPU can be seen on this machine" in told
    assert "Traceback" not in told


# -- what torch says ---------------------------------------------------------------------------


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """Let torch have four GPUs, of which the bytes that this process holds are returned.

    As torch does, the stand-in has a current one for each thread, number 0 at first.
    """
    held = dict.fromkeys(range(4), 0)
    current = threading.local()

    def here(number: int | None = None) -> int:
        return getattr(current, "number", 0) if number is None else number

    fake = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: len(held),
        "current_device": here,
        "set_device": lambda device: setattr(current, "number", device.index),
        "memory_reserved": lambda number=None: held[here(number)],
        "memory_allocated": lambda number=None: held[here(number)] // 2,
        "utilization": lambda number=None: 10 * here(number),
        "get_allocator_backend": lambda: "native",
    }
    for name, value in fake.items():
        monkeypatch.setattr(torch.cuda, name, value)
    return held


def on_another_thread(look: Any) -> Any:
    """Return what it returns on a thread of its own, as the agent's is."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(look()))
    thread.start()
    thread.join()
    return found[0]


def test_a_ranks_vitals_are_those_of_its_own_gpu(
    cards: dict[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert on_another_thread(gpu.device) == "cuda:3"
    cards[3] = 5 * GB
    meter = Meter()
    taken: Vitals = on_another_thread(meter.read)
    assert (taken.gpu, taken.gpu_memory, meter.device) == (30, 5 * GB, "cuda:3")
    cards[3] = 6 * GB
    assert meter.read(waited=20).gpu_memory == 5 * GB, "who waits may hold the allocator's lock"
    cards[3], cards[1] = 0, GB  # the script has chosen another one
    assert on_another_thread(gpu.device) == "cuda:1"
    assert on_another_thread(gpu.memory) == GB
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "cudaMallocAsync")
    assert gpu.device() == "cuda:3", "other GPUs are not asked, it might open them"


def test_ranks_share_gpus_where_there_are_more_ranks(
    cards: dict[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    from nbdist.backends.ddp.rank_group import Ddp
    from nbdist.backends.groups import nccl

    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 30, 7))
    own = [Ddp(rank=r, local_rank=r, world_size=6).device().index for r in range(6)]
    assert own == [0, 1, 2, 3, 0, 1]
    backends = {}
    for size in (4, 5):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(size))
        backends[size] = nccl.default_backend()
    assert backends == {4: "nccl", 5: "gloo"}
    monkeypatch.setenv(nccl.SHARED_GPU, "1")
    assert nccl.default_backend() == "nccl", "this NCCL can be told to share"
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 27, 5))
    assert nccl.default_backend() == "gloo"
    del cards


@pytest.mark.parametrize(("size", "backend"), [(2, "nccl"), (3, "gloo")])
def test_a_script_forms_the_group_that_its_gpus_allow(
    size: int, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[Any] = []
    formed: list[Any] = []
    cuda = SimpleNamespace(device_count=lambda: 2, set_device=chosen.append)
    distributed = SimpleNamespace(
        init_process_group=lambda *args, **more: formed.append((args, more)), barrier=lambda: None
    )
    stand_in = SimpleNamespace(cuda=cuda, distributed=distributed, device=torch.device)
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)  # the script sets it, and the end of the test takes it away
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(size))
    monkeypatch.setenv("LOCAL_RANK", str(size - 1))
    around = preamble("ddp", set(), forms_group=False)
    own = SimpleNamespace(environ=dict(os.environ))  # it sets what torchrun would
    space: dict[str, Any] = {"os": own, "torch": stand_in}
    exec(around.anywhere + around.joining, space)  # noqa: S102  # a script's own beginning
    device = torch.device("cuda", (size - 1) % 2)
    assert (space["device"], chosen) == (device, [device])
    assert formed == [((backend,), {"device_id": device} if backend == "nccl" else {})]


# -- what a rank holds while it is idle --------------------------------------------------------


def test_an_idle_ranks_gpu_memory_is_seen(tmp_path: Path) -> None:
    rank = Rank(0, tmp_path, state="idle", device="cuda:0")
    hub: Any = SimpleNamespace(ranks={0: rank}, running={})
    Hub._hear_agent(hub, 0, 0, Pulse("", None, "", None, Vitals(0, gpu_memory=3 * GB)))
    told = rank_of_cluster(rank)
    assert (told.state, told.gpu_memory, told.device) == ("idle", 3 * GB, "cuda:0")


def test_an_idle_rank_tells_its_gpu_memory_when_that_changes(loaded: Kernel) -> None:
    on_ranks(
        loaded,
        "import torch\n"  # stands for a GPU, on the rank itself
        "held = 7 * 10**9\n"
        "torch.cuda.is_initialized = lambda: True\n"
        "torch.cuda.device_count = lambda: 1\n"
        "torch.cuda.memory_reserved = lambda device=None: held",
        "-np 1 --launcher engines",
    )
    loaded.run(
        "import time, nbdist\n"
        "from nbdist.published.records import rank_of_cluster\n"
        "def wait_for(size):\n"
        "    end = time.monotonic() + 60\n"
        "    while (seen := rank_of_cluster(nbdist.cluster().ranks[0])).gpu_memory != size:\n"
        "        assert time.monotonic() < end, seen\n"
        "        time.sleep(0.05)\n"
        "    return seen\n"
        "assert wait_for(7 * 10**9).state == 'idle'"
    )
    on_ranks(loaded, "held = 0")
    loaded.run("wait_for(0)")
    loaded.run("%dist restart")  # ranks whose torch is as it was


LOST = """
import os, sys
def lost(how):  # a stand-in: what CUDA and torch print and raise where an index is out of range
    for thread in range(3):
        print("../aten/src/ATen/native/cuda/Indexing.cu:1553: indexSelectLargeIndex: block: "
              f"[0,0,0], thread: [{thread},0,0] Assertion `srcIndex < srcSelectDimSize` failed.",
              file=sys.stderr, flush=True)
    told = (
        "CUDA error: device-side assert triggered\\n"
        "Search for `cudaErrorAssert' in https://docs.nvidia.com/cuda for more information.\\n"
        "CUDA kernel errors might be asynchronously reported at some other API call, so the "
        "stacktrace below might be incorrect.\\n"
        "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\\n"
        "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\\n"
    )
    if how == "cublas":
        told = "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"
    if how == "abort":
        print("terminate called after throwing an instance of 'c10::AcceleratorError'\\n"
              f"  what():  {told}Exception raised from c10_cuda_check_implementation\\n"
              "frame #0: c10::Error::Error(...)\\n" * 2, file=sys.stderr, flush=True)
        os.abort()
    raise RuntimeError(told)
"""
ASSERTS = """
import torch, torch.distributed as dist
if rank in {ranks}:
    lost({how!r})
dist.all_reduce(torch.ones(1))
"""
WHAT = "device-side assert `srcIndex < srcSelectDimSize`: an index out of range, or the like"
ENGINES = "-np 2 --launcher engines"


def told_once(text: str, ranks: str, how: str) -> None:
    """Check what is said of an assert on these ranks: what it was, and nothing of torch's."""
    head = f"{ranks} failed on the GPU: {WHAT}"
    assert text.count(head) == 1
    if how != "abort":  # the rank's last word may have been an earlier line
        assert f"{head} (noticed at cell line 4)" in text
    assert text.count("CUDA_LAUNCH_BLOCKING") == 1
    assert not re.search(r"Search for `|Compile with|might be asyn|terminate called|frame #", text)
    assert "SIGABRT" not in text


@pytest.mark.parametrize("how", ["raise", "cublas", "abort"])
def test_an_assert_on_a_ranks_gpu_is_told_once_with_what_to_do(loaded: Kernel, how: str) -> None:
    loaded.run(LOST)
    on_ranks(loaded, "kept = rank", ENGINES)
    failed = on_ranks(loaded, ASSERTS.format(how=how, ranks=[1]), check=False)
    told_once(failed.error, "Rank 1", how)
    assert "All that rank 1 had on the GPU is lost" in failed.error
    assert "`%dist restart 1 --like 0`" in failed.error
    assert "could not be" not in failed.seen(), "the group is not formed with what is lost"
    if how == "raise":
        refused = loaded.run("%dist sync kept", check=False).seen()
        assert "rank 1 cannot use the GPU any more" in refused
        restarted = loaded.run("%dist restart 1 --like 0").stdout
        assert "Rank 1 restarted, nothing is missing." in restarted
    else:
        assert re.search(r"(?m)^1 .* (has lost its GPU|dead: )", loaded.run("%dist status").stdout)
        next_cell = on_ranks(loaded, "if rank == 1: assert lost").seen()  # it is brought again
        assert "rank 1 has lost its GPU; it is being restarted." in next_cell
    assert on_ranks(loaded, "print(kept if rank == 0 else None)").stdout == "0\n"


def test_an_assert_on_all_gpus_is_told_once(loaded: Kernel) -> None:
    loaded.run(LOST)
    failed = on_ranks(loaded, ASSERTS.format(how="raise", ranks=[0, 1]), ENGINES, check=False)
    told_once(failed.error, "Ranks 0-1", "raise")
    assert "All ranks will be restarted before the next cell" in failed.error
    assert on_ranks(loaded, "print(world_size)").stdout == "2\n"


@pytest.mark.parametrize("how", ["raise", "abort"])
def test_an_assert_on_a_scripts_gpu_is_told_once(loaded: Kernel, how: str) -> None:
    loaded.run(LOST)
    cell = ASSERTS.format(how=how, ranks=[1])
    failed = on_ranks(loaded, cell, "-np 2 --launcher torchrun", check=False)
    told_once(failed.error, "Rank 1", how)


@pytest.mark.parametrize("text", ["CUDA out of memory.", "CUDA error: out of memory", "no GPU"])
def test_after_other_errors_a_gpu_can_be_used(tmp_path: Path, text: str) -> None:
    job = Job(id="7", code="", ranks=(0,), folder=tmp_path, number=1)
    job.parts = {0: (0, None)}
    job.log(0).write_text("CUDA error: device-side assert triggered, says a text\n")
    assert gpu_failure(job, 0, Fault("RuntimeError", text, [], 3, 0.0)) == ""
    assert gpu_failure(job, 0, Death(0, 7, 9, 0, False, 0.0, 3)) == "", "it was killed otherwise"


@pytest.mark.parametrize(
    "kind",
    [
        "an illegal memory access was encountered", "misaligned address",
        "unspecified launch failure", "uncorrectable ECC error encountered",
    ],
)  # fmt: skip
def test_other_errors_that_spoil_a_gpu_are_told_in_their_own_words(
    tmp_path: Path, kind: str
) -> None:
    job = Job(id="7", code="", ranks=(0,), folder=tmp_path, number=1)
    text = f"CUDA error: {kind}\nSearch for `cudaError' and so on"
    assert gpu_failure(job, 0, Fault("AcceleratorError", text, [], 3, 0.0)) == kind


# -- copies ------------------------------------------------------------------------------------


def test_what_lay_on_a_ranks_own_gpu_lies_on_the_others_own(
    cards: dict[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    from nbdist.rank.values import storages

    del cards
    moved: list[Any] = []

    class Stored:
        """Stands for a storage on a GPU, which a machine without one cannot have."""

        def __init__(self, where: str) -> None:
            self.device = torch.device(where)

        def cpu(self) -> Any:
            return torch.tensor([1, 2, 3], dtype=torch.uint8).untyped_storage()

    def sent(where: str, giver: int, taker: int) -> str:
        monkeypatch.setenv("LOCAL_RANK", str(giver))
        rebuild, (data, told) = storages.reduce_for_rank(Stored(where))  # type: ignore[arg-type]
        buffer = io.BytesIO()
        pickle.Pickler(buffer, protocol=5).dump(data)
        monkeypatch.setenv("LOCAL_RANK", str(taker))

        def move(storage: Any, device: Any) -> Any:
            moved.append(device)
            return storage

        monkeypatch.setattr(torch.UntypedStorage, "to", move)
        rebuild(pickle.loads(buffer.getvalue()), told)  # noqa: S301  # what was just pickled
        return str(moved[-1])

    assert sent("cuda:0", 0, 1) == "cuda:1"
    assert sent("cuda:2", 2, 0) == "cuda:0"
    assert sent("cuda:3", 0, 1) == "cuda:3", "one that is not its own stays"
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert storages.reduce_device_for_rank(torch.device("cpu")) is NotImplemented
    rebuild, args = storages.reduce_device_for_rank(torch.device("cuda:0"))
    monkeypatch.setenv("LOCAL_RANK", "2")
    assert rebuild(*args) == torch.device("cuda:2")


def test_names_that_are_brought_land_on_each_ranks_own_gpu(
    cards: dict[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    from nbdist.rank.values.parcels import Packing, unpack
    from nbdist.wire import shared_memory

    del cards
    packing = Packing(1)
    packing.add("where", {"device": torch.device("cuda:0"), "plain": torch.device("cpu")})
    blocks = shared_memory.Blocks()
    parcel = packing.close(blocks, {})
    monkeypatch.setenv("LOCAL_RANK", "3")
    (_, value), *_ = unpack(parcel)
    blocks.close()
    assert value == {"device": torch.device("cuda:3"), "plain": torch.device("cpu")}


def test_a_scripts_values_name_no_gpu_of_the_notebooks() -> None:
    from nbdist.cell.script.value_files import Packer

    packer = Packer(lambda _: "", {})
    ending, content = packer.dump({"where": [torch.device("cuda:1"), torch.device("cpu")]})
    assert ending == "pkl"
    found = pickle.loads(content)  # noqa: S301  # what was just pickled
    assert found == {"where": [torch.device("cuda"), torch.device("cpu")]}


def test_a_ddp_model_names_its_new_ranks_gpu() -> None:
    from nbdist.backends.models import made_equal

    told: dict[str, Any] = {
        "state": {"device_ids": [0], "output_device": 0, "dim": 0},
        "builtin": None,
    }
    made_equal.move(told, 0, 2)
    assert told["state"] == {"device_ids": [2], "output_device": 2, "dim": 0}
    arguments = {"arguments": {"device_ids": ["cuda:0"], "output_device": None}}
    made_equal.move(arguments, 0, 1)
    assert arguments["arguments"] == {"device_ids": ["cuda:1"], "output_device": None}
    made_equal.move(told, None, None)
    assert told["state"]["device_ids"] == [2]


def test_what_a_group_cannot_send_goes_by_way_of_what_it_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from nbdist.backends.models import made_equal

    for config, device, way in [
        ("cuda:nccl", "cpu", "cuda"), ("cuda:nccl", "cuda:1", "cuda:1"),
        ("cpu:gloo,cuda:gloo", "cuda:1", "cpu"), ("cpu:gloo,cuda:nccl", "cuda:1", "cpu"),
        ("cpu:gloo,cuda:gloo", "mps", "cpu"),
    ]:  # fmt: skip
        monkeypatch.setattr(torch.distributed, "get_backend_config", lambda _, is_=config: is_)
        assert made_equal._sent_from(torch.device(device), None) == torch.device(way)


# -- the memory of a process that is gone ------------------------------------------------------


NVML = """
import itertools, sys, types, nbdist
looks = itertools.count()
dead = nbdist.cluster().ranks[1].pid
def running(card):  # stands for a driver that takes its time
    return [types.SimpleNamespace(pid=dead)] if next(looks) < {looks} else []
sys.modules["pynvml"] = types.SimpleNamespace(
    nvmlInit=lambda: None, nvmlShutdown=lambda: None, nvmlDeviceGetCount=lambda: 1,
    nvmlDeviceGetHandleByIndex=lambda number: number, nvmlDeviceGetComputeRunningProcesses=running,
)
nbdist.cluster().hub.ranks[1].gpu_memory = 10**9
"""


def test_a_newcomer_waits_for_the_gpu_memory_of_the_one_before(
    start_kernel: KernelFactory, without_torch: dict[str, str]
) -> None:
    kernel = start_kernel(env=without_torch)
    kernel.run("%load_ext nbdist")
    on_ranks(kernel, "pass", "-np 2 --backend none")
    kernel.run("import nbdist.hub.link.forming\nnbdist.hub.link.forming.GPU_SECONDS = 600")
    kernel.run(NVML.format(looks=3))
    kernel.run("%dist restart 1")
    assert int(kernel.run("print(next(looks))").stdout) >= 4
    kernel.run("nbdist.hub.link.forming.GPU_SECONDS = 0.2")
    kernel.run(NVML.format(looks=10**9))
    told = kernel.run("%dist restart 1").seen()
    assert "The GPU memory of rank 1's ended process (pid" in told


def test_without_a_driver_nobody_holds_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpus.holders() == set()


def test_steps_on_a_gpu_count_like_the_next_one_that_torch_has_measured() -> None:
    """Torch writes its log of a step at a later one, and looks at a GPU only now and then."""
    log: dict[str, int] = {}
    logger = SimpleNamespace(_get_ddp_logging_data=lambda: SimpleNamespace(ints_map=log))
    stand_in: Any = torch.nn.Identity()  # of a DDP model
    stand_in.device_type = "cuda"
    model, before = timed_waits._Model(stand_in), wait_time.so_far()
    model.look(logger, 10.0)
    assert wait_time.so_far() == before, "nothing is in the log before the first backward"
    log |= {"backward_comm_time": 5_000_000, "backward_compute_comm_overlap_time": 2_000_000}
    for now in (10.001, 10.002, 10.001 + timed_waits.MEASURE_SECONDS):
        model.look(logger, now)
    waited = wait_time.so_far()
    assert waited.times == before.times + 1
    assert waited.seconds - before.seconds == pytest.approx(3 * 0.003)
