"""What the sidebar costs the server, and how late it shows changes of the ranks."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

import psutil

from benchmarks.report import Figure, Measured, Section, Target, measured
from benchmarks.systems import NBDIST, Options

if TYPE_CHECKING:
    from collections.abc import Iterator

HOW = """
    A Jupyter server with the extension, nothing else open. Behind: a cell of a real cluster of two
    ranks notes the time and then waits; what passes until a page's websocket has a message in which
    that rank is busy, and until a poll once a second has an answer that says so (not yet drawn).
    Load: files of state of so many clusters of eight ranks, each written anew every second, and one
    page with a websocket; the server's share of one core, and the time of a request for the whole
    state. Pause: the browser's long tasks while the panel follows a cluster of 1,000 ranks that all
    change five times a second, and is scrolled through.
"""
ROOT = Path(__file__).parent.parent
POLL_SECONDS = 1.0
CELL = "import time\nprint(time.time())\ntime.sleep({seconds})"


def measure(options: Options) -> Section:
    """Measure how late changes arrive, then the server under load."""
    turns, seconds = (5, 5) if options.quick else (25, 15)
    behind = measured(partial(_behind, turns))
    found: dict[str, Any] = (
        behind if isinstance(behind, dict) else {"socket": behind, "poll": behind}
    )
    figures = [
        Figure(
            "from a rank's change to a page's websocket", " s", Target("<", 0.3),
            {NBDIST.name: found["socket"]},
        ),
        Figure(
            "from a rank's change to an answer of a poll once a second", " s", Target("<", 1.5),
            {NBDIST.name: found["poll"]},
        ),
    ]  # fmt: skip
    for clusters in (1, 10, 100):
        load = measured(partial(_load, clusters, seconds))
        of: dict[str, Any] = load if isinstance(load, dict) else dict.fromkeys(("cpu", "ms"), load)
        name = f"{clusters} cluster{'s' * (clusters > 1)} of 8 ranks"
        figures += [
            Figure(f"{name}: a core's share", " %", None, {NBDIST.name: of["cpu"]}),
            Figure(f"{name}: the whole state", " ms", None, {NBDIST.name: of["ms"]}),
        ]
    figures.append(
        Figure(
            "longest pause of the page with 1,000 ranks", " ms", Target("<=", 50),
            {NBDIST.name: measured(_longest_pause)},
        )
    )  # fmt: skip
    return Section("sidebar", HOW, figures)


def _longest_pause() -> Measured:
    """Let a test of the page measure; browsers report only tasks of 50 ms or more."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "figures.json")
        ran = subprocess.run(
            ["tools/page", "browser", "-g", "a thousand ranks"],
            cwd=ROOT, env=os.environ | {"NBDIST_TEST_FIGURES": str(path)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if not path.exists():
            raise RuntimeError((ran.stdout + ran.stderr)[-500:])
        pauses = json.loads(path.read_text(encoding="utf-8"))
        return Measured((max(pauses, default=0.0),), f"{len(pauses)} tasks over 50 ms")


class Server:
    """A Jupyter server with the extension, in a runtime folder of its own."""

    def __init__(self, runtime: Path) -> None:
        self.token = secrets.token_hex(8)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._process = subprocess.Popen(
            [
                sys.executable, "-m", "jupyter_server", "--no-browser", "--allow-root",
                f"--ServerApp.port={self.port}", f"--IdentityProvider.token={self.token}",
                "--ServerApp.jpserver_extensions=nbdist.server=True",
                f"--ServerApp.root_dir={runtime}",
            ],
            env=os.environ | {"JUPYTER_RUNTIME_DIR": str(runtime)},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.process = psutil.Process(self._process.pid)

    def state(self) -> Any:
        """Return the whole state from the server."""
        url = f"http://127.0.0.1:{self.port}/nbdist/api/state"
        with urlopen(Request(url, headers={"Authorization": f"token {self.token}"})) as answer:
            return json.load(answer)

    def wait(self) -> None:
        """Wait until the server answers."""
        deadline = time.monotonic() + 60
        while True:
            try:
                self.state()
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
            else:
                return

    async def page(self) -> Any:
        """Return a websocket that gets the state."""
        from tornado.httpclient import HTTPRequest
        from tornado.websocket import websocket_connect

        url = f"ws://127.0.0.1:{self.port}/nbdist/api/stream"
        page = await websocket_connect(
            HTTPRequest(url, headers={"Authorization": f"token {self.token}"}),
            max_message_size=1 << 28,
        )
        await page.write_message('{"watch": "state"}')
        return page

    def stop(self) -> None:
        """End the server."""
        self._process.terminate()
        self._process.wait()


@contextmanager
def _server() -> Iterator[tuple[Server, Path]]:
    with tempfile.TemporaryDirectory(prefix="nbd-bench-") as folder:
        server = Server(Path(folder))
        try:
            server.wait()
            yield server, Path(folder)
        finally:
            server.stop()


def _busy_since(state: Any) -> bool:
    return any(
        rank["state"] == "busy"
        for process in state["processes"]
        for cluster in process["clusters"]
        for rank in cluster["ranks"][:1]
    )


def _behind(turns: int) -> dict[str, Measured]:
    with _server() as (server, folder):
        before = os.environ.get("JUPYTER_RUNTIME_DIR")
        os.environ["JUPYTER_RUNTIME_DIR"] = str(folder)
        try:
            return asyncio.run(_time_changes(server, turns))
        finally:
            os.environ.pop("JUPYTER_RUNTIME_DIR")
            if before is not None:
                os.environ["JUPYTER_RUNTIME_DIR"] = before


async def _time_changes(server: Server, turns: int) -> dict[str, Measured]:
    import nbdist

    cluster = nbdist.Cluster(2)
    page = await server.page()
    pushed, polled = [], []
    try:
        for turn in range(turns):
            # At varying times, so that changes keep no fixed distance to polls.
            poll_at = time.time() + POLL_SECONDS * ((turn * 0.618) % 1)
            job = cluster.submit(CELL.format(seconds=1.6 * POLL_SECONDS))
            while not _busy_since(json.loads(await page.read_message())["state"]):
                pass
            push = time.time()
            while True:
                await asyncio.sleep(max(0.0, poll_at - time.time()))
                if _busy_since(await asyncio.to_thread(server.state)):
                    break
                poll_at += POLL_SECONDS
            poll = time.time()
            while not job.done or _busy_since(json.loads(await page.read_message())["state"]):
                pass
            began = float(job.output(0).splitlines()[0])
            pushed.append(push - began)
            polled.append(poll - began)
    finally:
        page.close()
        cluster.stop()
    return {"socket": Measured(tuple(pushed)), "poll": Measured(tuple(polled))}


def _load(clusters: int, seconds: int) -> dict[str, Measured]:
    with _server() as (server, folder):
        states = folder / "nbdist"
        states.mkdir(mode=0o700)
        return asyncio.run(_under_load(server, states, clusters, seconds))


async def _under_load(
    server: Server, folder: Path, clusters: int, seconds: int
) -> dict[str, Measured]:
    page = await server.page()
    writing = asyncio.create_task(_write(folder, clusters))
    reading = asyncio.create_task(_read(page))
    await asyncio.sleep(1.5)
    shares, times = [], []
    for _ in range(seconds):
        spent, began = sum(server.process.cpu_times()[:2]), time.monotonic()
        await asyncio.sleep(1)
        share = (sum(server.process.cpu_times()[:2]) - spent) / (time.monotonic() - began)
        shares.append(share * 100)
        asked = time.perf_counter()
        await asyncio.to_thread(server.state)
        times.append((time.perf_counter() - asked) * 1e3)
    for task in (writing, reading):
        task.cancel()
    page.close()
    return {"cpu": Measured(tuple(shares)), "ms": Measured(tuple(times))}


async def _read(page: Any) -> None:
    while await page.read_message() is not None:
        pass


async def _write(folder: Path, clusters: int) -> None:
    """Write the state files of processes with one cluster each, once a second, evenly spread."""
    from nbdist.published import state_file as records
    from nbdist.published.state_file import ClusterRecord, RankRecord

    step = 0
    while True:
        began = time.monotonic()
        for number in range(clusters):
            ranks = [
                RankRecord(
                    rank, "busy", f"line {step % 9}", host="here", pid=1000 + rank, device="cuda:0",
                    line=step % 9, cpu=99.0, memory=10**9 + step,
                )
                for rank in range(8)
            ]  # fmt: skip
            cluster = ClusterRecord("1", 8, "ddp", "engines", "running", 1.0, ranks=ranks)
            record = records.of_this_process(records.KERNEL, clusters=[cluster])
            record.id = f"{number:012x}"
            records.write(folder / f"{record.id}.json", record)
            late = began + (number + 1) / clusters - time.monotonic()
            if late > 0:
                await asyncio.sleep(late)
        step += 1
