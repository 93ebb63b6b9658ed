"""The sidebar's routes: what they tell, and whom they refuse."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import msgspec
import psutil
import pytest
from tornado.httpclient import HTTPClientError
from tornado.httputil import url_concat

from nbdist.machine import process_lives
from nbdist.machine.process_lives import started
from nbdist.published import state_file as records
from tests.helpers.states import API, NOBODY, get, job_in, post, put, state_of
from tests.helpers.waiting import allowed

if TYPE_CHECKING:
    from pathlib import Path

    from tests.helpers.states import Fetch

ROUTES = [
    ("GET", "state"),
    ("POST", "clean"),
    ("POST", "processes/aa/interrupt"),
    ("POST", "processes/aa/stop"),
    ("POST", "processes/aa/restart"),
    ("POST", "processes/aa/stacks"),
    ("GET", "processes/aa/logs/7/0"),
    ("GET", "metrics/some-folder/7.csv"),
]


FOREIGN = """
import importlib, pkgutil, sys
import nbdist.server
for module in pkgutil.iter_modules(nbdist.server.__path__):
    importlib.import_module(f"nbdist.server.{module.name}")
rooms = "launchers", "wire", "hub", "rank", "notebook", "magics", "widgets"
unwanted = "torch", "ipykernel", "matplotlib", *(f"nbdist.{room}" for room in rooms)
print(*(name for name in unwanted if name in sys.modules))
"""


def test_the_servers_process_has_neither_launchers_nor_the_wire() -> None:
    look = [sys.executable, "-c", FOREIGN]
    assert subprocess.check_output(look, text=True).split() == []


@pytest.fixture
def jp_server_config(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Load the extension, and refuse handlers that forget to ask who is there."""
    monkeypatch.setenv("NBDIST_PAGE", "")  # the extension sets it
    return {
        "ServerApp": {
            # Terminals have a handler of the kind that is refused here.
            "jpserver_extensions": {"nbdist.server": True, "jupyter_server_terminals": False},
            "allow_unauthenticated_access": False,
        }
    }


async def refused(fetch: Fetch, code: int, *route: str, **options: Any) -> str:
    """Return the words of a refusal."""
    with pytest.raises(HTTPClientError) as caught:
        await fetch(*API, *route, **options)
    assert caught.value.code == code
    assert caught.value.response is not None
    return str(json.loads(caught.value.response.body)["message"])


async def test_a_process_is_told_of_and_what_is_nobodys_business_is_not(
    jp_fetch: Fetch, tmp_path: Path
) -> None:
    assert (await get(jp_fetch, "state"))["processes"] == []
    record = state_of("aa", jobs=[job_in(tmp_path)])
    record.notebook = "a.ipynb"
    put(record)
    (shown,) = (await get(jp_fetch, "state"))["processes"]
    assert (shown["id"], shown["alive"], shown["notebook"]) == ("aa", True, "a.ipynb")
    assert [rank["words"] for rank in shown["clusters"][0]["ranks"]] == ["idle", "idle"]
    assert shown["jobs"][0]["first_line"] == "train()"
    text = json.dumps(shown)
    for hidden in ("control", "folder", "root", "parts", str(tmp_path)):
        assert hidden not in text


async def test_what_cannot_be_read_or_trusted_is_a_row_that_says_so(jp_fetch: Fetch) -> None:
    for name in ("broken", "newer", "open", "link"):
        put(state_of(name))
    folder = records.folder()
    (folder / "broken.json").write_text("{")
    (folder / "newer.json").write_text('{"version": 99}')
    (folder / "open.json").chmod(0o644)
    (folder / "link.json").rename(folder / "elsewhere")
    (folder / "link.json").symlink_to(folder / "elsewhere")
    state = await get(jp_fetch, "state")
    assert state["processes"] == []
    why = {each["id"]: each["why"] for each in state["unreadable"]}
    assert why.keys() == {"broken", "newer", "open", "link"}
    assert "another version of nbdist (state 99, here 1)" in why["newer"]
    assert "others may read or write it" in why["open"]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to somebody else")
