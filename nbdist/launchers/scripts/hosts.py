"""Parses hosts and slots (``-H HOST:SLOTS,...`` or a file), and finds which are this machine."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from nbdist.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

SLOTS = re.compile(r"([\w.-]+):(\d+)")
LINE = re.compile(r"([\w.-]+)(?:\s+slots\s*=\s*(\d+))?")


def hosts_named(listed: str | None, file: str | None) -> dict[str, int]:
    """Return the slots of each host, in order; empty if neither argument is given.

    Parameters
    ----------
    listed
        ``HOST:SLOTS,...``.
    file
        The name of a file with lines ``HOST slots=N``; empty lines and comments are allowed.

    Raises
    ------
    UsageError
        If the text is not in this form.
    """
    if listed is not None and file is not None:
        raise UsageError("-H and --hostfile exclude each other: use one of them")
    if file is not None:
        return _read(Path(file).expanduser())
    found: dict[str, int] = {}
    for part in () if listed is None else listed.split(","):
        match = SLOTS.fullmatch(part.strip())
        if match is None:
            raise UsageError(f"-H {listed}: {part!r} is not HOST:SLOTS{_hint(part)}")
        _add(found, match[1], int(match[2]), f"-H {listed}")
    return found


def _read(path: Path) -> dict[str, int]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as err:
        raise UsageError(f"--hostfile cannot be read: {err}") from err
    except UnicodeDecodeError as err:
        raise UsageError(f"--hostfile {path} is not text in UTF-8: {err}") from err
    found: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        match = LINE.fullmatch(text)
        where = f"--hostfile {path}, line {number}"
        if match is None:
            raise UsageError(f"{where}: {text!r} is not HOST slots=N{_hint(text)}")
        _add(found, match[1], int(match[2] or 1), where)
    if not found:
        raise UsageError(f"--hostfile {path} names no host")
    return found


def _hint(text: str) -> str:
    """Return a hint for a common mistake."""
    if "@" in text:
        return "; set the user in ssh's configuration (Host, User)"
    if text.startswith("[") or text.count(":") > 1:
        return "; give an IPv4 address, or a name that ssh knows"
    return ", such as node1:4" if re.fullmatch(r"[\w.-]+", text.strip()) else ""


def _add(found: dict[str, int], host: str, slots: int, where: str) -> None:
    if host in found:
        raise UsageError(f"{where}: {host} is named twice")
    if not slots:
        raise UsageError(f"{where}: {host} has no slots")
    found[host] = slots


def check_slots(hosts: dict[str, int], np: int) -> None:
    """Raise `UsageError` if the hosts do not have slots for this many ranks."""
    if np < 1:
        raise UsageError(f"-np {np}: at least one rank is needed")
    if np > sum(hosts.values()):
        raise UsageError(f"-np {np}: the hosts have {sum(hosts.values())} slots")


def taken(hosts: dict[str, int], np: int) -> dict[str, int]:
    """Return how many ranks each host gets; hosts are filled in order."""
    found = {}
    for host, slots in hosts.items():
        found[host] = min(slots, np)
        np -= found[host]
    return {host: ranks for host, ranks in found.items() if ranks}


def far(hosts: Iterable[str]) -> list[str]:
    """Return the hosts other than this machine; a name may be known only to ssh."""
    return [host for host in hosts if not is_here(host)]


def is_here(host: str) -> bool:
    """Whether a name or address is this machine's."""
    try:
        address = socket.gethostbyname(host)
    except OSError:
        return False
    return address.startswith("127.") or address in our_addresses()


def our_addresses() -> set[str]:
    """Return this machine's addresses."""
    return {each.address for nic in psutil.net_if_addrs().values() for each in nic}


@dataclass(frozen=True)
class Reached:
    """The other hosts of a job, after they were reached."""

    address: str
    """The address at which they reach this machine."""
    addresses: dict[str, str]
    """The address of each host."""
    names: dict[str, str]
    """The name that each host has for itself."""
