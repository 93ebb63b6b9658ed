"""What a process shows of itself, and how it takes commands: whatever the disk and others do."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import threading
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from nbdist.errors import NbdistError
from nbdist.job.job import Job
from nbdist.machine import leftovers, process_lives
from nbdist.machine.process_lives import Place, started
from nbdist.metrics.last_values import Last
from nbdist.metrics.points_file import points_file
from nbdist.published import state_file as records
from nbdist.published.beacon import Beacon
from nbdist.published.records import ShownJob
from nbdist.server import page_commands
from nbdist.server.page_commands import ProcessDoesNotAnswer
from nbdist.server.processes import Processes
from tests.helpers.states import NOBODY, job_in, put, state_of
from tests.helpers.waiting import Deadline

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a runtime folder of the test's own."""
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    return tmp_path / "runtime"


@asynccontextmanager
async def shining(record: records.Record, **taken: Any) -> AsyncIterator[Beacon]:
    """Show a record, and take commands."""
    beacon = Beacon(lambda: record, taken)
    await beacon.start()
    try:
        await until(lambda: beacon._next is None or shown())
        yield beacon
    finally:
        await beacon.stop()


async def until(holds: Callable[[], object], seconds: float = 20) -> None:
    """Wait until something holds."""
    deadline = Deadline(seconds)
    while not holds():
        assert not deadline.over
        await asyncio.sleep(0.02)


def shown() -> list[records.Record]:
    """Return what can be seen."""
    return [records.read(path) for path in records.folder().glob("*.json")]


def of_commands() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "nbdist-command"]


async def test_commands_that_wait_hold_up_no_other_and_not_the_end_of_python() -> None:
    free = threading.Event()
    async with shining(state_of(""), wait=lambda: free.wait(600), say=lambda: "said"):
        (told,) = shown()
        waiting = [asyncio.create_task(page_commands.ask(told, "wait")) for _ in range(40)]
        await until(lambda: len(of_commands()) == len(waiting))
        assert all(thread.daemon for thread in of_commands())
        assert await page_commands.ask(told, "say") == "said"
        free.set()
        assert await asyncio.gather(*waiting) == [True] * 40


async def test_whatever_is_answered_is_told_in_words() -> None:
    async with shining(state_of(""), odd=lambda: "a\ud800", long=lambda: "x" * (8 << 20)):
        (told,) = shown()
        assert await page_commands.ask(told, "odd") == "a?"
        assert len(await page_commands.ask(told, "long")) == 8 << 20
        with pytest.raises(NbdistError, match="unknown") as caught:
            await page_commands.ask(told, "unknown")
        assert not isinstance(caught.value, ProcessDoesNotAnswer)  # or its process would be ended


@pytest.mark.parametrize("said", [b"3\n3\n", b"\xff\n", b"[" * 100_000 + b"\n", b"", b"{}\n"])
async def test_a_socket_that_says_nonsense_does_not_answer(tmp_path: Path, said: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(said)
        writer.close()
        await writer.wait_closed()

    record = state_of("aa")
    record.control = str(tmp_path / "s")
    server = await asyncio.start_unix_server(answer, record.control)
    with pytest.raises(ProcessDoesNotAnswer, match="does not answer"):
        await page_commands.ask(record, "stop")
    server.close()


async def test_what_is_no_text_is_shown_all_the_same(tmp_path: Path) -> None:
    job = job_in(tmp_path, parts={0: (7, None)}, metrics={"a\ud800": 1.0})
    job.first_line = "print('\ud800')"
    record = state_of("", jobs=[job])
    record.notebook = os.fsdecode(b"/caf\xe9.ipynb")
    async with shining(record):
        (told,) = shown()
    assert told.notebook == "/caf?.ipynb"
    assert told.jobs[0].first_line == "print('?')"
    assert told.jobs[0].parts == {0: (7, None)}


async def test_a_file_and_a_folder_that_were_removed_are_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nbdist.published.beacon.BEAT_SECONDS", 0.1)
    async with shining(state_of("")):
        records.folder().joinpath(f"{shown()[0].id}.json").unlink()
        assert shown() == []
        await until(shown)
        shutil.rmtree(records.folder())
        assert shown() == []
        await until(shown)


@pytest.mark.parametrize("name", ["a" * 150, "with space/ünï"])
async def test_any_runtime_folder_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / name))
    temp = tmp_path / ("b" * 150)
    temp.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temp))
    async with shining(state_of(""), say=lambda: "said"):
        (told,) = shown()
        assert await page_commands.ask(told, "say") == "said"
    assert not shown()
    assert not await asyncio.to_thread(os.path.lexists, told.control)
    assert not os.listdir(temp)


async def test_without_a_folder_nothing_is_shown_and_nothing_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", "/dev/null")
    async with shining(state_of("")) as beacon:
        assert shown() == []
        await beacon.stop(leave=state_of(""))
    assert shown() == []


async def test_what_cannot_be_steered_is_shown_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The socket's path would be too long, and the folder for those that are is not there."""
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / ("a" * 150)))
    monkeypatch.setattr("tempfile.tempdir", "/nowhere")
    monkeypatch.setattr("nbdist.published.beacon.BEAT_SECONDS", 0.1)
    async with shining(state_of("")):
        (told,) = shown()
        assert told.control == ""
        records.folder().joinpath(f"{told.id}.json").unlink()
        await until(shown)  # there is nothing else to touch
    assert not shown()


