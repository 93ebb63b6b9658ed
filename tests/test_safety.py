"""Nobody else gets in: garbage and wrong keys at the hub's port, who listens, what is kept."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import stat
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import psutil
import pytest
import zmq

from nbdist.wire.channel import Keys, connect
from tests.helpers.faults import MODELS
from tests.helpers.notebook import distributed, on_ranks
from tests.helpers.processes import family, sockets
from tests.helpers.waiting import Deadline

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.helpers.cell import Cell
    from tests.helpers.kernel import Kernel

pytestmark = pytest.mark.repeats

STEPS = """
    import os
    rounds, over = 0, torch.zeros(())
    while not over:  # as rank zero sees it: ranks look at times of their own
        losses = [step() for _ in range(20)]
        rounds += 1
        if rank == 0: print("round", rounds, flush=True)
        over += os.path.exists({over!r})
        dist.broadcast(over, 0)
    print("all the way", rounds)
"""
LINE = "nbdist.cluster().hub.line"
TELL_KEYS = f"""
import json, msgspec
line = {LINE}
print(json.dumps([line.url, [k.decode() for k in msgspec.structs.astuple(line.keys)]]))
"""
GREETING = b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03\x01"
JUNK = [
    b"",
    b"\x00",
    b"\xff" * 10_000,
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    GREETING,  # half a handshake, then silence
    GREETING + b"CURVE".ljust(20, b"\x00") + b"\x00" * 32,
    GREETING + b"NULL".ljust(20, b"\x00") + b"\x00" * 32,
    GREETING + b"CURVE".ljust(20, b"\x00") + b"\x00" * 32 + b"\x04\xc8\x05HELLO" + b"\x01" * 194,
    *(hashlib.shake_256(bytes([seed])).digest(2000) for seed in range(20)),
]

DECIDED = {
    "HANDSHAKE_SUCCEEDED", "HANDSHAKE_FAILED_AUTH", "HANDSHAKE_FAILED_NO_DETAIL",
    "HANDSHAKE_FAILED_PROTOCOL", "DISCONNECTED",
}  # fmt: skip
"""What befalls a connection that is let in, or is not."""


@pytest.fixture(scope="module")
def cluster(shared_kernel: Kernel) -> Kernel:
    """Return a kernel with two ranks that hold a model."""
    shared_kernel.run("%load_ext nbdist\nimport nbdist")
    on_ranks(shared_kernel, MODELS["ddp"] + "\nfirst = step()", "-np 2")
    return shared_kernel


@pytest.fixture
def door(cluster: Kernel) -> tuple[str, Keys]:
    """Return where the hub listens and the keys, which no stranger could know."""
    url, keys = json.loads(cluster.run(TELL_KEYS).stdout)
    return url, Keys(*(key.encode() for key in keys))


@contextmanager
def junk_thrown(url: str) -> Iterator[None]:
    """Write junk to the port and keep the connections open meanwhile."""
    host, port = url.removeprefix("tcp://").split(":")
    with ExitStack() as stack:
        for junk in JUNK:
            sock = stack.enter_context(socket.create_connection((host, int(port))))
            sock.sendall(junk)
        yield


class Watched(zmq.Context[zmq.Socket[bytes]]):
    """Watches its sockets before they connect, or what befalls them first would be missed."""

    def socket(self, *args: Any, **options: Any) -> zmq.Socket[bytes]:
        """Make a socket with its monitor."""
        sock = super().socket(*args, **options)
        if sock.type != zmq.PAIR:  # a monitor's own
            sock.get_monitor_socket()
        return sock


def speak(url: str, keys: Keys | None, messages: list[list[bytes]]) -> set[str]:
    """Send messages with these keys (None: without any); return what befell the connection."""
    events: set[str] = set()
    deadline = Deadline(20)
    with Watched() as context:
        if keys is None:
            sock = context.socket(zmq.DEALER)
            sock.connect(url)
        else:
            sock = connect(context, url, keys, b"1.0-stranger")
        monitor = sock.get_monitor_socket()
        for message in messages:
            sock.send_multipart(message)
        while not events & DECIDED:
            assert not deadline.over, events
            if monitor.poll(100):
                event = int.from_bytes(monitor.recv_multipart()[0][:2], "little")
                events.add(zmq.Event(event).name or "")
        sock.disable_monitor()
        monitor.close(0)
        # Who was let in stays until all is sent.
        sock.close(60_000 if "HANDSHAKE_SUCCEEDED" in events else 0)
    return events


def rounds_told(cell: Cell) -> int:
    return cell.stdout.count("round")


def goes_on(cluster: Kernel, cell: Cell, rounds: int = 5) -> None:
    """Wait until the steps have gone on for some rounds from here."""
    before = rounds_told(cell)
    cluster.until(lambda: cell.done or rounds_told(cell) >= before + rounds, 30, cell)
    assert not cell.done, cell.seen()


def test_a_job_is_undisturbed_by_strangers(
    cluster: Kernel, door: tuple[str, Keys], tmp_path: Path
) -> None:
    url, keys = door
    garbage = cluster.run(f"{LINE}.garbage").text
    strangers = Keys.new()
    imposter = Keys(keys.server_public, b"", strangers.client_public, strangers.client_secret)
    over = tmp_path / "over"
    cell = cluster.start(distributed(STEPS.format(over=str(over))))
    cluster.expect("round")
    hello = [[b"\x00"], [b"hello"]]
    with junk_thrown(url):
        goes_on(cluster, cell)
        for wrong in (None, strangers, imposter):
            assert "HANDSHAKE_SUCCEEDED" not in speak(url, wrong, hello)
            goes_on(cluster, cell)
        over.touch()
        done = cluster.wait(60)
    assert done.ok, done.seen()
    assert "all the way" in done.text
    told = cluster.run(f"{LINE}.garbage").text
    assert told == garbage, "nothing of it got as far as a message"


def test_malformed_messages_are_counted_and_dropped(
    cluster: Kernel, door: tuple[str, Keys], tmp_path: Path
) -> None:
    url, keys = door
    encode = msgspec.msgpack.encode
    bad = [
        [b""],
        [b"\xc1" * 100],
        [b"two", b"frames"],
        [encode({"type": "Done", "job": 7, "log_end": "x"})],
        [encode({"type": "Shutdown"})],
        [encode({"type": "Run", "job": "x"})],
        [encode([1, 2, 3])],
        [encode({"type": "Hello", "rank": 1, "incarnation": 0, "pid": -1, "host": []})],
        [b"\xdf\xff\xff\xff\xff"],  # a map of four billion entries, and no bytes of it
        [b"\x91" * 100_000],  # deeply nested
    ]
    before = int(cluster.run(f"{LINE}.garbage").text)
    over = tmp_path / "over"
    cell = cluster.start(distributed(STEPS.format(over=str(over))))
    cluster.expect("round")
    assert "HANDSHAKE_SUCCEEDED" in speak(url, keys, bad), "the right keys do open the door"
    goes_on(cluster, cell)
    over.touch()
    done = cluster.wait(60)
    assert done.ok, done.seen()
    cluster.run(f"import time\nwhile {LINE}.garbage < {before + len(bad)}: time.sleep(0.01)")
    assert int(cluster.run(f"{LINE}.garbage").text) == before + len(bad)


def test_a_true_message_of_a_stranger_is_heard_by_nobody(
    cluster: Kernel, door: tuple[str, Keys]
) -> None:
    """A socket that is no rank's has no say, whatever it says."""
    url, keys = door
    done = msgspec.msgpack.encode({"type": "Done", "job": "x", "log_end": 0})
    speak(url, keys, [[done]])
    assert on_ranks(cluster, "print('goes on')").stdout == "goes on\n"


