"""What looks at a running main thread take for a wait: the one call that lasts, and no loop.

Frames are real, in modules that have the names of torch's and Horovod's; recorders are stand-ins.
"""

from __future__ import annotations

import _thread
import runpy
import sys
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from nbdist.backends.groups.same_call import is_new

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from nbdist.wire.group_reports import Waiting

pytest.importorskip("torch")
# They need torch, too.
from nbdist.backends.ddp import current_collective
from nbdist.backends.horovod import calls
from nbdist.backends.torch_private import recorder

PLACES = {
    "all_reduce": "torch/distributed/distributed_c10d.py",
    "new_group": "nbdist/backends/groups/registry.py",
    "_engine_run_backward": "torch/autograd/graph.py",
}
CALL = "def {name}(here, go):\n    here.release()\n    go.acquire()\n"


class Looked:
    """A thread that makes calls, and holds in each until it has been looked at."""

    def __init__(self, call: Callable[[Any, Any], None], times: int) -> None:
        self._here, self._go = threading.Lock(), threading.Lock()
        self._here.acquire()
        self._go.acquire()
        self._call, self._times = call, times
        self.ident = _thread.start_new_thread(self._loop, ())

    def _loop(self) -> None:
        for _ in range(self._times):
            self._call(self._here, self._go)
        self._here.release()

    def next(self) -> None:
        """Wait until the thread is in its next call, or has made all of them."""
        assert self._here.acquire(timeout=60)

    def go_on(self) -> None:
        """Let the thread leave its call."""
        self._go.release()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """Return a clock of whole seconds for both watches; the recorders hold `records`."""
    clock = SimpleNamespace(now=1000.0, records=[])
    for module in (current_collective, calls):
        monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: clock.now))
    monkeypatch.setattr(recorder, "on_gpu", list)
    monkeypatch.setattr(recorder, "running_collectives", lambda: clock.records)
    monkeypatch.setattr(recorder, "_rested", 0.0)
    monkeypatch.setattr(current_collective, "_sleeps", lambda: True)
    return clock


def record(created: float) -> dict[str, Any]:
    """Return a record of a gloo collective that runs since then."""
    return {
        "profiling_name": "gloo:all_reduce", "process_group": ["0", "default_pg"],
        "collective_seq_id": 7, "is_p2p": False, "time_created_ns": int(created * 1e9),
    }  # fmt: skip


def call_of(folder: Path, name: str) -> Callable[[Any, Any], None]:
    """Return a function with this name, in a module that has the place of torch's."""
    path = folder / PLACES[name]
    path.parent.mkdir(parents=True)
    path.write_text(CALL.format(name=name))
    found: Callable[[Any, Any], None] = runpy.run_path(str(path))[name]
    return found


def of_horovod(name: str) -> Callable[[Any, Any], None]:
    """Return a function with this name, in a module with the name of Horovod's."""
    space: dict[str, Any] = {"__name__": "horovod.torch.mpi_ops"}
    exec(CALL.format(name=name), space)  # noqa: S102  # our own
    found: Callable[[Any, Any], None] = space[name]
    return found


def looks(watch: Any, thread: Looked, clock: Any, times: int) -> list[Waiting | None]:
    """Return what is seen in this many calls, a second after another."""
    seen = []
    for _ in range(times):
        thread.next()
        clock.now += 1
        seen.append(watch.look())
        thread.go_on()
    return seen


@pytest.mark.parametrize("name", ["all_reduce", "new_group", "allreduce"])
def test_a_loop_of_short_calls_is_no_wait(tmp_path: Path, clock: Any, name: str) -> None:
    of_torch = name in PLACES
    call = call_of(tmp_path, name) if of_torch else of_horovod(name)
    thread = Looked(call, 20)
    kind = current_collective.Watch if of_torch else calls.Watch
    seen = looks(kind(thread.ident), thread, clock, 20)
    thread.next()
    assert [each and (each.op, each.since) for each in seen] == [(name, 0)] * 20


def test_a_call_that_lasts_is_counted_from_the_first_look(tmp_path: Path, clock: Any) -> None:
    thread = Looked(call_of(tmp_path, "all_reduce"), 2)
    watch = current_collective.Watch(thread.ident)
    for since in ([0, 1, 2], [0, 1, 2]):
        thread.next()
        found = []
        for _ in since:
            clock.now += 1
            found.append(watch.look())
        assert [each and each.since for each in found] == since
        thread.go_on()
    thread.next()


def test_a_collective_that_nobody_waits_for_is_no_wait(tmp_path: Path, clock: Any) -> None:
    """One of another thread, as a checkpoint's that is written meanwhile."""
    clock.records = [record(900.0)]
    thread = Looked(call_of(tmp_path, "all_reduce"), 3)
    watch = current_collective.Watch(thread.ident)
    watch._looked = 950.0
    seen = looks(watch, thread, clock, 2)
    assert [each and (each.seq, each.since) for each in seen] == [(None, 0)] * 2
    thread.next()
    clock.records.append(record(clock.now + 0.5) | {"collective_seq_id": 8})
    clock.now += 2
    mine = watch.look()
    assert mine is not None
    assert (mine.seq, mine.since) == (8, 1.5), "its own, as long as the recorder says"
    thread.go_on()
    thread.next()


def test_a_loop_of_backwards_lasts_no_longer_than_each(tmp_path: Path, clock: Any) -> None:
    thread = Looked(call_of(tmp_path, "_engine_run_backward"), 5)
    watch = current_collective.Watch(thread.ident)
    watch._looked = clock.now
    clock.records = [record(900.0)]
    seen = looks(watch, thread, clock, 5)
    thread.next()
    assert [each and (each.op, each.since) for each in seen] == [("all_reduce in backward", 1)] * 5


def test_what_was_read_last_is_not_repeated_for_the_next_call(
    tmp_path: Path, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = Looked(call_of(tmp_path, "_engine_run_backward"), 3)
    watch = current_collective.Watch(thread.ident)
    clock.records = [record(900.0)]
    thread.next()
    assert watch.look() is not None
    monkeypatch.setattr(recorder, "_rested", float("inf"))
    clock.now += 1
    again = watch.look()
    assert again is not None, "the wait is not over because nobody reads"
    assert again.since == 101
    for _ in range(2):
        thread.go_on()
        thread.next()
        assert watch.look() is None
        assert watch.look() is None
    thread.go_on()
    thread.next()


def test_a_call_is_new_once() -> None:
    def call() -> list[bool]:
        frame = sys._getframe()
        return [is_new(frame), is_new(frame)]

    assert [call() for _ in range(3)] == [[True, False]] * 3
