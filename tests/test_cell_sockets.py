"""Cells and outcomes on Unix sockets: whole, in order, and open to nobody else's messages."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import stat
import threading
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from nbdist.hub.link import cell_sockets
from nbdist.hub.link.agent_connections import Line
from nbdist.wire.encoding import decode_to_agent, encode_to_hub
from nbdist.wire.framing import HEAD_BYTES, MAX_MESSAGE, Stream
from nbdist.wire.messages import Display, Done, Hello, Run
from tests.helpers.notebook import on_ranks
from tests.helpers.waiting import Deadline, allowed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    import pytest

    from nbdist.hub.link.agent_connections import Heard
    from tests.helpers.kernel import Kernel

LARGE = 5_000_000


@asynccontextmanager
async def line_at(path: Path, heard: list[Heard]) -> AsyncIterator[Line]:
    """Listen for ranks."""
    line = Line(lambda _rank, _incarnation, message: heard.append(message), cells=path)
    try:
        yield line
    finally:
        line.close()


def rank_at(path: Path, rank: int = 0, incarnation: int = 0) -> Stream:
    """Be the main thread of a rank."""
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(str(path))
    stream = Stream(sock)
    stream.send_all(encode_to_hub(Hello(rank, incarnation, os.getpid(), "here")))
    return stream


async def until(holds: Callable[[], object], seconds: float = 20) -> None:
    """Wait until something holds."""
    deadline = Deadline(seconds)
    while not holds():
        assert not deadline.over
        await asyncio.sleep(0.005)


def a_cell(code: str) -> Run:
    return Run(
        job="1", code=code, filename_line=1, execution_count=1, logs="", shown=0, cwd="",
        sys_path=[], environ={}, arguments=[], autoreload="", parcel="",
    )  # fmt: skip


async def test_large_messages_are_whole_both_ways(tmp_path: Path) -> None:
    heard: list[Heard] = []
    async with line_at(tmp_path / "cells", heard) as line:
        line.expect(0, 0)
        rank = rank_at(tmp_path / "cells")
        await until(lambda: heard)
        codes = [f"{number}" * LARGE for number in range(3)]
        for code in codes:
            line.send_cell([0], a_cell(code))  # returns at once: the rank reads later
        came: list[bytes] = []
        while len(came) < len(codes):
            came += rank.receive()
            await asyncio.sleep(0)
        taken = [decode_to_agent(each) for each in came]
        assert [each.code for each in taken if isinstance(each, Run)] == codes

        def answer() -> None:  # it waits until the hub has read most of it
            for number in range(3):
                rank.send_all(encode_to_hub(Display("1", number, "x" * LARGE, {})))
            rank.send_all(encode_to_hub(Done("1", 0)))

        talking = threading.Thread(target=answer)
        talking.start()
        await until(lambda: len(heard) == 5)
        talking.join()
        displays = [each for each in heard if isinstance(each, Display)]
        assert [(each.offset, len(each.kind)) for each in displays] == [
            (number, LARGE) for number in range(3)
        ]
        assert isinstance(heard[-1], Done)
        rank.socket.close()


async def test_the_last_words_of_one_that_goes_are_heard(tmp_path: Path) -> None:
    heard: list[Heard] = []
    async with line_at(tmp_path / "cells", heard) as line:
        line.expect(0, 0)
        rank = rank_at(tmp_path / "cells")
        rank.send_all(encode_to_hub(Done("1", 7)))
        rank.socket.close()
        await until(lambda: len(heard) == 2)
        assert isinstance(heard[1], Done)
        line.send_cell([0], a_cell("pass"))  # nobody is there: its death is told elsewhere


async def test_strangers_and_predecessors_are_not_listened_to(tmp_path: Path) -> None:
    heard: list[Heard] = []
    path = tmp_path / "cells"
    async with line_at(path, heard) as line:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        line.expect(0, 1)
        old, new, nameless = rank_at(path, 0, 0), rank_at(path, 0, 1), Stream(_connected(path))
        await until(lambda: heard)
        old.send_all(encode_to_hub(Done("1", 0)))
        nameless.send_all(encode_to_hub(Done("1", 0)))
        garbage, huge = Stream(_connected(path)), _connected(path)
        garbage.send_all(b"\xc1 no message")
        huge.sendall((MAX_MESSAGE + 1).to_bytes(HEAD_BYTES, "big"))
        new.send_all(encode_to_hub(Done("1", 1)))
        await until(lambda: len(heard) == 2 and line.garbage == 2)
        assert [each.log_end for each in heard if isinstance(each, Done)] == [1]
        huge.setblocking(False)  # the line hangs up in this thread, which must not block
        hung_up = asyncio.get_running_loop().sock_recv(huge, 1)
        assert await asyncio.wait_for(hung_up, allowed(20)) == b""
        line.send_cell([1, 0], a_cell("mine"))  # there is no rank 1
        await until(new.receive)
        assert not old.receive()
        line.expect(0, 2)  # yet to come
        line.send_cell([0], a_cell("its"))
        assert not new.receive()
        for each in (old, new, nameless, garbage):
            each.socket.close()
        huge.close()


async def until_too_many_files(line: Line) -> None:
    """Let the line have no file for a rank that comes, until it has noticed that."""
    loop: Any = asyncio.get_running_loop()
    listening = line._cells._listening.fileno()  # type: ignore[union-attr]
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limit[1]))
    try:
        await until(lambda: listening not in loop._selector.get_map())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)


async def test_a_rank_comes_in_when_there_are_fewer_open_files(tmp_path: Path) -> None:
    heard: list[Heard] = []
    troubles: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, about: troubles.append(about))
    async with line_at(tmp_path / "cells", heard) as line:
        line.expect(0, 0)
        rank = rank_at(tmp_path / "cells")
        await until_too_many_files(line)
        assert not heard
        await until(lambda: heard)
        rank.socket.close()
    assert not troubles


async def test_nobody_comes_in_after_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    troubles: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, about: troubles.append(about))
    monkeypatch.setattr(cell_sockets, "AGAIN_SECONDS", 0.05)
    async with line_at(tmp_path / "cells", []) as line:
        rank = rank_at(tmp_path / "cells")
        await until_too_many_files(line)
    await asyncio.sleep(cell_sockets.AGAIN_SECONDS)  # the line's own timer is before this one
    rank.socket.close()
    assert not troubles


async def test_one_that_reads_no_more_is_hung_up_on(tmp_path: Path) -> None:
    heard: list[Heard] = []
    async with line_at(tmp_path / "cells", heard) as line:
        line.expect(0, 0)
        rank = rank_at(tmp_path / "cells")
        await until(lambda: heard)
        line.send_cell([0], a_cell("x" * LARGE))  # most of it waits here
        assert rank.socket.recv(LARGE)  # there is room again, and nobody to take it
        rank.socket.shutdown(socket.SHUT_RD)
        await until(lambda: not line._cells._streams)  # type: ignore[union-attr]
        rank.socket.close()


def _connected(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(str(path))
    return sock


def test_what_a_cell_displays_comes_before_its_end(notebook: Kernel) -> None:
    code = "from IPython.display import display\nfor number in range(50): display(number)"
    for _ in range(3):
        cell = on_ranks(notebook, f"{code}\nprint('printed')")
        words = cell.seen().split()
        assert [int(word) for word in words if word.isdecimal()] == [*range(50)]
        assert words[-1] == "printed"


SLOW = """
    import time
    from nbdist.rank import hub_connection
    encode = hub_connection.encode_to_hub
    def slow(message):
        if type(message).__name__ == "Display": time.sleep(0.1)
        return encode(message)
    hub_connection.encode_to_hub = slow
