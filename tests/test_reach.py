"""What other hosts are asked before a script runs there, and what is told of those that are unfit.

The hosts are this one: a program called ssh runs the command here, where there is need with
another environment. Real hosts are in `test_hosts`.
"""

from __future__ import annotations

import re
import socket
from typing import TYPE_CHECKING

import pytest

from nbdist.errors import LaunchError
from nbdist.hub.running import reachable_hosts as reaching
from nbdist.hub.running.reachable_hosts import reach
from nbdist.launchers.scripts.hosts import our_addresses
from nbdist.launchers.scripts.launcher import Needs
from nbdist.version import __version__

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.starts_processes

SSH = """#!/bin/sh
for last; do host="$before"; before="$last"; done
export SSH_CONNECTION="127.0.0.1 50000 127.0.0.1 22"
case "$host" in
    silent) exec sleep 600;;
    broken) echo "Killed" >&2; exit 9;;
    through) unset SSH_CONNECTION;;
    elsewhere) SSH_CONNECTION="$OTHER 50000 127.0.0.1 22";;
    translated) SSH_CONNECTION="192.0.2.7 50000 127.0.0.1 22";;
    endless) exec head -c 1000000 /dev/zero;;
    talkative) echo "Welcome!"; echo "It is Monday.";;
    without) cd "$EMPTY";;
    older) cd "$OLDER";;
    nameless) cd "$NAMELESS";;
esac
exec sh -c "exec $last"
"""
NO_NBDIST = "raise ImportError('no nbdist here')\n"
OLDER = "__version__ = '0.0.1'\n"
NAMELESS = f"""
__version__ = {__version__!r}
import socket
socket.gethostbyname = lambda _: "127.0.0.1"  # as Debian's /etc/hosts has it
"""


@pytest.fixture(autouse=True)
def _hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have hosts."""
    for name, text in (("empty", NO_NBDIST), ("older", OLDER), ("nameless", NAMELESS)):
        (tmp_path / name / "nbdist" / "rank").mkdir(parents=True)
        (tmp_path / name / "nbdist" / "__init__.py").write_text(text)
        for each in ("__init__", "script_rank"):
            (tmp_path / name / "nbdist" / "rank" / f"{each}.py").touch()
        monkeypatch.setenv(name.upper(), str(tmp_path / name))
    program = tmp_path / "ssh"
    program.write_text(SSH)
    program.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("PYTHONPATH", raising=False)


async def told(folder: Path, *hosts: str, modules: tuple[str, ...] = (), own_name: str = "") -> str:
    """Return why these hosts cannot take part."""
    with pytest.raises(LaunchError) as raised:
        await reach([*hosts], folder, Needs([*modules], own_name=own_name))
    assert not (folder / "seen").exists()
    return str(raised.value)


async def test_hosts_that_can_take_part_tell_where_they_are(tmp_path: Path) -> None:
    reached = await reach(["talkative", "translated"], tmp_path, Needs(["json"]))
    assert reached.address == "127.0.0.1"
    assert reached.addresses == dict.fromkeys(("talkative", "translated"), "127.0.0.1")
    assert not (tmp_path / "seen").exists()


async def test_each_that_cannot_is_told_with_what_it_lacks(tmp_path: Path) -> None:
    lines = (await told(tmp_path, "broken", "through", "without", "older", "fit")).splitlines()
    assert lines[0] == "Nothing was started:", lines
    for line, why in zip(
        lines[1:],
        (
            r"broken could not run \S+python\S* \(exit code 9\): Killed",
            r"through does not know the addresses of its ssh connection \(no SSH_CONNECTION\)",
            r"without cannot import nbdist with \S+: ImportError: no nbdist here",
            r"older has nbdist 0\.0\.1 and this machine \S+: all ranks need the same version",
        ),
        strict=True,
    ):
        assert re.fullmatch(why, line), line
    lacking = await told(tmp_path, "fit", modules=("json", "nowhere_at_all"))
    assert re.fullmatch(r"fit lacks nowhere_at_all: install it there for \S+", lacking)


async def test_hosts_in_two_networks_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = sorted(own for own in our_addresses() if "." in own and own != "127.0.0.1")
    if not others:
        pytest.skip("this machine has but one address")
    monkeypatch.setenv("OTHER", others[0])
    said = await told(tmp_path, "fit", "elsewhere")
    assert f"(fit at 127.0.0.1, elsewhere at {others[0]})" in said


async def test_one_that_does_not_answer_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaching, "ASK_SECONDS", 0.2)
    assert await told(tmp_path, "silent") == "silent did not answer within 200 ms"


async def test_one_that_cannot_connect_to_this_machine_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaching, "CONNECT_SECONDS", 0)
    said = await told(tmp_path, "fit")
    assert "fit cannot connect to this machine at 127.0.0.1 (" in said
    assert "a firewall may be in the way" in said


async def test_without_ssh_that_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert (
        await told(tmp_path, "fit")
        == "fit is another host, and this machine has no ssh, which is needed to reach it"
    )


async def test_an_ssh_that_cannot_be_started_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "ssh").touch(0o600)
    monkeypatch.setenv("PATH", str(tmp_path / "other"))
    said = await told(tmp_path, "fit")
    assert "this machine's ssh, which is needed to reach it, cannot be started: [Errno 13]" in said


async def test_a_name_that_leads_nowhere_is_told_where_others_look_it_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answers about names are made up: a real question may wait for a network."""
    monkeypatch.setattr(socket, "gethostbyname", lambda _: "192.0.2.7")
    said = await told(tmp_path, "nameless", own_name="it is looked up")
    assert said.startswith("nameless resolves its own host name to 127.0.0.1: it is looked up. In ")

    def unknown(name: str) -> str:
        raise socket.gaierror(name)

    monkeypatch.setattr(socket, "gethostbyname", unknown)
    said = await told(tmp_path, "fit", own_name="it is looked up")
    assert said.startswith("this machine resolves its own host name to no address: it is looked up")


async def test_what_nobody_has_foreseen_is_not_blamed_on_a_host(tmp_path: Path) -> None:
    """An answer that is longer than what asyncio reads as one line."""
    with pytest.raises(ValueError, match="chunk exceed the limit"):
        await reach(["fit", "endless"], tmp_path, Needs([]))
    assert not (tmp_path / "seen").exists()
