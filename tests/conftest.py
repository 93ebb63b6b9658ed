"""Fixtures: kernels, an isolated home, and a check of what each test leaves behind."""

from __future__ import annotations

import fcntl
import functools
import gc
import itertools
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import pytest_timeout
from jupyter_core.utils import ensure_event_loop

from nbdist.backends.groups import recovery
from nbdist.backends.groups.recovery import Recovery
from nbdist.launchers.host.recovery_probe import PROBE
from tests.helpers.kernel import Kernel, open_kernels
from tests.helpers.leaks import SESSION, SESSION_MARK, Watch
from tests.helpers.waiting import allowed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    KernelFactory = Callable[..., Kernel]

# Jupyter's server is large; `make test-gpu` runs without it, and without tests of the sidebar.
pytest_plugins = ["pytest_jupyter.jupyter_server"] if find_spec("jupyter_server") else []

HAS_GPU = Path("/dev/nvidiactl").exists()
NUMBERS = itertools.count(1)
LONGEST = ("test_pages", "test_tutorials", "test_storm", "test_programs", "test_hosts")
"""The modules that take longest by far."""
MEASURES = ("COVERAGE_PROCESS_CONFIG", "COVERAGE_PROCESS_START")
"""Environment variables that make processes record their coverage."""
NO_TORCH = 'raise ModuleNotFoundError("No module named \'torch\'", name="torch")'
KERNELS = {"start_kernel", "kernel", "start_shared", "shared_kernel", "notebook"}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of `make storm`."""
    parser.addoption("--storm", type=int, default=0, help="trainings to throw faults into")
    parser.addoption("--storm-seed", type=int, default=1, help="the seed of the first one")
    parser.addoption("--storm-kinds", default="", help="only kinds that begin so, with commas")
    parser.addoption("--storm-faults", default="", help="only faults that begin so, with commas")
    parser.addoption("--storm-workers", type=int, default=1, help="so many side by side")
    parser.addoption("--storm-first", action="store_true", help="end with the first that falls")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark light tests. Put the longest modules first, so no worker ends long after the others."""
    for item in items:
        asked = KERNELS.intersection(getattr(item, "fixturenames", ()))
        if not asked and not item.get_closest_marker("starts_processes"):
            item.add_marker(pytest.mark.light)
    if os.environ.get("PYTEST_XDIST_WORKER"):
        items.sort(key=lambda item: item.path.stem not in LONGEST)


def pytest_collection_finish() -> None:
    """Spare collections what all tests have imported: IPython collects for each new namespace."""
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: pytest_timeout.Settings) -> Any:
    """Give a test more time if the machine is slow or busy when the test begins."""
    limit = settings._replace(timeout=allowed(settings.timeout))
    return pytest_timeout.pytest_timeout_set_timer(item, limit)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests that need a GPU or Horovod where there is none."""
    if item.get_closest_marker("gpu") and not HAS_GPU:
        pytest.skip("needs an NVIDIA GPU, and /dev/nvidiactl is not there")
    if item.get_closest_marker("horovod") and find_spec("horovod") is None:
        pytest.skip("needs Horovod, which `python -m nbdist.install horovod` builds")


def _fail_if_left(watch: Watch, name: str) -> None:
    left = watch.check()
    if left:
        pytest.fail(f"{name} left behind:\n" + "\n".join(left), pytrace=False)


@pytest.fixture(scope="session", autouse=True)
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep the session's state and temporary files in a folder that must be clean at the end."""
    folder = tmp_path_factory.mktemp("s", numbered=False)
    for name in ("tmp", "homes", "homes/tests"):
        (folder / name).mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SESSION_MARK, SESSION)
        patch.setenv("NBDIST_HOME", str(folder / "homes" / "tests"))
        patch.setenv("JUPYTER_RUNTIME_DIR", str(folder / "runtime"))
        patch.setenv("IPYTHONDIR", str(folder / "ipython"))
        patch.setenv("TMPDIR", str(folder / "tmp"))
        # Torch's threads then sleep while they wait: spinning threads would slow other workers.
        patch.setenv("OMP_WAIT_POLICY", "passive")
        # Torch looks up the name of 127.0.0.1 at each connection to a store. Without a DNS server
        # that answers at once, a test would wait 5 s each time, and torch would warn.
        patch.setenv("RES_OPTIONS", "timeout:1 attempts:5")
        patch.setattr(tempfile, "tempdir", str(folder / "tmp"))
        watch = Watch(folder)
        yield folder
        ensure_event_loop().close()  # jupyter_client makes this loop and keeps it
        _fail_if_left(watch, "The session")