async def test_a_state_that_cannot_be_told_is_told_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nbdist.published.beacon.SELDOM_SECONDS", 0.05)
    states: list[records.Record | None] = [None, state_of("")]

    def tell() -> records.Record | None:
        return states.pop(0) if states[1:] else states[0]

    def fail() -> records.Record | None:
        beacon._tell = tell
        raise OSError("No space left on device")

    beacon = Beacon(fail, {})
    await beacon.start()
    await until(shown)
    await beacon.stop()


async def test_who_asks_and_does_not_wait_for_the_answer_troubles_nobody() -> None:
    troubles: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: troubles.append(about))
    free = threading.Event()
    async with shining(state_of(""), wait=lambda: free.wait(600), say=lambda: "said"):
        (told,) = shown()
        reader, writer = await asyncio.open_unix_connection(told.control)
        writer.write(b'{"command": "wait", "args": {}}\n')
        assert await reader.readline() == b"{}\n"
        writer.close()
        await writer.wait_closed()
        free.set()
        await until(lambda: not of_commands())
        assert await page_commands.ask(told, "say") == "said"
    assert not troubles


def test_a_process_of_another_host_is_alive_while_it_touches_its_file() -> None:
    record = state_of("aa", pid=NOBODY)
    record.place = Place("elsewhere", boot="another")
    path = put(record)
    processes = Processes()
    processes.look()
    assert [each["alive"] for each in processes.state()["processes"]] == [True]
    silent = time.time() - 2 * process_lives.SILENT_SECONDS
    os.utime(path, (silent, silent))
    processes.look()
    assert [each["alive"] for each in processes.state()["processes"]] == [False]
    assert [entry.path for entry in processes.gone()] == [path]
    away = path.with_name("bb.json")  # removed since its folder was listed
    assert not record.alive(away)
    assert not records.outdated(record, away)
    long_ago = time.time() - 2 * records.GONE_SECONDS
    os.utime(path, (long_ago, long_ago))
    processes.look()
    assert not path.exists()


def test_what_killed_processes_have_left_is_swept_away() -> None:
    folder = records.folder()
    folder.mkdir(parents=True, mode=0o700)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(folder / "listening.sock"))
    listening.listen()
    busy = socket.socket(socket.AF_UNIX)
    busy.bind(str(folder / "busy.sock"))
    busy.listen(0)
    waits = socket.socket(socket.AF_UNIX)
    waits.connect(str(folder / "busy.sock"))  # there is no room for another one
    for name in ("left.sock", "elsewhere.sock"):  # on another host somebody may listen
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(folder / name))
    for name, age in (
        ("old.json.part", 2 * records.GONE_SECONDS),
        ("new.json.part", 0),
        ("listening.sock", 2 * process_lives.FORGOTTEN_SECONDS),
        ("busy.sock", 2 * process_lives.FORGOTTEN_SECONDS),
        ("left.sock", 2 * process_lives.FORGOTTEN_SECONDS),
        ("elsewhere.sock", 2 * process_lives.SILENT_SECONDS),
    ):
        if name.endswith(".part"):
            (folder / name).touch()
        os.utime(folder / name, (time.time() - age,) * 2)
    records.sweep()
    assert {path.name for path in folder.iterdir()} == {
        "listening.sock", "busy.sock", "elsewhere.sock", "new.json.part"
    }  # fmt: skip
    for each in (listening, busy, waits):
        each.close()


def test_points_that_are_none_are_left_alone(tmp_path: Path) -> None:
    path = points_file(tmp_path, "7", 0)
    last = Last(tmp_path, "7", 0)
    assert last.values() == {}
    path.mkdir()
    assert last.values() == {}
    path.rmdir()
    path.write_bytes(b"\x05\x00\x00\x00junk, not a frame")
    assert last.values() == {}


def test_a_process_is_the_same_whatever_the_clock_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    put(state_of("aa"))
    leftovers.sign(tmp_path)
    began = psutil.boot_time()
    for name in ("boot_time", "BOOT_TIME"):
        if hasattr(psutil._pslinux, name):
            monkeypatch.setattr(psutil._pslinux, name, lambda: began + 3600)
    processes = Processes()
    processes.look()
    assert [each["alive"] for each in processes.state()["processes"]] == [True]
    assert leftovers.owned(tmp_path, patience=0)
    leftovers.disown(tmp_path)
    assert not process_lives.runs(os.getpid(), started(os.getpid()) + 100)
    assert not process_lives.runs(NOBODY, 1.0)


def test_what_has_no_end_is_cut_short(tmp_path: Path) -> None:
    job = Job(id="7", code="x = '" + "x" * 1_000_000 + "'", ranks=(0,), folder=tmp_path, number=1)
    for number in range(1000):
        job.tell(f"restart {number}", "because " + "x" * 10_000)
    job.end(NbdistError("y" * 1_000_000))
    assert len(records.encode(ShownJob(job, "torchrun").record())) < 50_000
