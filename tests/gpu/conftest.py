"""Kernels that see one GPU, ways for two ranks to be on it, figures, the report."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.gpu.machine import REHEARSAL, first_gpu, needs_gpus, needs_nccl_that_shares
from tests.gpu.report import FIGURE, Page
from tests.helpers.notebook import on_ranks

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import KernelFactory
    from tests.helpers.kernel import Kernel

    Figure = Callable[[str, str], None]

GLOO, SHARED, OWN = "gloo", "nccl-on-one-gpu", "nccl-on-two-gpus"
"""How two ranks are on GPUs."""
EVERY_WAY = pytest.mark.parametrize("way", [GLOO, SHARED, OWN], scope="module", indirect=True)


def pytest_configure(config: pytest.Config) -> None:
    """Write the report that `make test-gpu` asks for."""
    path = os.environ.get("NBDIST_GPU_REPORT")
    if path:
        config.pluginmanager.register(Page(Path(config.rootpath, path)))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave out what there is no time for, so that the run ends by itself, with its report."""
    until = float(os.environ.get("NBDIST_GPU_UNTIL", "inf"))
    if time.time() > until:
        pytest.skip("the time for all tests was over (LIMIT=seconds gives more)")


@pytest.fixture(scope="module")
def way(request: pytest.FixtureRequest) -> str:
    """Return how two ranks are on GPUs, where that can be."""
    name = str(request.param)
    if name == SHARED:
        needs_nccl_that_shares()
    elif name == OWN:
        needs_gpus(2)
    return name


@pytest.fixture(scope="module")
def one_gpu(start_shared: KernelFactory) -> Kernel:
    """Return a kernel for a module that sees one GPU, nbdist loaded, no ranks."""
    return loaded(start_shared, GLOO)


@pytest.fixture(scope="module")
def ranks(one_gpu: Kernel) -> Kernel:
    """Return the kernel with two ranks that share the GPU."""
    on_ranks(one_gpu, "import time, torch, torch.distributed as dist", "-np 2")
    return one_gpu


@pytest.fixture(scope="module")
def cluster(start_shared: KernelFactory, way: str) -> Kernel:
    """Return a kernel with two ranks that are on GPUs in this way, with little patience."""
    kernel = loaded(start_shared, way)
    flags = "-np 2" + (" --env NCCL_MULTI_RANK_GPU_ENABLE=1" if way == SHARED else "")
    on_ranks(kernel, "import os, time, torch, torch.distributed as dist", flags)
    backend = "gloo" if way == GLOO else "nccl"
    assert on_ranks(kernel, "print(dist.get_backend())").stdout == f"{backend}\n"
    return kernel


def loaded(start: KernelFactory, way: str) -> Kernel:
    """Start a kernel and load nbdist; a hang is told after a second."""
    kernel = start(env={} if way == OWN or REHEARSAL else first_gpu())
    kernel.run("%env NBDIST_HANG_SECONDS=1\n%env NBDIST_KILL_SECONDS=10\n%load_ext nbdist")
    kernel.run("import nbdist, torch")
    return kernel


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Figure:
    """Return what puts a figure into the report: ``figure("what", "1.5 s")``."""

    def note(what: str, text: str) -> None:
        request.node.user_properties.append((FIGURE + what, text))
        print(f"{what}: {text}")  # noqa: T201

    return note
