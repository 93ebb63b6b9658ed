"""Cells on XLA's devices, in the kernel: what they find, show, and leave."""

from __future__ import annotations

import re
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from tests.helpers.faults import shown
from tests.helpers.notebook import on_ranks, plain

if TYPE_CHECKING:
    from tests.helpers.kernel import Kernel

WHERE = "import os, sys; print(type(sys.stdout), [os.fstat(fd).st_ino for fd in (1, 2)])"
"""Tells where the kernel's own output goes."""
LINE = re.compile(r"^(\S+) (.*)$", re.MULTILINE)


@pytest.fixture(scope="module")
def xla(shared_kernel: Kernel) -> Kernel:
    """Return a kernel in which XLA runs on four virtual devices."""
    shared_kernel.run("%load_ext nbdist")
    shared_kernel.run("%%distributed -np 4 --backend xla\nimport nbdist, torch, torch_xla", 120)
    return shared_kernel


def test_a_cell_is_rank_zero_of_one_on_a_mesh_of_all_devices(xla: Kernel) -> None:
    cell = on_ranks(xla, "print(rank, local_rank, world_size, device, dict(mesh.shape()))")
    assert cell.stdout == "0 0 1 xla:0 {'data': 4}\n"
    assert "XLA runs in this kernel on 4 CPU devices" in xla.run("%dist status").stdout


def test_a_tensor_lies_in_parts_on_the_devices(xla: Kernel) -> None:
    body = """
    import torch_xla.distributed.spmd as xs
    sharded = xs.mark_sharding(torch.arange(8.0).to(device), mesh, ("data",))
    for shard in sharded.local_shards:
        print(shard.shard_device, shard.data.tolist())
    print(float(sharded.global_tensor.sum()))
    """
    assert LINE.findall(on_ranks(xla, body).stdout.rpartition("\n28")[0]) == [
        ("CPU:0", "[0.0, 1.0]"), ("CPU:1", "[2.0, 3.0]"),
        ("CPU:2", "[4.0, 5.0]"), ("CPU:3", "[6.0, 7.0]"),
    ]  # fmt: skip


def test_all_that_is_printed_is_shown_in_order_and_is_in_the_log(xla: Kernel) -> None:
    before = xla.run(WHERE).stdout
    xla.run("import logging; logging.basicConfig(); early = logging.getLogger('early')")
    body = """
    import os, subprocess
    print("printed")
    os.system("echo from a child")
    early.warning("logged")
    display("a rich one")
    print("later", flush=True)
    1 + 1
    """
    cell = on_ranks(xla, body)
    told = [(out.kind, out.text) for out in cell.outputs]
    assert told == [
        ("stdout", "printed\nfrom a child\nWARNING:early:logged\n"), ("display", "'a rich one'"),
        ("stdout", "later\n"), ("result", "2"),
    ]  # fmt: skip
    logged = xla.run("%dist logs 0").stdout
    assert logged == "printed\nfrom a child\nWARNING:early:logged\nlater\n"
    assert xla.run(WHERE).stdout == before


def test_names_are_the_notebooks_and_its_own_come_back(xla: Kernel) -> None:
    xla.run("device, factor = 'mine', 3")
    cell = on_ranks(xla, "made = torch.ones(2, device=device) * factor\nprint(device)")
    assert cell.stdout == "xla:0\n"
    assert xla.run("print(device, made.tolist())").stdout == "mine [3.0, 3.0]\n"
    xla.run("del device")


def test_what_is_returned_must_be_there(xla: Kernel) -> None:
    on_ranks(xla, "here = 1", "--return here")
    cell = on_ranks(xla, "pass", "--return here,gone", check=False)
    assert "`gone` cannot be returned" in cell.error


