"""The routes of the sidebar. No route takes a path or a pid: ids come out of the state."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from jupyter_server.utils import url_path_join
from tornado import web

from nbdist.errors import NbdistError, UsageError
from nbdist.server import followed_metrics, log_pieces, page_commands
from nbdist.server.page_commands import ProcessDoesNotAnswer
from nbdist.server.processes import Processes
from nbdist.server.websocket import Stream, Streams

RESOURCE = "nbdist"
NAME = r"([0-9a-zA-Z]+)"
FILE = rf"({followed_metrics.NAME.pattern})"
Method = TypeVar("Method", bound=Callable[..., Awaitable[None]])


def routes(base_url: str) -> list[tuple[str, type, dict[str, Any]]]:
    """Return all handlers below the server's base URL."""
    processes = Processes()
    streams = Streams(processes)
    here = functools.partial(url_path_join, base_url, "nbdist", "api")
    own = {"processes": processes}
    return [
        (here("state"), State, own),
        (here("clean"), Clean, own),
        (here("processes", NAME, "(interrupt|stop|restart|stacks)"), Command, own),
        (here("processes", NAME, "logs", NAME, "([0-9]{1,9})"), Log, own),
        (here("metrics", FILE, rf"{FILE}\.csv"), Values, {"streams": streams}),
        (here("stream"), Stream, {"streams": streams}),
    ]


def _with_http_errors(method: Method) -> Method:
    """Turn an error of nbdist into an HTTP error with the same message."""

    @functools.wraps(method)
    async def inner(self: APIHandler, *args: Any) -> None:
        try:
            await method(self, *args)
        except UsageError as err:
            raise web.HTTPError(404, str(err)) from err
        except ProcessDoesNotAnswer as err:
            raise web.HTTPError(504, str(err)) from err
        except NbdistError as err:
            raise web.HTTPError(409, str(err)) from err

    return inner  # type: ignore[return-value]


class Handler(APIHandler):
    """Base of the handlers; a page's requests do not count as activity of a person."""

    auth_resource = RESOURCE
    _track_activity = False

    def initialize(self, processes: Processes) -> None:
        """Keep the processes, which all routes share."""
        self.processes = processes

    def _body(self) -> dict[str, Any]:
        body = self.get_json_body()
        if not isinstance(body, dict):
            raise web.HTTPError(400, "a JSON object is expected")
        return body

    def _text(self, body: dict[str, Any], name: str) -> str:
        value = body.get(name)
        if not isinstance(value, str):
            raise web.HTTPError(400, f"{name!r} must be a string from the state")
        return value


class State(Handler):
    """The state of all processes."""

    @web.authenticated
    @authorized
    @_with_http_errors
    async def get(self) -> None:
        """Return the state as it is now."""
        self.processes.look()
        self.finish(json.dumps(self.processes.state()))


class Clean(Handler):
    """Removes what ended processes have left."""

    @web.authenticated
    @authorized
    @_with_http_errors
    async def post(self) -> None:
        """Remove the files; return the ids of their processes."""
        self.finish(json.dumps({"removed": await page_commands.clean(self.processes)}))


class Command(Handler):
    """A command for a process."""

    @web.authenticated
    @authorized
    @_with_http_errors
    async def post(self, id_: str, command: str) -> None:
        """Carry out the command; answer when it is done."""
        entry, body = self.processes.find(id_), self._body()
        answer: Any = {}
        if command == "interrupt":
            await page_commands.interrupt(entry, self._text(body, "job"))
        elif command == "stop":
            answer = await page_commands.stop(entry, self._text(body, "cluster"))
            self.processes.look_again(entry)
        elif command == "restart":
            rank = body.get("rank")
            if not isinstance(rank, int):
                raise web.HTTPError(400, "'rank' must be a number from the state")
            answer = await page_commands.restart(entry, self._text(body, "cluster"), rank)
        else:
            whose = "job" if "job" in body else "cluster"
            answer = await page_commands.stacks(entry, **{whose: self._text(body, whose)})
        self.finish(json.dumps(answer))


class Log(Handler):
    """A rank's log."""

    @web.authenticated
    @authorized
    @_with_http_errors
    async def get(self, id_: str, job: str, rank: str) -> None:
        """Return a piece of the log: ``?from=`` is its first byte, from the end if negative."""
        try:
            begin = int(self.get_query_argument("from", "0"))
        except ValueError as err:
            raise web.HTTPError(400, "'from' must be a number") from err
        self.processes.look()
        record = self.processes.record(id_)
        piece = log_pieces.read(record, job, int(rank), begin)
        told = {"text": piece.text, "from": piece.begin, "to": piece.end, "size": piece.size}
        self.finish(json.dumps(told))


class Values(APIHandler):
    """Every value that a job has logged."""

    auth_resource = RESOURCE
    _track_activity = False

    def initialize(self, streams: Streams) -> None:
        """Keep the streams, which all pages share."""
        self._streams = streams

    @web.authenticated
    @authorized
    @_with_http_errors
    async def get(self, folder: str, job: str) -> None:
        """Return a CSV file with name, rank, step, time in seconds since 1970 and value."""
        self._streams.processes.look()
        known = self._streams.readers.known(followed_metrics.Place(folder, job))
        if known is None:
            raise UsageError(f"the server has no data of job {job} any more")
        pieces = followed_metrics.csv_of(known)
        self.set_header("Content-Type", "text/csv; charset=utf-8")
        self.set_header("Content-Disposition", f'attachment; filename="job-{job}.csv"')
        loop = asyncio.get_running_loop()
        while (piece := await loop.run_in_executor(None, next, pieces, None)) is not None:
            self.write(piece)
            await self.flush()  # waits while the client reads slowly
        self.finish()
