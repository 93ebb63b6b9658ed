"""Parts of the horovod backend by themselves: no kernel and no ranks."""

from __future__ import annotations

import _thread
import importlib
import itertools
import sys
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from nbdist.backends.groups import wait_time
from nbdist.backends.horovod import calls, listening
from nbdist.backends.models import keras_names
from tests.helpers.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbdist.backends.horovod.engine_ranks import Horovod

TORCH = [
    ("horovod.torch.mpi_ops", "allreduce"),
    ("torch.autograd.function", "apply"),
    ("horovod.torch.mpi_ops", "synchronize"),
]
GENERATED = "0123456789abcdef0123456789abcdef01234567"
TENSORFLOW = [
    ("horovod.tensorflow.mpi_ops", "broadcast"),
    (GENERATED, "horovod_broadcast"),
    ("tensorflow.python.eager.execute", "quick_execute"),
]


def stand_in(frames: list[tuple[str, str]], innermost: Callable[[], object]) -> Any:
    """Return the first of these functions, each of which calls the next: Horovod never waits here.

    Of Horovod's functions and TensorFlow's only the names, and those of their modules, are known.
    """
    call: Any = innermost
    for module, name in reversed(frames):
        space: dict[str, Any] = {"__name__": module, "call": call}
        exec(f"def {name}():\n    call()", space)  # noqa: S102  # our own
        call = space[name]
    return call


@pytest.mark.parametrize("frames", [TORCH, TENSORFLOW], ids=["torch", "tensorflow"])
def test_a_wait_is_told_by_the_outermost_call_of_horovods(frames: list[tuple[str, str]]) -> None:
    held = threading.Lock()
    held.acquire()  # the thread below waits for it in C, as Horovod waits
    wait = wait_time.timed(held.acquire) if frames is TORCH else held.acquire
    watch = calls.Watch(_thread.start_new_thread(stand_in(frames, wait), ()))
    try:
        first = until(watch.look, told=lambda: "no wait was seen")
        second = watch.look()
        assert second is not None
        assert first.op == second.op == frames[0][1]
        assert first.since < second.since, "counted from the first look"
    finally:
        held.release()
    until(lambda: watch.look() is None, told=lambda: "the thread has ended")


def test_a_wait_beyond_horovods_calls_is_none_of_theirs() -> None:
    held = threading.Lock()
    held.acquire()
    frames = [("horovod.torch.functions", "broadcast_object"), ("users.module", "load")]
    thread = threading.Thread(target=stand_in(frames, held.acquire))
    thread.start()
    inside = sys._current_frames
    try:
        until(lambda: inside()[thread.ident or 0].f_code.co_name == "load")
        assert calls.Watch(thread.ident or 0).look() is None
    finally:
        held.release()
        thread.join()


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Horovod:
    """Return the backend of a rank that is alone; Horovod itself is not started."""
    for name in listening.ASKING:  # put back afterwards
        module: Any = importlib.import_module(name)
        monkeypatch.setattr(module, "find_port", module.find_port)
    from nbdist.backends.horovod.engine_ranks import Horovod

    return Horovod(rank=0, local_rank=0, world_size=1)


@pytest.mark.horovod
def test_ranks_agree_on_counts_of_layers_through_the_newest_server(
    alone: Horovod, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not alone.goes_on_when_freed(), "a cell need not be stopped as well"
    first, port = alone.open_store(), alone.open_store()
    try:
        assert first != port, "the first one may still be open"
        assert alone._server._httpd.server_address == ("127.0.0.1", port)
        for name, value in alone._environ(port).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(keras_names, "MODULES", ())  # Keras was not imported by any rank
        monkeypatch.setitem(sys.modules, "keras", None)  # so its import would fail
        clock = SimpleNamespace(monotonic=itertools.count(step=6).__next__, sleep=lambda _: None)
        monkeypatch.setattr(keras_names, "time", clock)
        with pytest.raises(TimeoutError, match=r"rank 0 has not sent its counts .* within 10 s"):
            keras_names.agree(1, 2)
        keras_names.agree(0, 1)  # rank 1 has come too early
    finally:
        alone._server.stop()
        alone._server._httpd.server_close()
