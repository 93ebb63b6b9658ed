"""`%dist preload`: modules that ranks find imported, and those that would spoil their parent."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from textwrap import dedent
from typing import TYPE_CHECKING

import psutil
import pytest

from nbdist.launchers.host import edited_modules
from tests.helpers.faults import shown, stopped_by_button
from tests.helpers.notebook import complete, on_ranks, printed_by
from tests.helpers.waiting import allowed, until

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    from tests.helpers.kernel import Kernel

SCRIPT = "-np 2 --backend none --launcher torchrun"
ENGINES = "-np 2 --backend none --launcher engines"
GOOD = """
import os, time
time.sleep(0.5)
pid, color = os.getpid(), os.environ.get("COLOR")
"""
TRACER = """
import threading
def trace(*_): return trace
threading.settrace(trace)
"""
TRACED = """
import sys, threading, torch, torch.distributed as dist
traced = []
def look(): traced.append(sys._getframe().f_trace is not None)
thread = threading.Thread(target=look)
thread.start()
thread.join()
assert traced == [True], traced
agent = next(each for each in threading.enumerate() if each.name == "nbdist-agent")
assert sys._current_frames()[agent.ident].f_trace is None
"""
MODULES = {
    "raises": "x = 1\nx / 0",
    "lacks": "import nowhere_at_all",
    "exits": "raise SystemExit(3)",
    "speaks": "raise ValueError('no UTF-8: \\udc80')",
    "dies": "import os; os.kill(os.getpid(), 9)",
    "threads": "import threading, time\n"
    "threading.Thread(target=time.sleep, args=(600,), name='ticker', daemon=True).start()",
    "opens": "import ctypes, pathlib\n"
    "driver = ctypes.CDLL(str(pathlib.Path(__file__).with_name('libcuda.so.1')))",
    "lasts": "import os, pathlib, time\n"
    "pathlib.Path(__file__).with_suffix('.pid').write_text(str(os.getpid()))\ntime.sleep(600)",
}
DRIVER = "int cuDeviceGetCount(int *count) { *count = 1; return 0; }"
"""A stand-in for CUDA's driver that was initialized; `tests/gpu` has the real one."""


def prepare(kernel: Kernel) -> Kernel:
    """Load nbdist, and make a folder of modules to import."""
    folder = kernel.home / "modules"
    folder.mkdir()
    for name, text in MODULES.items():
        (folder / f"{name}.py").write_text(text)
    compiler = ["c++", "-x", "c", "-", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]
    subprocess.run([*compiler, "-o", folder / "libcuda.so.1"], input=DRIVER, text=True, check=True)
    kernel.run(f"%load_ext nbdist\nimport os, sys, time\nsys.path.insert(0, {str(folder)!r})")
    return kernel


@pytest.fixture(scope="module")
def plain(shared_kernel: Kernel) -> Kernel:
    """Return a kernel with nbdist and such a folder."""
    return prepare(shared_kernel)


def module(kernel: Kernel, name: str, text: str = GOOD) -> Path:
    """Write a module that the notebook can import."""
    path = kernel.home / "modules" / f"{name}.py"
    path.write_text(text)
    return path


def warm_pid(kernel: Kernel) -> int:
    """Return the warm process."""
    kernel.run("from nbdist.notebook.session import session")
    return int(kernel.run("print(session.hubs.host().warm.pid)").text)


def listed(kernel: Kernel) -> str:
    """Return what `%dist preload` lists."""
    return kernel.run("%dist preload").stdout


def test_ranks_of_a_script_find_it(plain: Kernel) -> None:
    module(plain, "found")
    plain.run("os.environ['COLOR'] = 'red'")
    told = plain.run("%dist preload found json").stdout
    took = re.search(r"Preloaded found, json: ([\d.]+) (ms|s), ", told)
    assert took, told
    assert float(took[1]) * {"ms": 0.001, "s": 1}[took[2]] >= 0.5
    assert "ranks share" in told
    seen = (
        "import sys\nnow = sys.modules.get('found')\nimport found\nprint(now is found, found.pid)"
    )
    cell = on_ranks(plain, f"{seen}\nprint(found.color)", SCRIPT)
    assert cell.stdout == f"True {warm_pid(plain)}\nred\n"
    assert printed_by(plain, 1) == cell.stdout
    assert "found" in listed(plain)
    plain.run("import nbdist; seconds, memory = nbdist.preload('found')")


@pytest.mark.horovod
def test_ranks_of_horovodrun_find_it(plain: Kernel) -> None:
    module(plain, "under_horovod")
    plain.run("%dist preload under_horovod")
    body = "import sys; print(sys.modules['under_horovod'].pid)"
    cell = on_ranks(plain, body, "-np 2 --backend none --launcher horovodrun")
    assert cell.stdout == f"{warm_pid(plain)}\n"