"""


def test_what_a_cell_prints_does_not_overtake_what_it_displays(notebook: Kernel) -> None:
    on_ranks(notebook, SLOW)
    shows = "display(0); print('a'); display(1); print('b')"
    cell = on_ranks(notebook, f"from IPython.display import display\n{shows}")
    on_ranks(notebook, "hub_connection.encode_to_hub = encode")
    assert [word for each in cell.events for word in each.text.split()] == ["0", "a", "1", "b"]


DEAF = """
    decode = hub_connection.decode_to_agent
    def deaf(data):
        message = decode(data)
        if type(message).__name__ == "Received": time.sleep(0.2)
        return message
    hub_connection.decode_to_agent = deaf
"""


def test_threads_that_display_at_the_same_time_each_wait_for_their_own(notebook: Kernel) -> None:
    on_ranks(notebook, SLOW + DEAF)
    body = """
        from threading import Thread
        from IPython.display import display
        def show(name):
            display(f"{name} display")
            print(f"{name} print", flush=True)
        threads = [Thread(target=show, args=(name,)) for name in "abc"]
        for thread in threads:
            thread.start()
            time.sleep(0.15)  # the hub's word on the display before is on its way
        for thread in threads: thread.join()
    """
    cell = on_ranks(notebook, body)
    on_ranks(
        notebook, "hub_connection.encode_to_hub = encode; hub_connection.decode_to_agent = decode"
    )
    lines = [line.strip("'") for each in cell.events for line in each.text.splitlines()]
    for name in "abc":
        told = [line for line in lines if line.startswith(f"{name} ")]
        assert told == [f"{name} display", f"{name} print"]
