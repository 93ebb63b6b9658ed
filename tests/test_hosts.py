"""Scripts on two hosts, started by ssh; the second one is made of namespaces, see `tests.hosts`."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from tests.faults import shown
from tests.hosts import NAME, FarHost, far_host
from tests.notebook import distributed, on_ranks, printed_by

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conftest import KernelFactory
    from tests.kernel import Kernel

HOSTS = f"-H localhost:1,{NAME}:2"
TORCHRUN = f"--launcher torchrun {HOSTS}"
STEP = """
    import os, socket
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
    model(torch.ones(1, 2) * rank).sum().backward()
    hosts = [None] * world_size
    dist.all_gather_object(hosts, (socket.gethostname(), local_rank))
    grad = model.module.weight.grad.tolist()
    print(grad, hosts)
"""


@pytest.fixture(scope="module")
def far(scratch: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarHost]:
    """Return a second host."""
    with far_host(tmp_path_factory.mktemp("far"), scratch / "tmp") as host:
        yield host


@pytest.fixture(scope="module")
def two(far: FarHost, shared_kernel: Kernel) -> Kernel:
    """Return a kernel that reaches it."""
    path = f"import os; os.environ['PATH'] = {far.path!r}"
    shared_kernel.run(f"{path}\n%load_ext nbdist\nimport torch, torch.distributed as dist")
    return shared_kernel


@pytest.fixture(autouse=True)
def _nothing_left_there(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "far" in request.fixturenames:
        far = request.getfixturevalue("far")
        assert not far.is_quiet()


@pytest.mark.parametrize("how", ["", "--cold"], ids=["warm", "cold"])
def test_torchrun_trains_on_both(two: Kernel, how: str) -> None:
    cell = on_ranks(two, STEP, f"{TORCHRUN} {how}")
    here = socket.gethostname()
    assert cell.stdout == f"[[1.0, 1.0]] {[(here, 0), (NAME, 0), (NAME, 1)]}\n"
