"""After a fault the next way is tried where one fails: each forced, each broken on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nbdist.backends.groups.recovery import ANEW, FORCE, IN_PLACE, REPLACE, Recovery, told, ways
from tests.helpers.faults import DEAF, MODELS, TRAIN, fails, shown, stopped_by_button
from tests.helpers.notebook import distributed, on_ranks, preload_training
from tests.helpers.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import KernelFactory
    from tests.helpers.kernel import Kernel

FAULT = "step()\nif rank == 1: raise ValueError('boom')\nstep()"
BROKEN = """
def broken(*args, **kwargs):
    raise AttributeError("torch has moved it")
"""
BREAK_GROUPS = f"""{BROKEN}
from nbdist.backends.torch_private import process_groups
if rank == 1: process_groups.refill = broken
"""
BREAK_ALL = f"""{BROKEN}
from nbdist.backends.ddp.rank_group import Ddp
if rank == 1: Ddp.form = broken
"""
# Rank 1 is not known to fail before rank 0 was replaced; were it slow, both would be at once.
BREAK_ALL_RANKS = f"""{BROKEN}
import time
from nbdist.backends.ddp.rank_group import Ddp
def broken_later(*args, **kwargs):
    time.sleep(0.3)
    broken()
Ddp.form = broken_later if rank else broken
"""
BREAK_GIVING = f"""{BREAK_ALL}
import gc
if rank == 1:
    (agent,) = (each for each in gc.get_objects() if type(each).__name__ == "Agent")
    agent._answers.names.give = broken
"""
TOMORROW = """
def change():
    import torch.distributed.distributed_c10d as c10d
    from torch.nn.parallel import DistributedDataParallel
    del c10d.ProcessGroupGloo.create_device
    del DistributedDataParallel._register_builtin_comm_hook
