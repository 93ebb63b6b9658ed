"""The sockets of this process: finds them, closes them, listens on loopback."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Address = tuple[str, int]

LOOPBACK = "127.0.0.1"
SOON_SECONDS, LOOK_SECONDS = 0.002, 0.1
"""The first and the longest pause between two looks."""
_FD_FOLDER = "/dev/fd"
_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
"""Linux's tables of all TCP sockets."""
_LISTENS = "0A"
_INTERNET = {socket.AF_INET, socket.AF_INET6}


def listen(host: str = LOOPBACK, port: int = 0) -> socket.socket:
    """Listen on one address only, unlike torch's own stores; port 0 takes a free port."""
    listener = socket.create_server((host, port), backlog=1024)
    listener.set_inheritable(False)
    return listener


def reserve(host: str = LOOPBACK) -> socket.socket:
    """Return a socket that reserves a free port, at which a process that knows it may listen."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((host, 0))
    return sock


def address_towards(host: str) -> str:
    """Return this machine's address on the way to another machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect((host, 9))  # nothing is sent
        return str(sock.getsockname()[0])


def interface_towards(host: str) -> str:
    """Return the name of the network interface on the way to another machine."""
    return interface_of(address_towards(host))


def interface_of(address: str) -> str:
    """Return the name of the network interface that has an address of this machine, or ''."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.family == socket.AF_INET and each.address == address for each in addresses):
            return str(name)
    return ""


def loopback_interface() -> str:
    """Return the name of this machine's loopback interface."""
    return interface_of(LOOPBACK) or "lo"


def until_listening(port: int, seconds: float) -> None:
    """Wait until a process of this machine listens at a port, at most so many seconds."""
    until, pause = time.monotonic() + seconds, SOON_SECONDS
    while not _is_listening(port) and time.monotonic() < until:
        time.sleep(pause)
        pause = min(LOOK_SECONDS, 1.2 * pause)


def _is_listening(port: int) -> bool:
    """Whether a process listens at a port; also true if this cannot be known."""
    try:
        tables = [table.read_text(encoding="ascii").splitlines() for table in _TABLES]
    except OSError:
        return True
    wanted = f":{port:04X}"
    return any(
        line[1].endswith(wanted) and line[3] == _LISTENS
        for table in tables
        for line in map(str.split, table)
    )


def listening() -> set[Address]:
    """Return the addresses on which this process listens."""
    return {
        _plain(sock.getsockname())
        for sock in _tcp_sockets()
        if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    }


def reached() -> set[Address]:
    """Return the addresses to which this process is connected."""
    found = set()
    for sock in _tcp_sockets():
        with suppress(OSError):  # not connected
            found.add(_plain(sock.getpeername()))
    return found


def cut(ours: Callable[[Address, Address], bool]) -> list[socket.socket]:
    """Shut down reading from the connected sockets for which ``ours(local, peer)`` is true.

    A thread of this process that waits on such a socket is woken with an error. Listening sockets
    are never touched: gloo aborts the process when its own fails.

    Only reading is shut down, and the returned duplicates keep the connections open, because writes
    must not fail: gloo does not wake a thread that waits for a write that fails in gloo's own
    thread. Without the duplicates, writes at the other end would fail as soon as gloo here closes
    its descriptor. Call `end` with the duplicates as soon as every rank has been woken.
    """
    held = []
    for sock in _tcp_sockets():
        # A socket that is not connected (any more) has no peer, and no thread waits on it.
        with suppress(OSError):
            if ours(_plain(sock.getsockname()), _plain(sock.getpeername())):
                sock.shutdown(socket.SHUT_RD)
                held.append(sock.dup())
    return held


def end(held: list[socket.socket]) -> None:
    """Close connections for good, so that their other ends see it, too."""
    for sock in held:
        with sock, suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


def _tcp_sockets() -> Iterator[socket.socket]:
    """Yield a duplicate of every TCP socket of this process, closing it afterwards.

    The duplicate is examined, not the original descriptor: at any moment another thread may close
    that and get the same number for another file.
    """
    for name in os.listdir(_FD_FOLDER):  # numbers, not paths
        sock = _duplicate(int(name))
        if sock is not None:
            with sock:
                if sock.type == socket.SOCK_STREAM and sock.family in _INTERNET:
                    yield sock


def _duplicate(fd: int) -> socket.socket | None:
    try:
        copy = os.dup(fd)
    except OSError:  # closed meanwhile
        return None
    try:
        return socket.socket(fileno=copy)
    except OSError:  # not a socket
        os.close(copy)
        return None


def _plain(address: tuple[str, int] | tuple[str, int, int, int]) -> Address:
    return address[0].removeprefix("::ffff:"), address[1]