def test_new_engines_have_it_and_old_ones_are_told_of(plain: Kernel) -> None:
    module(plain, "late")
    on_ranks(plain, "pass", ENGINES)
    assert "Ranks that run already do not: %dist restart." in plain.run("%dist preload late").stdout
    plain.run("%dist restart 1")
    cell = on_ranks(plain, "import sys; print('late' in sys.modules)", "--output all")
    assert sorted(cell.stdout.splitlines()) == ["[0] False", "[1] True"]


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="others let a traced thread go on")
def test_who_traces_threads_keeps_no_rank_from_being_stopped(kernel: Kernel) -> None:
    prepare(kernel)
    module(kernel, "tracer", TRACER)
    kernel.run("%dist preload tracer")
    on_ranks(kernel, TRACED, "-np 2 --backend ddp")
    stopped_by_button(kernel, "if rank == 0: dist.all_reduce(torch.ones(2))", 0.1)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("not_there", "there is no module not_there"),
        ("json.not_there", "there is no module json.not_there"),
        ("raises", "importing raises failed: ZeroDivisionError: division by zero"),
        ("lacks", "importing lacks failed: No module named 'nowhere_at_all'"),
        ("exits", "importing exits failed: SystemExit: 3"),
        ("speaks", "importing speaks failed: ValueError: no UTF-8: \\udc80"),
        ("dies", "the import killed the process that tried it"),
        ("threads", "the import starts threads, which forked ranks would lack: ticker"),
        ("opens", "importing opens opens the GPU, which forked ranks could not use then"),
        ("--timeout 1 lasts", "the import did not end within 1 s"),
    ],
)
def test_what_cannot_be_preloaded_changes_nothing(plain: Kernel, name: str, told: str) -> None:
    module(plain, "good_before", "")
    before = warm_pid(plain), listed(plain)
    cell = plain.run(f"%dist preload good_before {name}", check=False)
    if name.startswith("--"):
        cell = plain.run(f"%dist preload {name}", check=False)
    assert f"nothing was preloaded: {told}" in shown(cell)
    assert (warm_pid(plain), listed(plain)) == before
    body = "import sys; print({'good_before', 'raises', 'exits', 'lasts'} & sys.modules.keys())"
    assert on_ranks(plain, body, SCRIPT).stdout == "set()\n"


@pytest.mark.parametrize(
    ("line", "told"),
    [("no-name", "'no-name' is not the name of a module"), ("--timeout x json", "not a number")],
)
def test_a_line_that_makes_no_sense_is_refused(plain: Kernel, line: str, told: str) -> None:
    assert told in shown(plain.run(f"%dist preload {line}", check=False))


def test_an_interrupt_gives_it_up(plain: Kernel) -> None:
    noted = plain.home / "modules" / "lasts.pid"
    noted.unlink(missing_ok=True)
    cell = plain.start("%dist preload lasts")
    until(lambda: noted.exists() and noted.read_text(), 30, cell.seen)
    trial = psutil.Process(int(noted.read_text()))
    plain.interrupt()
    plain.wait(cell=cell)
    assert "KeyboardInterrupt" in shown(cell)
    assert psutil.wait_procs([trial], timeout=allowed(20))[0]
    assert on_ranks(plain, "print(rank)", SCRIPT).stdout == "0\n"


def test_a_file_that_was_edited_is_imported_anew(plain: Kernel) -> None:
    path = module(plain, "edited_later", "value = 1")
    plain.run("%dist preload edited_later")
    path.write_text("value = 22")
    os.utime(path, ns=(0, 0))
    body = "import edited_later\nprint(edited_later.value)"
    assert on_ranks(plain, body, SCRIPT).stdout == "22\n"
    plain.run("%dist preload edited_later")
    body = "import sys; print(sys.modules['edited_later'].value)"
    assert on_ranks(plain, body, SCRIPT).stdout == "22\n"


def test_a_new_warm_process_is_told_again(plain: Kernel) -> None:
    plain.run("%dist stop", check=False)
    module(plain, "told_again")
    plain.run("%dist preload told_again")
    os.kill(warm_pid(plain), signal.SIGKILL)
    plain.run("while session.hubs.hosts(): time.sleep(0.01)")
    cell = on_ranks(plain, "import sys; print(sys.modules['told_again'].pid)", SCRIPT)
    assert cell.stdout == f"{warm_pid(plain)}\n"


def test_names_of_modules_complete(plain: Kernel) -> None:
    assert "json" in complete(plain, "%dist preload js")
    assert any(found.endswith("json.decoder") for found in complete(plain, "%dist preload json.d"))
    assert "--timeout" in complete(plain, "%dist preload --t")


LOGS = """
import os, pathlib
with pathlib.Path(__file__).with_suffix(".pids").open("a") as log:
    print(os.getpid(), file=log)
"""
ENGINES_MODULE = "nbdist.launchers.host.engines"