"""
MOVED = "type object 'torch._C._distributed_c10d.ProcessGroupGloo' has no attribute"


BEGIN_ANEW = """
import os, nbdist
from nbdist.settings import Settings
os.environ["NBDIST_RECOVERY"] = {way!r}
cluster = nbdist.cluster()
cluster.hub.settings = Settings.read()  # as a new cluster does
cluster.resize(2)
"""


def begin(kernel: Kernel, kind: str = "ddp", way: str = "") -> None:
    """Give a kernel two new ranks, with a model that has trained a step, and a way to recover."""
    kernel.run(BEGIN_ANEW.format(way=way))
    make(kernel, kind)


def make(kernel: Kernel, kind: str = "ddp", flags: str = "") -> None:
    """Make a model, and train it a step."""
    on_ranks(kernel, MODELS[kind] + "\nown = 10 + rank\nfirst = step()", flags)


def trains(kernel: Kernel) -> None:
    """Train three steps; the ranks must be equal after them."""
    assert on_ranks(kernel, TRAIN).stdout == "trained 3\n"


def torch_of_tomorrow(folder: Path) -> dict[str, str]:
    """Return an environment in which parts of torch that nbdist uses are gone.

    Torch imports what calls itself a backend of it, so that stands in for the release.
    """
    info = folder / "tomorrow-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tomorrow\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[torch.backends]\ntomorrow = tomorrow:change\n")
    (folder / "tomorrow.py").write_text(TOMORROW)
    return {"PYTHONPATH": str(folder), "XDG_CACHE_HOME": str(folder / "cache")}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder for what `kernel` knows of builds of torch."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def kernel(start_shared: KernelFactory, cache: Path) -> Kernel:
    """Return a kernel that has tried its torch; a fault has come meanwhile."""
    kernel = start_shared(env={"XDG_CACHE_HOME": str(cache)})
    kernel.run("%load_ext nbdist")
    make(kernel, "plain", "-np 2")
    fails(kernel, FAULT)  # waits for the probe
    trains(kernel)
    # But not for as long as that may take on a busy machine.
    until(lambda: "is still being tested" not in kernel.run("%dist status").stdout, 150)
    preload_training(kernel)
    return kernel


@pytest.mark.parametrize("kind", ["ddp", "subgroup", "plain"])
def test_groups_made_anew_keep_models_and_variables(kernel: Kernel, kind: str) -> None:
    begin(kernel, kind, ANEW)
    same = on_ranks(kernel, "print(rank, id(model), id(optimizer))").stdout
    text = shown(fails(kernel, FAULT))
    assert "The process groups were re-created, and DDP models with them." in text
    assert on_ranks(kernel, "print(rank, id(model), id(optimizer))").stdout == same
    trains(kernel)
    stopped_by_button(kernel, f"{DEAF}\n    waits.wait()", 0.2)
    trains(kernel)
    assert "(NBDIST_RECOVERY=anew)" in kernel.run("%dist status").stdout
    on_ranks(kernel, "import os\nif rank == 1: os.kill(os.getpid(), 9)", check=False)
    if kind == "ddp":
        assert kernel.run("%dist restart 1 --like 0").stdout.startswith("Rank 1 restarted, ")
        trains(kernel)


def test_a_pending_backward_pass_that_is_lost_by_it_is_named(kernel: Kernel) -> None:
    begin(kernel, "ddp", ANEW)
    on_ranks(kernel, "pending = model(torch.randn(4, 8)).sum()")
    assert "`model` has lost the forward pass whose backward is still to come" in shown(
        fails(kernel, "if rank == 1: los\ndist.barrier()")
    )


def test_what_is_lost_by_it_is_named(kernel: Kernel) -> None:
    begin(kernel, "fsdp", ANEW)
    text = shown(fails(kernel, FAULT))
    assert "`model` is lost: an FSDP module, whose process groups no longer exist" in text
    assert "`optimizer` is lost: the optimizer of a module that is lost" in text
    on_ranks(kernel, MODELS["ddp"])
    trains(kernel)
    kernel.start(
        distributed("""
        import time
        try:
            print("waits", flush=True)
            while True: time.sleep(0.02)
        except KeyboardInterrupt:
            print("goes on")
    """)
    )
    kernel.expect("waits")
    kernel.interrupt()
    told = kernel.wait()
    assert told.ok
    assert "The process groups were re-created" in shown(told)


def test_new_processes_get_the_variables_of_those_before(kernel: Kernel) -> None:
    begin(kernel, way=REPLACE)
    before = on_ranks(kernel, "import os\n(os.getpid(), own)", "--output all").stdout
    assert "Ranks 0-1 were restarted, because" in shown(fails(kernel, FAULT))
    after = on_ranks(kernel, "import os\n(os.getpid(), own)", "--output all").stdout
    assert after != before
    on_ranks(kernel, "assert own == 10 + rank")
    trains(kernel)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        (BREAK_GROUPS, "re-created, and DDP models with them, because they could not be renewed"),
        (BREAK_ALL, "Rank 1 was restarted, because"),
        (BREAK_ALL_RANKS, "Ranks 0-1 were restarted, because"),
        (
            BREAK_GIVING,
            "Rank 1 has lost its own variables (the rank did not answer any more), and got",
        ),
    ],
    ids=["in place", "both", "on one rank after the other", "and its variables"],
)
def test_a_renewal_that_fails_is_followed_by_the_next_way(
    kernel: Kernel, how: str, says: str
) -> None:
    begin(kernel)
    on_ranks(kernel, how)
    text = shown(fails(kernel, FAULT))
    assert says in text
    assert "torch has moved it" in text or "did not answer" in text
    trains(kernel)
    given = how is not BREAK_GIVING
    on_ranks(kernel, f"assert own == (10 + rank if {given} else 10)")
    trains(kernel)


def test_variables_that_no_rank_can_hand_out_are_told_to_be_lost(kernel: Kernel) -> None:
    begin(kernel)
    on_ranks(kernel, BREAK_GIVING.replace("rank == 1", "True"))
    text = shown(fails(kernel, FAULT))
    assert "Ranks 0-1 were restarted, because" in text
    for rank in (0, 1):
        assert f"Rank {rank} has lost all variables: the rank did not answer any more." in text
    on_ranks(kernel, MODELS["ddp"])
    trains(kernel)
    kernel.run(
        "from dataclasses import replace\nhub = nbdist.cluster().hub\n"
        "usual, hub.settings = hub.settings, replace(hub.settings, form_seconds=1e-9)"
    )
    text = shown(fails(kernel, FAULT))
    assert "Rank 0 has lost all variables." in text
    assert "the process group could not be formed: rank 0 did not answer" in text
    kernel.run("hub.settings = usual")
    on_ranks(kernel, MODELS["ddp"])
    trains(kernel)


def test_with_a_torch_that_nobody_has_seen_cells_run_and_recover(
    start_kernel: KernelFactory, tmp_path: Path
) -> None:
    kernel = start_kernel(env=torch_of_tomorrow(tmp_path / "torch"))
    kernel.run("%load_ext nbdist")
    make(kernel, flags="-np 2")
    status = kernel.run("%dist status").stdout
    assert "after a fault groups are re-created" in status
    assert MOVED in status
    assert MOVED in shown(fails(kernel, FAULT))
    trains(kernel)
    kept = list((tmp_path / "torch" / "cache" / "nbdist" / "torch").iterdir())
    assert len(kept) == 1
    script = on_ranks(kernel, MODELS["plain"] + "\nprint('sum', step())", "--launcher torchrun")
    # gloo of torch 2.9 speaks up for each group, and what silences it is among what is gone.
    said = [line for line in script.stdout.splitlines() if not line.startswith("[Gloo] Rank ")]
    assert said == ["sum 3.0"]


def test_a_build_of_torch_is_probed_once_and_a_way_that_does_not_exist_is_refused(
    kernel: Kernel, start_kernel: KernelFactory, cache: Path
) -> None:
    begin(kernel)
    assert "groups are renewed in place, and models train on." in kernel.run("%dist status").stdout
    (kept,) = (cache / "nbdist" / "torch").iterdir()
    found, made = kept.read_bytes(), kept.stat().st_mtime_ns
    assert b'"whole":true' in found
    second = start_kernel(env={"XDG_CACHE_HOME": str(cache), FORCE: "sideways"})
    second.run("%load_ext nbdist")
    cell = on_ranks(second, "rank", "-np 2", check=False)
    assert "NBDIST_RECOVERY='sideways' is none of in-place, anew, replace" in cell.error
    second.run(f"%env {FORCE}={ANEW}")
    make(second, "plain", "-np 2")
    assert "The process groups were re-created" in shown(fails(second, FAULT))
    trains(second)
    assert kept.stat().st_mtime_ns == made


def test_ways_begin_with_the_best_that_torch_allows() -> None:
    assert ways(Recovery(), "") == [IN_PLACE, ANEW, REPLACE]
    assert ways(Recovery(groups="moved"), "") == [ANEW, REPLACE]
    assert ways(Recovery(models="moved"), IN_PLACE) == [ANEW, REPLACE]
    assert ways(Recovery(), REPLACE) == [REPLACE]
    for forced in ("", IN_PLACE):
        assert "are lost (moved)" in told(Recovery("9.9", models="moved"), forced)
    assert "FSDP2 modules are lost (moved)" in told(Recovery("9.9", fsdp="moved"), "")
    said = told(Recovery("9.9"), REPLACE)
    assert "ranks are replaced and get their variables back (NBDIST_RECOVERY=replace)" in said