def test_an_error_is_told_with_the_notebooks_lines(xla: Kernel) -> None:
    body = """
    def fails():
        raise ValueError("bad luck")

    print("before")
    fails()
    """
    cell = on_ranks(xla, body, check=False)
    error = plain(cell.text)
    assert cell.error == "CellFailed: Rank 0 failed: ValueError: bad luck (cell line 3)"
    assert cell.reply is not None
    number = cell.reply["execution_count"]
    assert f"Cell In[{number}], line 6\n" in error
    assert f"Cell In[{number}], line 3, in fails()" in error
    assert cell.stdout == "before\n"
    assert "magics" not in error
    job = xla.run("print(nbdist.jobs()[-1])").stdout
    assert re.fullmatch(r"<job \d+: failed after \S+ m?s on rank 0>\n", job)


def test_a_top_level_await_works(xla: Kernel) -> None:
    body = "import asyncio\nawait asyncio.sleep(0.01)\nprint('slept')"
    assert on_ranks(xla, body).stdout == "slept\n"
    assert xla.run("await asyncio.sleep(0.01)\nprint('too')").stdout == "too\n"


def test_the_count_of_cells_goes_on(xla: Kernel) -> None:
    first = int(xla.run("print(len(In))").stdout)
    on_ranks(xla, "pass")
    cell = xla.run("print(len(In))")
    assert cell.stdout == f"{first + 2}\n"
    assert cell.reply is not None
    assert cell.reply["execution_count"] == first + 1


def test_a_figure_is_shown_once(xla: Kernel) -> None:
    xla.run("%matplotlib inline\nimport matplotlib.pyplot as plt")
    cell = on_ranks(xla, "_ = plt.plot([1, 2])\nprint('drawn')")
    assert [out.kind for out in cell.outputs] == ["stdout", "display"]


def test_what_torch_xla_keeps_to_itself_is_where_it_was(xla: Kernel) -> None:
    body = """
    from nbdist.backends.torch_private.xla_runtime import runtime_runs, tpu_processes
    print(runtime_runs(), tpu_processes())
    """
    assert xla.run(dedent(body)).stdout.startswith("True ")


def test_flags_that_mean_nothing_here_are_refused(xla: Kernel) -> None:
    for flag in ("--async", "--scale 1,2", "--ranks 0", "--gpus 0", "--no-bring", "--save x.py"):
        cell = on_ranks(xla, "print('ran')", flag, check=False)
        assert f"{flag.split()[0]} does not go with --backend xla" in cell.error
        assert cell.stdout == ""
    cell = on_ranks(xla, "print('ran')", "--backend ddp --launcher kernel", check=False)
    assert "backend ddp does not go with launcher kernel" in cell.error
    assert "Traceback" not in cell.text


def test_another_number_of_devices_takes_another_kernel(xla: Kernel) -> None:
    cell = on_ranks(xla, "print('ran')", "-np 2", check=False)
    assert "-np 2: XLA's runtime runs in this kernel with 4 CPU devices" in cell.error
    assert "%dist restart kernel" in cell.error
    assert cell.stdout == ""
    assert on_ranks(xla, "print('goes on')", "-np 4").stdout == "goes on\n"


TPU = """
import os
from nbdist.backends import xla
from nbdist.backends.torch_private import xla_runtime as private
from nbdist.errors import UsageError

def told(work, *args):
    try:
        return work(*args)
    except UsageError as err:
        return str(err)

kept = private.tpu_processes, private.why_no_device, xla._runtime, os.environ.pop("PJRT_DEVICE")
private.tpu_processes, private.why_no_device = lambda: 4, lambda kind: ""
try:
    print(told(xla.check_processes, None))
    xla._runtime = None
    print(told(xla.check_processes, None), os.environ["PJRT_DEVICE"])
    print(told(xla.check_processes, 2))
    print(told(xla._check_number, 2, "TPU", 4))
finally:
    private.tpu_processes, private.why_no_device, xla._runtime, os.environ["PJRT_DEVICE"] = kept
"""


