"""A second host on this machine: namespaces of its own, a virtual cable to this host, an sshd.

The second host has its own network, host name, process numbers and temp folder. It shares the file
system, as the hosts of a cluster do. Only ssh knows its name.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.helpers.leaks import SESSION, SESSION_MARK
from tests.helpers.processes import command, runs
from tests.helpers.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

NAME, NEAR = "nbdist-far", "nbdist-near"
SECONDS = 30
SSHD = """
Port 22
ListenAddress {theirs}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
PermitRootLogin yes
StrictModes no
UsePAM no
PidFile none
LogLevel ERROR
SetEnv {mark}={session}
"""
SSH = """
Host {name}
    HostName {theirs}
Host unknown-to-ssh
    HostName {theirs}
    UserKnownHostsFile /dev/null
Host *
    User root
    IdentityFile {folder}/key
    UserKnownHostsFile {folder}/known_hosts
    StrictHostKeyChecking yes
"""


@dataclass
class FarHost:
    """The second host."""

    folder: Path
    ours: str
    theirs: str
    pid: int
    """The pid of the host's first process, its sshd."""

    @property
    def path(self) -> str:
        """A PATH with an ssh that knows the host."""
        return f"{self.folder / 'bin'}:{os.environ['PATH']}"

    @property
    def near(self) -> list[str]:
        """The beginning of a command that gives a program here another host name and address."""
        setup = f'hostname {NEAR}; mount --bind {self.folder}/hosts-{NEAR} /etc/hosts; exec "$@"'
        return ["unshare", "--uts", "--mount", "sh", "-c", setup, "sh"]

    def processes(self) -> list[psutil.Process]:
        """Return the processes on the host, without the sshd that listens."""
        return [
            process
            for process in psutil.Process(self.pid).children(recursive=True)
            if runs(process)
        ]

    def must_be_quiet(self, seconds: float = 20) -> None:
        """Wait until no process runs on the host."""
        until(lambda: not self.processes(), seconds, lambda: list(map(command, self.processes())))


def why_not() -> str:
    """Return why there can be no second host; '' if there can."""
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    sbin = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    lacking = [
        name for name in ("ip", "ssh", "sshd", "unshare") if not shutil.which(name, path=sbin)
    ]
    if lacking:
        return f"no {', '.join(lacking)} (Debian: iproute2, openssh-server)"
    tried = subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False)
    return "" if tried.returncode == 0 else "network namespaces are not allowed here"


@contextmanager
def far_host(folder: Path, private: Path) -> Iterator[FarHost]:
    """Make the second host.

    Parameters
    ----------
    folder
        The folder for its keys.
    private
        The temp folder, of which each host has its own.
    """
    reason = why_not()
    if reason:
        pytest.skip(f"needs a second host: {reason}")
    # From the addresses for tests of networks; by the pid, as other tests may run here.
    net = f"198.18.{os.getpid() // 64 % 256}.{os.getpid() % 64 * 4}".rpartition(".")
    ours, theirs = (f"{net[0]}.{int(net[2]) + i}" for i in (1, 2))
    _keys(folder, ours, theirs)
    space, cable = f"nbdist{os.getpid()}", f"nbd{os.getpid()}"
    _ip("netns", "add", space)
    try:
        _ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", space)
        _ip("addr", "add", f"{ours}/30", "dev", cable)
        _ip("link", "set", cable, "up")
        for words in (
            ["addr", "add", f"{theirs}/30", "dev", "eth0"],
            ["link", "set", "eth0", "up"],
        ):
            _ip("-n", space, *words)
        _ip("-n", space, "link", "set", "lo", "up")
        setup = (
            f"hostname {NAME}; mount -t tmpfs none {private}; mount -t tmpfs none /dev/shm; "
            f"mount --bind {folder}/hosts-{NAME} /etc/hosts; "
            f"exec $(command -v sshd) -D -e -f {folder}/sshd_config"
        )
        unshare = ["unshare", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        with (folder / "sshd.log").open("wb") as log:
            host = subprocess.Popen(
                ["ip", "netns", "exec", space, *unshare, "sh", "-c", setup],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                env={**os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"},
            )  # fmt: skip
        try:
            _wait(theirs, folder)
            (first,) = psutil.Process(host.pid).children()
            yield FarHost(folder, ours, theirs, first.pid)
        finally:
            host.kill()  # --kill-child then kills the host's first process, and so all
            host.wait()
    finally:
        _ip("netns", "del", space)


def _keys(folder: Path, ours: str, theirs: str) -> None:
    (folder / "bin").mkdir(parents=True)
    Path("/run/sshd").mkdir(exist_ok=True)  # Debian's service makes this folder
    for name in ("key", "host_key"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True
        )
    public = (folder / "host_key.pub").read_text()
    (folder / "known_hosts").write_text(f"{theirs} {public}")
    known = {"name": NAME, "theirs": theirs, "folder": folder}
    (folder / "ssh_config").write_text(SSH.format(**known))
    (folder / "sshd_config").write_text(SSHD.format(**known, mark=SESSION_MARK, session=SESSION))
    for name, address in ((NAME, theirs), (NEAR, ours)):  # each host knows only its own name
        (folder / f"hosts-{name}").write_text(f"127.0.0.1 localhost\n{address} {name}\n")
    ssh = folder / "bin" / "ssh"
    ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/ssh_config "$@"\n')
    ssh.chmod(0o700)


def _ip(*words: str) -> None:
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    subprocess.run([shutil.which("ip", path=path) or "ip", *words], check=True)


def _wait(theirs: str, folder: Path) -> None:
    def answers() -> bool:
        with suppress(OSError):
            socket.create_connection((theirs, 22), timeout=1).close()
            return True
        return False

    until(answers, SECONDS, lambda: f"No sshd at {theirs}:\n{(folder / 'sshd.log').read_text()}")
