"""A page's websocket: sends changes of the state, open logs and metrics. Server's loop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from jupyter_server.auth.decorator import authorized, ws_authenticated
from jupyter_server.base.handlers import JupyterHandler
from jupyter_server.base.websocket import WebSocketMixin
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from nbdist.errors import UsageError
from nbdist.server import log_pieces
from nbdist.server.followed_metrics import Place, Readers

if TYPE_CHECKING:
    from nbdist.server.processes import Processes

log = logging.getLogger(__name__)
LOOK_SECONDS = 0.1
MOST_LOGS = 64
"""How many logs a page may follow."""
MOST_METRICS = 64
"""How many jobs' metrics a page may follow."""


class LogName(NamedTuple):
    """Names a log."""

    process: str
    job: str
    rank: int


class Streams:
    """Looks for changes, once for all pages, and only while there is a page."""

    def __init__(self, processes: Processes) -> None:
        self.processes = processes
        self.readers = Readers(processes)
        self._pages: set[Stream] = set()
        self._task: asyncio.Task[None] | None = None

    def add(self, page: Stream) -> None:
        """Serve a page."""
        self._pages.add(page)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def remove(self, page: Stream) -> None:
        """Stop serving a page."""
        self._pages.discard(page)
        if not self._pages and self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        while True:
            try:
                self._send_changes()
            except Exception:  # a fault with one file must not stop the updates
                log.warning("nbdist: the state could not be sent to the pages", exc_info=True)
            await asyncio.sleep(LOOK_SECONDS)

    def _send_changes(self) -> None:
        changes = self.processes.look()
        free = [page for page in self._pages if page.free]
        waiting = [page for page in free if page.lacks(changes)]
        if waiting:
            text = json.dumps({"state": self.processes.state()})
            for page in waiting:
                page.send_state(text, changes)
        for page in free:
            page.send_logs()


class Stream(WebSocketMixin, WebSocketHandler, JupyterHandler):
    """The websocket of one page."""

    auth_resource = "nbdist"

    def initialize(self, streams: Streams) -> None:
        """Keep the streams, which all pages share."""
        self._streams = streams
        self._seen: int | None = -1
        """The number of changes at the last state sent; None while the page does not follow it."""
        self._logs: dict[LogName, int] = {}
        self._metrics: set[Place] = set()
        self._sent: asyncio.Future[None] | None = None
        """The last write; it is not done until the page has received it."""

    @ws_authenticated
    @authorized
    async def get(self, *args: Any, **kwargs: Any) -> None:
        """Become a websocket."""
        await super().get(*args, **kwargs)

    def open(self, *args: Any, **kwargs: Any) -> None:
        """Begin to serve the page."""
        super().open(*args, **kwargs)
        self._seen = None
        self._streams.add(self)

    def on_close(self) -> None:
        """Stop serving the page."""
        self._streams.remove(self)
        for place in self._metrics:
            self._streams.readers.unwatch(self, place)

    def on_message(self, message: str | bytes) -> None:
        """Handle ``{"watch": ...}`` or ``{"unwatch": ...}``; ignore anything else."""
        try:
            asked = json.loads(message)
            what = asked.get("watch", asked.get("unwatch"))
            if what == "state":
                self._seen = -1 if "watch" in asked else None
            elif what == "metrics":
                place = Place.of(asked.get("folder"), asked.get("job"))
                self._follow(place, wanted="watch" in asked)
            elif what == "log":
                name = LogName(str(asked["process"]), str(asked["job"]), int(asked["rank"]))
                if "unwatch" in asked:
                    self._logs.pop(name, None)
                elif len(self._logs) < MOST_LOGS:
                    self._logs[name] = int(asked.get("from", 0))
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
            self.log.warning("nbdist: a page sent something that is no request")

    def _follow(self, place: Place, *, wanted: bool) -> None:
        """Follow a job's metrics from their beginning, also if it is followed already; or stop."""
        if not wanted:
            self._metrics.discard(place)
            self._streams.readers.unwatch(self, place)
        elif place in self._metrics or len(self._metrics) < MOST_METRICS:
            self._metrics.add(place)
            self._streams.readers.watch(self, place)

    @property
    def free(self) -> bool:
        """Whether the page has received all that was sent; a slow page gets fewer updates."""
        return self._sent is None or self._sent.done()

    def lacks(self, changes: int) -> bool:
        """Whether the page follows the state and was not sent this version."""
        return self._seen is not None and self._seen != changes

    def send_state(self, text: str, changes: int) -> None:
        """Send the state."""
        self._seen = changes
        self._send(text)

    def send_logs(self) -> None:
        """Send what is new in the logs that the page follows."""
        for name, begin in list(self._logs.items()):
            try:
                record = self._streams.processes.record(name.process)
                piece = log_pieces.read(record, name.job, name.rank, begin)
            except UsageError as err:
                self._logs.pop(name)
                self._send(json.dumps({"log": name._asdict() | {"text": "", "gone": str(err)}}))
                continue
            self._logs[name] = piece.end
            if piece.text:
                told = name._asdict() | {"text": piece.text, "from": piece.begin, "to": piece.end}
                self._send(json.dumps({"log": told}))

    def send_metrics(self, data: bytes) -> None:
        """Send a frame of a job's metrics."""
        self._send(data)

    def send_unknown(self, place: Place) -> None:
        """Report to the page that a job is unknown."""
        self._send(json.dumps({"metrics": place._asdict() | {"unknown": True}}))

    def _send(self, told: str | bytes) -> None:
        with contextlib.suppress(WebSocketClosedError):
            self._sent = asyncio.ensure_future(self.write_message(told, isinstance(told, bytes)))
            self._sent.add_done_callback(_forget)


def _forget(sent: asyncio.Future[None]) -> None:
    """Take the error of a write to a page that has gone, so that asyncio does not log it."""
    if not sent.cancelled():
        sent.exception()