def test_nothing_listens_beyond_this_machine(cluster: Kernel) -> None:
    on_ranks(cluster, "pair = dist.new_group([0, 1])\ndist.barrier(pair)")
    cluster.run("%px 1")
    listening = {
        (process.name(), connection.laddr)
        for process in [*family(cluster), psutil.Process(cluster.pid)]
        for connection in sockets(process)
        if connection.status in (psutil.CONN_LISTEN, psutil.CONN_NONE) and connection.laddr
    }
    assert len(listening) > 5, "torch's store, gloo, the controller and the hub listen"
    assert not {place for place in listening if place[1].ip not in ("127.0.0.1", "::1")}


def test_files_and_folders_are_ours_alone(cluster: Kernel) -> None:
    on_ranks(cluster, "print('private')")
    seen = 0
    for place in (cluster.home / "clusters", cluster.home / "logs"):
        for path in (place, *place.rglob("*")):
            if path.name == "README":  # IPython's, copied as it is
                continue
            mode = path.lstat()
            allowed = 0o700 if stat.S_ISDIR(mode.st_mode) else 0o600
            extra = stat.S_IMODE(mode.st_mode) & ~allowed
            assert not extra, f"{path} is open to others: {stat.filemode(mode.st_mode)}"
            seen += 1
    assert seen > 10


def test_keys_are_in_no_file_environment_or_command_line(
    cluster: Kernel, door: tuple[str, Keys], scratch: Path
) -> None:
    _, keys = door
    secrets = [keys.server_secret, keys.client_secret]
    for process in [*family(cluster), psutil.Process(cluster.pid)]:
        for name in ("environ", "cmdline"):
            text = Path(f"/proc/{process.pid}/{name}").read_bytes()
            assert not any(secret in text for secret in secrets), f"{name} of {process}"
    inside = "print(*[v for v in os.environ.values()])"
    text = on_ranks(cluster, inside).stdout.encode()
    assert not any(secret in text for secret in secrets)
    for folder, _, files in os.walk(scratch):
        for file in files:
            path, content = Path(folder, file), b""
            if path.is_file():
                with suppress(FileNotFoundError):  # states are written anew again and again
                    content = path.read_bytes()
            assert not any(secret in content for secret in secrets), path