@pytest.fixture(autouse=True)
def _leaves_nothing(scratch: Path, request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves processes, files, shared memory or threads behind."""
    watch = Watch(scratch)
    yield
    for kernel in list(open_kernels.values()):
        kernel.stop()  # after a failure, the next test of a shared kernel needs this
    _fail_if_left(watch, request.node.name)


@pytest.fixture(scope="module", autouse=True)
def _measured(request: pytest.FixtureRequest) -> Iterator[None]:
    """Leave processes of modules marked `repeats` out of coverage: tracing them costs time."""
    with pytest.MonkeyPatch.context() as patch:
        for name in MEASURES if request.node.get_closest_marker("repeats") else ():
            patch.delenv(name, raising=False)
        yield


PROBES = 3
"""How often torch is probed: load may disturb a probe. If all fail, each kernel probes torch."""


@functools.cache
def _probe_torch_once(lock: Path) -> None:
    """Probe this build of torch beforehand, so that no fault in a test waits for the probe.

    The first worker probes, and the others wait for a file lock, which ends with its process.
    """
    if find_spec("torch") is None:
        return
    import torch

    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        for _ in range(PROBES):
            if recovery.known(torch) is None and (found := probed()).sure:
                recovery.keep(torch, found)


def probed(*program: str) -> Recovery:
    """Run the probe, or a program around it, in a process of its own; return its result."""
    read, write = os.pipe()
    command = [sys.executable, *(program or ("-m", PROBE)), str(write)]
    with tempfile.TemporaryDirectory() as folder:
        env = os.environ | {"TMPDIR": folder}
        subprocess.run(command, pass_fds=[write], check=True, timeout=allowed(100), env=env)
    os.close(write)
    with os.fdopen(read) as said:
        return [msgspec.json.decode(line, type=Recovery) for line in said][-1]


def _factory(scratch: Path) -> Iterator[KernelFactory]:
    kernels: list[Kernel] = []

    def start(home: str = "", **options: Any) -> Kernel:
        _probe_torch_once(scratch.parent.parent / "probe.lock")
        folder = scratch / "homes" / (home or f"k{next(NUMBERS)}")
        kernels.append(Kernel(folder, **options))
        return kernels[-1]

    yield start
    for kernel in kernels:
        kernel.shutdown()


@pytest.fixture(scope="session")
def without_torch(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return environment variables with which processes cannot import torch."""
    folder = tmp_path_factory.mktemp("without-torch")
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text(NO_TORCH)
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    }


@pytest.fixture
def becomes_main(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore `__main__` after the test: a shell that is made in this process replaces it."""
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])


@pytest.fixture
def start_kernel(scratch: Path) -> Iterator[KernelFactory]:
    """Start kernels: ``start_kernel(home="name", env={...}, cwd=path)``; homes may be shared."""
    yield from _factory(scratch)


@pytest.fixture
def kernel(start_kernel: KernelFactory) -> Kernel:
    """Return a fresh kernel."""
    return start_kernel()


@pytest.fixture(scope="module")
def start_shared(scratch: Path, request: pytest.FixtureRequest) -> Iterator[KernelFactory]:
    """Start kernels for all tests of a module; no test may depend on the cells of another one."""
    watch = Watch(scratch)
    yield from _factory(scratch)
    _fail_if_left(watch, f"The kernel shared in {request.node.name}")


@pytest.fixture(scope="module")
def shared_kernel(start_shared: KernelFactory) -> Kernel:
    """Return a kernel for all tests of a module."""
    return start_shared()


@pytest.fixture(scope="module")
def notebook(shared_kernel: Kernel) -> Kernel:
    """Return the module's shared kernel with nbdist loaded and two ranks started."""
    shared_kernel.run("%load_ext nbdist")
    shared_kernel.run("%%distributed -np 2 --backend ddp\npass")
    return shared_kernel
