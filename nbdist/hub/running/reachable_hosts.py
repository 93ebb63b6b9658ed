"""Checks that other hosts can take part in a job, before anything starts. Hub's thread."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import socket
import sys
from importlib import metadata
from typing import TYPE_CHECKING, Any

from nbdist.errors import LaunchError
from nbdist.launchers.scripts import ssh
from nbdist.launchers.scripts.hosts import Reached, our_addresses
from nbdist.machine.amounts import in_time
from nbdist.machine.operating_system import private
from nbdist.machine.sockets import address_towards
from nbdist.version import __version__

if TYPE_CHECKING:
    from pathlib import Path

    from nbdist.launchers.scripts.launcher import Needs

ASK_SECONDS = 60.0
"""Time limit for a host's answer; its Python may be on a slow disk."""
CONNECT_SECONDS = 5
SSH_FAILED = 255
NOT_FOUND = 127
ASKED = """
import json, os, socket, sys
asked = json.loads(sys.stdin.readline())
told = {"host": socket.gethostname(), "python": sys.version.split()[0]}
told["ssh"] = os.environ.get("SSH_CONNECTION", "")
try:
    import nbdist.rank.script_rank
    told["nbdist"] = nbdist.__version__
    from importlib import metadata, util
    told["lacking"] = [name for name in asked["modules"] if util.find_spec(name) is None]
    told["torch"] = next((each.version for each in metadata.distributions(name="torch")), "")
except Exception as err:
    told["error"] = f"{type(err).__name__}: {err}"
try:
    told["seen"] = open(asked["file"]).read()
except OSError as err:
    told["unseen"] = str(err)
try:
    told["own"] = socket.gethostbyname(socket.gethostname())
except OSError:
    told["own"] = ""
print(json.dumps(told), flush=True)
where = sys.stdin.readline().split()
try:
    socket.create_connection((where[0], int(where[1])), timeout=float(where[2])).close()
    print(json.dumps({}), flush=True)
except OSError as err:
    print(json.dumps({"error": str(err)}), flush=True)
"""
"""The program that runs there: plain Python, since nbdist may be missing."""


NAME_IT = "In /etc/hosts the name must stand beside the host's address in the network"


class _Unfit(Exception):
    """A host cannot take part; the text follows the host's name."""


async def reach(hosts: list[str], folder: Path, needs: Needs) -> Reached:
    """Check all hosts at once.

    Parameters
    ----------
    hosts
        The hosts' names for ssh.
    folder
        The job's folder, which the hosts must be able to read.
    needs
        The launcher's requirements.

    Raises
    ------
    LaunchError
        If a host cannot take part; the message names each one, and what to do.
    """
    if needs.own_name and _leads_nowhere(own := own_address()):
        raise LaunchError(f"this machine {_nowhere(own)}: {needs.own_name}. {NAME_IT}")
    asker = _Asker(folder, needs)
    try:
        answers = await asyncio.gather(*map(asker.ask, hosts), return_exceptions=True)
    finally:
        asker.close()
    wrong = []
    ours: dict[str, str] = {}
    addresses: dict[str, str] = {}
    names: dict[str, str] = {}
    for host, answer in zip(hosts, answers, strict=True):
        match answer:
            case _Unfit():
                wrong.append(f"{host} {answer}")
            case BaseException():
                raise answer
            case found:
                ours[host], addresses[host], names[host] = found
    if wrong:
        raise LaunchError("\n".join(["Nothing was started:", *wrong]) if wrong[1:] else wrong[0])
    if len(set(ours.values())) > 1:
        seen = ", ".join(f"{host} at {address}" for host, address in ours.items())
        raise LaunchError(
            f"the hosts find this machine at different addresses ({seen}); ranks need one network "
            "that joins them all: name the hosts by their addresses in it"
        )
    return Reached(ours[hosts[0]], addresses, names)