def test_only_modules_that_are_known_are_imported_without_a_trial(plain: Kernel) -> None:
    """A trial would take as long as the import itself."""
    logs = {name: module(plain, name, LOGS).with_suffix(".pids") for name in ("known", "unknown")}
    plain.run(f"import {ENGINES_MODULE} as engines\nkept = engines.NEED_NO_TRIAL")
    plain.run("engines.NEED_NO_TRIAL = {'known'}")
    told = plain.run("%dist preload unknown known").stdout
    module(plain, "known_too", "")
    plain.run("engines.NEED_NO_TRIAL = {'known_too'}")
    failed = plain.run("%dist preload raises known_too", check=False)
    plain.run("engines.NEED_NO_TRIAL = kept")
    assert "Preloaded unknown, known: " in told
    assert "only known_too was preloaded: importing raises failed" in shown(failed)
    assert "known_too" in listed(plain)
    assert {"known", "unknown"} <= set(re.findall(r"\w+", listed(plain)))
    warm = str(warm_pid(plain))
    assert logs["known"].read_text().split() == [warm]
    trial, then = logs["unknown"].read_text().split()
    assert trial != warm == then


def test_torchs_modules_that_are_imported_without_a_trial_pass_it(plain: Kernel) -> None:
    plain.run(f"import {ENGINES_MODULE} as engines\nkept = engines.NEED_NO_TRIAL")
    plain.run("engines.NEED_NO_TRIAL = frozenset()")
    told = plain.run("%dist preload {' '.join(kept)}", 120).stdout
    plain.run("engines.NEED_NO_TRIAL = kept")
    assert "Preloaded torch." in told


@pytest.mark.parametrize("init", [True, False], ids=["package", "namespace"])
def test_modules_of_a_package_are_forgotten_and_what_is_installed_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, init: bool
) -> None:
    package = tmp_path / "of_mine"
    package.mkdir()
    if init:
        (package / "__init__.py").touch()
    part = package / "part.py"
    part.write_text("value = 1")
    monkeypatch.syspath_prepend(str(tmp_path))
    names = ["of_mine", "of_mine.part"]

    def imported() -> ModuleType:
        found: dict[str, ModuleType] = {}
        exec("from of_mine import part", found)  # noqa: S102  # looks at the package first
        return found["part"]

    try:
        first = imported()
        edited_modules.remember([*names, "json.decoder", "sys", "no_such"])
        edited_modules.forget()
        assert imported() is first
        part.write_text("value = 22")
        os.utime(part, ns=(0, 0))
        edited_modules.forget()
        assert "json.decoder" in sys.modules
        assert imported().value == 22
        edited_modules.remember(names)
        part.unlink()
        edited_modules.forget()
        with pytest.raises(ImportError):
            imported()
    finally:
        for name in names:
            sys.modules.pop(name, None)


@pytest.mark.starts_processes
def test_modules_that_import_otherwise_the_second_time(tmp_path: Path) -> None:
    """What a trial in a fork cannot foresee; a child that is forked meanwhile has no part in it."""
    (tmp_path / "once.py").write_text("")
    (tmp_path / "never.py").write_text("import time; time.sleep(600)")
    code = """
        import os, select, socket, sys, time
        from nbdist.launchers.host.child_processes import Children
        from nbdist.launchers.host.preloads import Preloads
        from nbdist.launchers.host.protocol import Died, Preload
        told, broken = [], []
        children = Children(socket.socketpair()[0], told.append)
        preloads = Preloads(children, told.append, lambda: ", ".join(broken))
        def order(number, module, limit, tried):
            preloads.begin(Preload(number, [module], sys.path, {}, limit, tried=tried))
        order(1, "never", 0.1, tried=True)
        broken.append("a GPU is open")
        order(2, "once", 60, tried=True)
        order(3, "never", 60, tried=False)
        order(4, "once", 60, tried=False)
        order(5, "once", 60, tried=True)
        preloads.stop(4)  # it has not begun
        (answer,) = preloads.watched()
        def has_no_part():
            try:
                os.fstat(answer)
            except OSError:
                sys.exit(7)
        children.start("child", has_no_part)
        while not isinstance(told[-1], Died):
            select.select([children.wake], [], [])
            children.look()
        print(told.pop().code, preloads.watched() == [answer])
        del told[2:]
        preloads.stop(3)
        print(preloads.watched())
        for done in told:
            print(done.id, done.why)
    """
    done = subprocess.run(
        [sys.executable, "-c", dedent(code)],
        capture_output=True, text=True, timeout=allowed(60), check=True, cwd=tmp_path,
    )  # fmt: skip
    broken = "a GPU is open; from now on ranks are started as new processes, without these modules"
    assert done.stdout.splitlines() == [
        "7 True",
        "[]",
        "1 importing never failed: TimeoutError: it did not end within 100 ms",
        f"2 {broken}",
        f"5 {broken}",
    ]
