"""Tracebacks are formatted in little time: `inspect` knows of which module each frame is."""

from __future__ import annotations

import inspect
import linecache
import sys
from types import FrameType, ModuleType

import pytest

from nbdist.rank.values.user_errors import make_quick_to_show

CODE = "def fails():\n    1 / 0\n"


class Looked(ModuleType):
    """A module that counts how often its file was asked for, as `inspect` does of all modules."""

    count = 0

    def __getattr__(self, name: str) -> str:
        self.count += name == "__file__"
        raise AttributeError(name)


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> Looked:
    """Return one among the modules that are imported, where `inspect` knows of none yet."""
    module = Looked("looked_at")
    monkeypatch.setitem(sys.modules, "looked_at", module)
    for known in ("modulesbyfile", "_filesbymodname"):
        monkeypatch.setattr(inspect, known, {})
    return module


def failed(monkeypatch: pytest.MonkeyPatch, path: str, *, known: bool) -> ZeroDivisionError:
    """Return what a cell raises in a module that stands for the notebook's."""
    module = ModuleType("stands_for_main")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    if known:
        lines = CODE.splitlines(keepends=True)
        monkeypatch.setitem(linecache.cache, path, (len(CODE), None, lines, path))
    exec(compile(CODE, path, "exec"), vars(module))  # noqa: S102 - as a shell runs a cell
    with pytest.raises(ZeroDivisionError) as raised:
        module.fails()
    return raised.value


def frame_of(error: BaseException) -> FrameType:
    """Return the frame that has raised an exception."""
    trace = error.__traceback__
    assert trace is not None
    while trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame


def test_no_module_is_looked_at_for_the_frame_of_a_cell(
    monkeypatch: pytest.MonkeyPatch, looked: Looked
) -> None:
    error = failed(monkeypatch, "Cell In[1]", known=True)
    frame = frame_of(error)
    inspect.getmodule(frame)
    assert looked.count, "or this does not show anything"
    looked.count = 0
    make_quick_to_show(error)
    assert inspect.getmodule(frame) is sys.modules["stands_for_main"]
    assert inspect.getsourcelines(frame)[0] == ["def fails():\n", "    1 / 0\n"]
    assert not looked.count


def test_what_led_to_an_exception_is_quick_to_show_too(
    monkeypatch: pytest.MonkeyPatch, looked: Looked
) -> None:
    error, cause = (failed(monkeypatch, f"Cell In[{n}]", known=True) for n in (1, 2))
    error.__cause__ = cause
    make_quick_to_show(error)
    inspect.getmodule(frame_of(cause))
    assert not looked.count


@pytest.mark.usefixtures("looked")
def test_a_module_is_not_asked_for_the_source_of_a_file_that_is_none_of_its(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    error = failed(monkeypatch, "made up", known=False)
    make_quick_to_show(error)
    assert not {"made up"} & inspect.modulesbyfile.keys()