def own_address() -> str:
    """Return the address of this machine's own name; '' if it has none."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return ""


def _leads_nowhere(address: str) -> bool:
    return not address or address.startswith("127.")


def _nowhere(address: str) -> str:
    return f"resolves its own host name to {address or 'no address'}"


class _Asker:
    """Checks hosts, with the request that is the same for all."""

    def __init__(self, folder: Path, needs: Needs) -> None:
        self._file = folder / "seen"
        self._text = secrets.token_hex(8)
        self._needs = needs
        # pip's version on both sides: torch's own has a suffix for its build (2.13.0+cu130).
        self._torch = next((each.version for each in metadata.distributions(name="torch")), "")
        with open(self._file, "w", opener=private, encoding="utf-8") as file:
            file.write(self._text)
        self._listeners: dict[str, socket.socket] = {}

    def close(self) -> None:
        """Remove temporary files."""
        self._file.unlink(missing_ok=True)
        for listener in self._listeners.values():
            listener.close()

    async def ask(self, host: str) -> tuple[str, str, str]:
        """Return our address as a host reaches it, the host's address, and its own name.

        Raises
        ------
        _Unfit
            If the host cannot take part.
        """
        words = ssh.command(host, [sys.executable, "-c", ASKED], self._needs.options)
        try:
            process = await asyncio.create_subprocess_exec(
                *words, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
        except FileNotFoundError:
            raise _Unfit(
                "is another host, and this machine has no ssh, which is needed to reach it"
            ) from None
        except OSError as err:
            raise _Unfit(
                f"is another host, and this machine's ssh, which is needed to reach it, cannot be "
                f"started: {err}"
            ) from None
        try:
            return await asyncio.wait_for(self._speak(process, host), ASK_SECONDS)
        except asyncio.TimeoutError:
            raise _Unfit(f"did not answer within {in_time(ASK_SECONDS)}") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            # `wait` alone would wait for ever for the end of a pipe that asyncio does not read now.
            await process.communicate()

    async def _speak(self, process: asyncio.subprocess.Process, host: str) -> tuple[str, str, str]:
        asked = {"file": str(self._file), "modules": self._needs.modules}
        told = await self._exchange(process, host, json.dumps(asked))
        self._check(told)
        if self._needs.own_name and _leads_nowhere(told["own"]):
            raise _Unfit(f"{_nowhere(told['own'])}: {self._needs.own_name}. {NAME_IT}")
        ours, theirs = self._addresses(told["ssh"])
        if ours not in self._listeners:
            self._listeners[ours] = socket.create_server((ours, 0))
        port = self._listeners[ours].getsockname()[1]
        reached = await self._exchange(process, host, f"{ours} {port} {CONNECT_SECONDS}")
        if reached:
            raise _Unfit(
                f"cannot connect to this machine at {ours} ({reached['error']}): its ranks need to "
                "reach ours, and the notebook, on any port; a firewall may be in the way"
            )
        return ours, theirs, str(told["host"])

    async def _exchange(
        self, process: asyncio.subprocess.Process, host: str, line: str
    ) -> dict[str, Any]:
        """Send a line and read the answer."""
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        with contextlib.suppress(ConnectionError):
            process.stdin.write(line.encode() + b"\n")
            await process.stdin.drain()
        while answer := await process.stdout.readline():
            if answer.startswith(b"{"):  # not the output of a login script
                return dict(json.loads(answer))
        words = (await process.stderr.read()).decode(errors="replace").strip()
        code = await process.wait()
        if code == SSH_FAILED:
            raise _Unfit(
                f"cannot be reached by ssh: {words or 'no message'}\n"
                f"`ssh {host} true` must work without a question (set up a key, accept the host "
                "key)"
            )
        if code == NOT_FOUND:
            raise _Unfit(
                f"has no Python at {sys.executable} ({words}): the same environment must be there "
                "at the same path, on a shared file system for instance"
            )
        raise _Unfit(f"could not run {sys.executable} (exit code {code}): {words}")

    def _check(self, told: dict[str, Any]) -> None:
        python = sys.version.split()[0]
        if "error" in told:
            raise _Unfit(f"cannot import nbdist with {sys.executable}: {told['error']}")
        if told["lacking"]:
            raise _Unfit(
                f"lacks {', '.join(told['lacking'])}: install it there for {sys.executable}"
            )
        for name, ours in (
            ("python", python), ("nbdist", __version__), ("torch", self._torch),
        ):  # fmt: skip
            if told[name] != ours:
                raise _Unfit(
                    f"has {name} {told[name] or '(none)'} and this machine {ours or '(none)'}: "
                    "all ranks need the same version"
                )
        if told.get("seen") != self._text:
            raise _Unfit(
                f"does not see the job's folder {self._file.parent} "
                f"({told.get('unseen') or 'it has another folder there'}): set NBDIST_HOME to a "
                "folder that all hosts share, before `%load_ext nbdist`"
            )

    def _addresses(self, connection: str) -> tuple[str, str]:
        """Return our address and the host's, from the variable that sshd sets there."""
        words = connection.split()
        if len(words) != len(("their client", "its port", "their address", "its port")):
            raise _Unfit("does not know the addresses of its ssh connection (no SSH_CONNECTION)")
        ours, theirs = words[0], words[2]
        if ours not in our_addresses():  # through another host, or with NAT
            ours = address_towards(theirs)
        return ours, theirs