async def test_another_users_files_are_not_trusted(jp_fetch: Fetch, tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_text("secret")
    put(state_of("mine", jobs=[job_in(tmp_path)]))
    os.chown(put(state_of("theirs")), 1, 1)
    os.chown(tmp_path / "rank0.log", 1, 1)
    state = await get(jp_fetch, "state")
    assert [each["id"] for each in state["processes"]] == ["mine"]
    assert "belongs to another user" in state["unreadable"][0]["why"]
    told = await refused(jp_fetch, 404, "processes", "mine", "logs", "7", "0")
    assert "belongs to another user" in told
    os.chown(records.folder(), 1, 1)
    assert await get(jp_fetch, "state") | {"time": 0} == {
        "processes": [], "unreadable": [], "time": 0,
    }  # fmt: skip


async def test_a_vanished_kernel_is_shown_until_it_is_cleared_or_replaced(
    jp_fetch: Fetch, jp_ws_fetch: Fetch
) -> None:
    put(state_of("aa", pid=NOBODY, kernel="k1"))
    put(state_of("bb", pid=NOBODY, kernel="k2"))
    old = put(state_of("cc", pid=NOBODY))
    os.utime(old, (1, 1))
    state = await get(jp_fetch, "state")
    assert {each["id"]: each["alive"] for each in state["processes"]} == {"aa": False, "bb": False}
    put(state_of("dd", kernel="k1"))  # restarted
    state = await get(jp_fetch, "state")
    assert [each["id"] for each in state["processes"]] == ["bb", "dd"]
    left = state_of("ee", pid=NOBODY)
    left.clusters[0].root = (os.getpid(), started(os.getpid()))  # its ranks may still run
    put(left)
    page = await jp_ws_fetch(*API, "stream")
    page.write_message('{"watch": "state"}')
    assert len(json.loads(await page.read_message())["state"]["processes"]) == 3
    assert (await post(jp_fetch, "clean"))["removed"] == ["bb"]
    told = json.loads(await page.read_message())["state"]["processes"]
    assert [each["id"] for each in told] == ["dd", "ee"]
    assert sorted(path.stem for path in records.folder().iterdir()) == ["dd", "ee"]
    page.close()


async def test_ranks_of_a_dead_kernel_are_counted_and_ended(jp_fetch: Fetch) -> None:
    """Each is looked up by pid and start time: a pid alone may be another's by now."""
    record = state_of("aa", pid=NOBODY)
    record.clusters[0].ranks[0].pid = os.getpid()
    record.clusters[0].ranks[0].created = 1.0  # another process had this pid
    with subprocess.Popen(["sleep", "600"]) as rank:  # noqa: ASYNC220  # nobody else is served
        left = record.clusters[0].ranks[1]
        left.pid, left.created = rank.pid, started(rank.pid)
        put(record)
        (shown,) = (await get(jp_fetch, "state"))["processes"]
        assert (shown["alive"], shown["left"]) == (False, 1)
        assert "created" not in shown["clusters"][0]["ranks"][1]
        assert (await post(jp_fetch, "clean"))["removed"] == []
        route = ("processes", "aa", "stop")
        assert await post(jp_fetch, *route, cluster="1") == {"ended": 1, "left": 0}
        assert rank.wait(0) is not None
    (shown,) = (await get(jp_fetch, "state"))["processes"]
    assert shown["left"] == 0  # at once, not at the next look
    assert await post(jp_fetch, *route, cluster="1") == {"ended": 0, "left": 0}
    assert (await post(jp_fetch, "clean"))["removed"] == ["aa"]


async def test_the_memory_of_an_idle_rank_is_looked_up(jp_fetch: Fetch) -> None:
    record = state_of("aa")
    idle, busy = record.clusters[0].ranks
    for rank in (idle, busy):
        rank.pid, rank.created = os.getpid(), started(os.getpid())
    busy.state, busy.memory = "busy", 7
    put(record)
    (shown,) = (await get(jp_fetch, "state"))["processes"]
    told = [rank["memory"] for rank in shown["clusters"][0]["ranks"]]
    assert told[0] == pytest.approx(psutil.Process().memory_info().rss, rel=0.2)
    assert told[1] == 7


async def test_nothing_is_signalled_that_another_container_names(jp_fetch: Fetch) -> None:
    """Its pids are others' here; its host may be called as this one is."""
    place = msgspec.structs.replace(process_lives.here(), pids="pid:[1]")
    record = state_of("aa", jobs=[job_in(records.folder())])
    record.kind, record.place = records.KEEPER, place
    record.control = str(records.folder() / "aa.sock")
    with subprocess.Popen(["sleep", "600"]) as named:  # noqa: ASYNC220  # nobody else is served
        record.pid, record.created = named.pid, started(named.pid)
        record.clusters[0].root = (named.pid, started(named.pid))
        path = put(record)
        for seconds in (0.0, 2 * process_lives.SILENT_SECONDS):  # it lives; it is taken to be gone
            os.utime(path, (time.time() - seconds,) * 2)
            for command, what in (("interrupt", {"job": "7"}), ("stop", {"cluster": "1"})):
                body = json.dumps(what)
                route = ("processes", "aa", command)
                told = await refused(jp_fetch, 409, *route, method="POST", body=body)
                assert "in another container of this machine" in told
        assert named.poll() is None
        named.kill()


@pytest.mark.parametrize(("method", "route"), ROUTES)
async def test_who_is_not_logged_in_is_refused(
    jp_serverapp: Any, http_server_client: Any, jp_base_url: str, method: str, route: str
) -> None:
    url = f"{jp_base_url}nbdist/api/{route}"
    body = "{}" if method == "POST" else None
    with pytest.raises(HTTPClientError) as caught:
        await http_server_client.fetch(url, method=method, body=body)
    assert caught.value.code == 403


async def test_a_cookie_alone_may_not_command(
    jp_serverapp: Any, http_server_client: Any, jp_base_url: str
) -> None:
    token = jp_serverapp.identity_provider.token
    page = await http_server_client.fetch(
        url_concat(f"{jp_base_url}api/status", {"token": token}), follow_redirects=False
    )
    cookies = [each.partition(";")[0] for each in page.headers.get_list("Set-Cookie")]
    header = {"Cookie": "; ".join(each for each in cookies if not each.startswith("_xsrf"))}
    state = await http_server_client.fetch(f"{jp_base_url}nbdist/api/state", headers=header)
    assert state.code == 200  # logged in
    with pytest.raises(HTTPClientError) as caught:
        await http_server_client.fetch(
            f"{jp_base_url}nbdist/api/clean", method="POST", body="{}", headers=header
        )
    assert caught.value.code == 403
    assert b"_xsrf" in caught.value.response.body  # type: ignore[union-attr]


@pytest.mark.parametrize(("method", "route"), ROUTES)
async def test_who_is_not_authorized_is_refused(
    jp_fetch: Fetch, jp_serverapp: Any, monkeypatch: pytest.MonkeyPatch, method: str, route: str
) -> None:
    asked: list[tuple[str, str]] = []

    def deny(_handler: object, _user: object, action: str, resource: str) -> bool:
        asked.append((action, resource))
        return False

    monkeypatch.setattr(jp_serverapp.authorizer, "is_authorized", deny)
    await refused(jp_fetch, 403, route, method=method, body="{}" if method == "POST" else None)
    assert asked == [("read" if method == "GET" else "write", "nbdist")]


@pytest.mark.parametrize(
    "route",
    [
        "processes/..%2f..%2fetc/interrupt",
        "processes/aa/logs/..%2f..%2f/0",
        "processes/aa/logs/7/-1",
        "processes/aa/kill",
        "metrics/..%2f..%2fetc/7.csv",
        "metrics/../7.csv",
        "metrics/a/..%2f7.csv",
    ],
)
async def test_no_route_takes_a_path(jp_fetch: Fetch, route: str) -> None:
    put(state_of("aa"))
    for method, body in (("GET", None), ("POST", "{}")):
        with pytest.raises(HTTPClientError) as caught:
            await jp_fetch(*API, route, method=method, body=body)
        assert caught.value.code == 404


async def test_bad_requests_are_told_in_words(jp_fetch: Fetch, tmp_path: Path) -> None:
    put(state_of("aa", jobs=[job_in(tmp_path)]))
    here = {"method": "POST"}
    told = await refused(jp_fetch, 404, "processes", "bb", "stop", body="{}", **here)
    assert told == "this process has ended"
    told = await refused(jp_fetch, 400, "processes", "aa", "stop", body="{}", **here)
    assert "'cluster' must be a string" in told
    told = await refused(jp_fetch, 400, "processes", "aa", "stop", body="[1]", **here)
    assert "a JSON object" in told
    told = await refused(jp_fetch, 404, "processes", "aa", "stop", body='{"cluster": "9"}', **here)
    assert "cluster 9 was stopped" in told
    told = await refused(jp_fetch, 404, "processes", "aa", "interrupt", body='{"job": "9"}', **here)
    assert "job 9 is not known" in told
    told = await refused(
        jp_fetch, 400, "processes", "aa", "restart", body='{"cluster": "1", "rank": "x"}', **here
    )
    assert "'rank' must be a number" in told
    told = await refused(jp_fetch, 404, "processes", "aa", "logs", "7", "5")
    assert "rank 5 of job 7" in told


async def test_a_log_is_read_in_pieces_of_whole_characters(jp_fetch: Fetch, tmp_path: Path) -> None:
    log = tmp_path / "rank0.log"
    log.write_bytes("before|aé€😀z".encode())
    put(state_of("aa", jobs=[job_in(tmp_path, parts={0: (7, None)})]))
    route = ("processes", "aa", "logs", "7", "0")
    assert await get(jp_fetch, *route) == {"text": "aé€😀z", "from": 0, "to": 11, "size": 11}
    for end, text in ((8, "a"), (9, "a"), (10, "aé"), (12, "aé"), (13, "aé€"), (17, "aé€😀")):
        log.write_bytes("before|aé€😀z".encode()[:end])
        piece = await get(jp_fetch, *route)
        assert (piece["text"], piece["to"]) == (text, len(text.encode()))
    log.write_bytes(b"before|" + b"x" * 400_000 + b"end")
    piece = await get(jp_fetch, *route)
    assert (piece["to"], piece["size"]) == (256 * 1024, 400_003)
    piece = await get(jp_fetch, *route, params={"from": str(piece["to"])})
    assert piece["text"].endswith("xend")
    piece = await get(jp_fetch, *route, params={"from": "-3"})
    assert (piece["text"], piece["from"]) == ("end", 400_000)
    log.unlink()
    assert (await get(jp_fetch, *route))["size"] == 0


async def test_one_socket_streams_the_state_and_logs(
    jp_fetch: Fetch, jp_ws_fetch: Fetch, tmp_path: Path
) -> None:
    log = tmp_path / "rank0.log"
    log.write_text("one\n")
    put(state_of("aa", jobs=[job_in(tmp_path)]))
    page = await jp_ws_fetch(*API, "stream")
    page.write_message("nonsense")
    page.write_message('{"watch": "state"}')
    told = json.loads(await page.read_message())["state"]
    assert [each["id"] for each in told["processes"]] == ["aa"]
    put(state_of("bb"))
    told = json.loads(await page.read_message())["state"]
    assert [each["id"] for each in told["processes"]] == ["aa", "bb"]
    page.write_message('{"unwatch": "state"}')
    page.write_message('{"watch": "log", "process": "bb", "job": "7", "rank": 0}')
    assert "not known" in json.loads(await page.read_message())["log"]["gone"]
    page.write_message('{"watch": "log", "process": "aa", "job": "7", "rank": 0, "from": 0}')
    told = json.loads(await page.read_message())["log"]
    assert (told["process"], told["job"], told["rank"], told["text"]) == ("aa", "7", 0, "one\n")
    with log.open("a") as file:
        file.write("two\n")
    told = json.loads(await page.read_message())["log"]
    assert (told["text"], told["to"]) == ("two\n", 8)
    page.close()


async def test_a_socket_is_for_who_is_logged_in_and_authorized(
    jp_ws_fetch: Fetch, jp_serverapp: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(HTTPClientError) as caught:
        await jp_ws_fetch(*API, "stream", headers={"Authorization": "token wrong"})
    assert caught.value.code == 403
    monkeypatch.setattr(jp_serverapp.authorizer, "is_authorized", lambda *_: False)
    with pytest.raises(HTTPClientError) as caught:
        await jp_ws_fetch(*API, "stream")
    assert caught.value.code == 403


async def test_looking_keeps_no_idle_server_alive(jp_fetch: Fetch, jp_web_app: Any) -> None:
    await get(jp_fetch, "state")
    await post(jp_fetch, "clean")
    assert "api_last_activity" not in jp_web_app.settings
    await jp_fetch("api", "contents")
    assert "api_last_activity" in jp_web_app.settings


async def test_what_is_no_plain_file_holds_up_nobody(jp_fetch: Fetch, tmp_path: Path) -> None:
    put(state_of("aa", jobs=[job_in(tmp_path)]))
    os.mkfifo(records.folder() / "pipe.json", 0o600)  # nobody writes into it: to open it waits
    (records.folder() / "deep.json").write_text('{"x":' + "[" * 100_000)
    (records.folder() / "deep.json").chmod(0o600)
    state = await get(jp_fetch, "state")
    assert [each["id"] for each in state["processes"]] == ["aa"]
    assert {each["id"] for each in state["unreadable"]} == {"pipe", "deep"}
    log, route = tmp_path / "rank0.log", ("processes", "aa", "logs", "7", "0")
    os.mkfifo(log)
    assert "no plain file" in await refused(jp_fetch, 404, *route)
    log.unlink()
    log.mkdir()
    assert "cannot be read" in await refused(jp_fetch, 404, *route)
    log.rmdir()
    log.symlink_to("/etc/passwd")
    assert "cannot be read" in await refused(jp_fetch, 404, *route)


async def test_a_page_that_sends_junk_is_told_what_it_asks_for_afterwards(
    jp_fetch: Fetch, jp_ws_fetch: Fetch, tmp_path: Path
) -> None:
    (tmp_path / "rank0.log").write_text("one\n")
    put(state_of("aa", jobs=[job_in(tmp_path)]))
    page = await jp_ws_fetch(*API, "stream")
    log = '{"watch": "log", "process": "aa", "job": "7", '
    for junk in (
        "", "[]", "3", '{"watch": "log"}', "[" * 100_000, b"\xff\x00",
        log + '"rank": Infinity}', log + '"rank": NaN}', log + '"rank": 0, "from": 1e999}',
    ):  # fmt: skip
        page.write_message(junk, binary=isinstance(junk, bytes))
    for rank in range(1000):
        page.write_message(log + f'"rank": {rank + 1}}}')
    page.write_message('{"watch": "state"}')
    gone = 0
    while "state" not in (told := json.loads(await page.read_message())):
        gone += "gone" in told["log"]
    page.write_message(log + '"rank": 0, "from": -99999999999999999999999}')
    while "text" not in (told := json.loads(await page.read_message()).get("log", {})) or (
        "gone" in told
    ):
        gone += 1
    assert told["text"] == "one\n"
    assert gone
    page.close()


async def test_a_page_that_reads_nothing_is_told_only_how_things_stand(
    jp_ws_fetch: Fetch, jp_serverapp: Any, jp_base_url: str
) -> None:
    page = await jp_ws_fetch(*API, "stream")  # another, which reads all
    page.write_message('{"watch": "state"}')
    await page.read_message()
    reader, writer = await asyncio.open_connection("127.0.0.1", jp_serverapp.port)
    writer.write(
        f"GET {jp_base_url}nbdist/api/stream?token={jp_serverapp.identity_provider.token} HTTP/1.1"
        f"\r\nHost: 127.0.0.1:{jp_serverapp.port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
    )
    await reader.readuntil(b"\r\n\r\n")
    asked = b'{"watch": "state"}'
    mask = bytes(4)
    writer.write(bytes([0x81, 0x80 | len(asked)]) + mask + asked)
    times, size = 12, 4_000_000
    for number in range(times):
        record = state_of("aa")
        record.notebook = f"{number:03d}" + "x" * size
        put(record)
        told = ""
        while not told.startswith(f"{number:03d}"):
            processes = json.loads(await page.read_message())["state"]["processes"]
            told = processes[0]["notebook"] if processes else ""
    page.close()
    put(state_of("bb"))
    came = bytearray()
    while b'"bb"' not in came[-100_000:]:
        came += await asyncio.wait_for(reader.read(1 << 20), allowed(20))
    assert len(came) < times * size * 0.75  # the system itself holds a few
    writer.close()
    await writer.wait_closed()