def test_what_is_said_on_a_tpu(xla: Kernel) -> None:
    taken, processes, fewer, part = xla.run(TPU).stdout.splitlines()
    assert taken.startswith(
        "XLA's runtime runs in this kernel and holds the 4 CPU devices: no other"
    )
    assert processes == "4 TPU"
    assert fewer.endswith(
        "one process for each device, and this machine has 4 TPU devices; use -np 4"
    )
    assert part.startswith("-np 2: XLA always uses all devices, here 4 TPU devices; leave out -np")


def test_a_runtime_that_a_plain_cell_has_started_is_kept(kernel: Kernel) -> None:
    kernel.run("%load_ext nbdist\nimport os; os.environ['PJRT_DEVICE'] = 'CPU'")
    kernel.run("import torch, torch_xla; early = torch.ones(2, device=torch_xla.device())", 120)
    cell = on_ranks(kernel, "print('ran')", "-np 4 --backend xla", check=False)
    assert "-np 4: XLA's runtime runs in this kernel with 1 CPU device, and can" in cell.error
    assert kernel.run("print(torch_xla.runtime.is_spmd())").stdout == "False\n"
    cell = on_ranks(kernel, "print(dict(mesh.shape()), (early + 1).sum().item())", "--backend xla")
    assert "{'data': 1} 4.0\n" in cell.stdout
    # A plain cell may also have begun SPMD, and have set a mesh of its own.
    kernel.run("from nbdist.backends import xla; found, xla._runtime = xla._runtime, None")
    cell = on_ranks(kernel, "theirs = mesh", "--backend xla")
    assert "SPMD" not in cell.text, "torch_xla warns if it is begun again"
    assert kernel.run("print(theirs is found.mesh, xla._runtime is found)").stdout == "True False\n"


def test_a_device_that_is_not_there_is_refused_and_xla_still_wished(kernel: Kernel) -> None:
    kernel.run("%load_ext nbdist")
    flags = "-np 3 --backend xla --env PJRT_DEVICE=cpu"
    cell = on_ranks(kernel, "print('ran')", flags, timeout=120, check=False)
    assert "PJRT_DEVICE=cpu: torch_xla knows CPU, " in cell.error
    assert "`%env PJRT_DEVICE=CPU`" in cell.error
    assert "Traceback" not in cell.text
    kernel.run("%env PJRT_DEVICE=TPU")
    cell = on_ranks(kernel, "print('ran')", check=False)
    assert "UsageError: PJRT_DEVICE=TPU: libtpu not found; choose another" in cell.text
    kernel.run("%env PJRT_DEVICE=CUDA")
    cell = on_ranks(kernel, "print('ran')", "--launcher torchrun", check=False)
    assert "PJRT_DEVICE=CUDA: torch_xla knows CPU, " in cell.error
    kernel.run("%env PJRT_DEVICE=CPU")
    cell = on_ranks(kernel, "print(device, dict(mesh.shape()))")
    assert "xla:0 {'data': 3}\n" in cell.stdout


def test_a_runtime_that_does_not_start_is_told_in_a_line(kernel: Kernel) -> None:
    kernel.run("%load_ext nbdist\n%env PJRT_DEVICE=CUDA")
    kernel.run("import nbdist.backends.torch_private.xla_runtime as private", 120)
    kernel.run("private.why_no_device = lambda kind: ''")
    cell = on_ranks(kernel, "print('ran')", "--backend xla", timeout=120, check=False)
    assert "UsageError: PJRT_DEVICE=CUDA: XLA's runtime did not start: No PjRtPlugin" in cell.text
    assert "Restart the kernel (`%dist restart kernel`" in cell.error
    assert "Traceback" not in cell.text


def test_an_environment_it_has_read_cannot_change(xla: Kernel) -> None:
    cell = on_ranks(xla, "print('ran')", "--env XLA_FLAGS=--none", check=False)
    assert "--env XLA_FLAGS: XLA's runtime runs already" in cell.error


def test_ranks_of_other_backends_are_there_too(xla: Kernel) -> None:
    on_ranks(xla, "there = torch.ones(1, device=device)")
    reduce = (
        "import torch.distributed as dist\nx = torch.ones(1)\ndist.all_reduce(x)\nprint(x.item())"
    )
    cell = on_ranks(xla, f"import torch\n{reduce}", "-np 2 --backend ddp")
    assert cell.stdout == "2.0\n"
    assert "groups are renewed in place" in xla.run("%dist status").stdout
    cell = on_ranks(xla, "print(world_size)", "-np 2 --backend none")
    assert cell.stdout == "2\n"
    cell = on_ranks(xla, "print(there)", "--backend none", check=False)
    assert "`there` cannot be brought to the ranks: it is on xla:0" in cell.error
    assert on_ranks(xla, "print(device)", "--backend xla").stdout == "xla:0\n"
    cell = on_ranks(xla, "print(world_size)", "--launcher engines")
    assert cell.stdout == "2\n"
    assert "run on ranks with --backend none from now on; --backend xla ends this" in cell.text
    assert "from now on" not in on_ranks(xla, "pass").text
    xla.run("%dist stop")
    on_ranks(xla, "pass", "--backend xla")


def test_commands_for_ranks_say_that_there_are_none(xla: Kernel) -> None:
    for line in ("who", "free", "stop", "restart", "push LINE", "pull x", "sync model"):
        told = xla.run(f"LINE = 1\n%dist {line}", check=False).error
        assert "there is no cluster: XLA runs in this kernel" in told, line
    told = xla.run("%dist start", check=False).error
    assert "--backend xla, as the last cell had it, runs cells in this kernel" in told
    told = xla.run("%dist start -np 4 --backend xla", check=False).error
    assert "--backend xla runs cells in this kernel and needs no start; to start ranks" in told
    assert on_ranks(xla, "print(device)").stdout == "xla:0\n"


def test_metrics_of_tensors_do_not_cut_the_steps_graph(xla: Kernel) -> None:
    body = """
    import torch_xla.debug.metrics as counts

    def runs():
        return (counts.metric_data("ExecuteReplicatedTime") or [0])[0]

    weight = torch.ones(4, device=device)
    torch_xla.sync(wait=True)
    before = runs()
    for step in nbdist.progress(range(20), "steps"):
        weight = weight * 0.5
        loss = weight.sum()
        nbdist.log(loss=loss)
        torch_xla.sync()
    torch_xla.sync(wait=True)
    print(runs() - before, "runs")
    nbdist.log(after=weight.sum())
    """
    cell = on_ranks(xla, body)
    assert cell.stdout == "20 runs\n"
    assert "steps: 20 of 20" in shown(cell)
    told = xla.run("series = nbdist.jobs()[-1].metrics['loss']; print(series.values.tolist()[:3])")
    assert told.stdout == "[2.0, 1.0, 0.5]\n"
    assert xla.run("print(len(nbdist.jobs()[-1].metrics['after'].values))").stdout == "1\n"


def test_training_on_four_devices_gives_what_one_gives(xla: Kernel) -> None:
    body = """
    import torch_xla.distributed.spmd as xs

    def trained(where, shard):
        torch.manual_seed(7)
        model = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3)
        ).to(where)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(10):
            x, y = torch.randn(32, 8), torch.randint(0, 3, (32,))
            x, y = shard(x.to(where)), shard(y.to(where))
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            torch_xla.sync()
        return [each.detach().cpu() for each in model.parameters()], loss.item()

    def rows(batch):
        xs.mark_sharding(batch, mesh, ("data", *[None] * (batch.dim() - 1)))
        return batch

    ours, loss = trained(device, rows)
    theirs, reference = trained("cpu", lambda batch: batch)
    print(all(torch.allclose(a, b, atol=1e-5) for a, b in zip(ours, theirs)))
    print(abs(loss - reference) < 1e-5)
    """
    assert on_ranks(xla, body, timeout=120).stdout == "True\nTrue\n"
