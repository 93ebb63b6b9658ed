"""The hub's end of the wire: messages to and from agents, calls and their answers.

Hub's thread only.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, cast

import msgspec
import zmq

from nbdist.errors import NbdistError
from nbdist.hub.link.cell_sockets import CellSockets
from nbdist.job import changes
from nbdist.machine.amounts import in_time
from nbdist.machine.sockets import LOOPBACK
from nbdist.wire.channel import Keys, Listener
from nbdist.wire.encoding import decode_to_hub, encode_to_agent
from nbdist.wire.messages import Display, Done, Hello, Message, Pulse, Reply, Run
from nbdist.wire.rank_calls import AnyCall, Ask

if TYPE_CHECKING:
    from pathlib import Path

    from nbdist.wire.framing import Stream
    from nbdist.wire.rank_calls import Answer, Call

CALL_SECONDS = 5.0

Heard = Hello | Done | Display | Pulse


class NoAnswer(NbdistError):
    """A rank did not answer in time."""


def given(answers: dict[int, Answer | NbdistError]) -> dict[int, Answer]:
    """Return the answers without the errors; see `Line.call_all`."""
    return {rank: answer for rank, answer in answers.items() if not isinstance(answer, NbdistError)}


class Line:
    """The connections to all agents; `hear` receives messages that are not answers.

    An agent is identified by its rank and incarnation, also as its socket's identity.

    Parameters
    ----------
    hear
        Called with rank, incarnation and message.
    newcomers
        Whether a later incarnation is accepted as soon as it connects: a launcher starts the ranks.
    host
        The address of this machine for the agents.
    cells
        The path of the socket for the main threads of persistent ranks.
    """

    def __init__(
        self,
        hear: Callable[[int, int, Heard], None],
        *,
        newcomers: bool = False,
        host: str = LOOPBACK,
        cells: Path | None = None,
    ) -> None:
        self._newcomers = newcomers
        self.keys = Keys.new()
        self.garbage = 0
        """The number of invalid messages that were dropped."""
        self._hear = hear
        self._listener = Listener(self.keys, host)
        self.url = self._listener.url
        self._loop = asyncio.get_running_loop()
        self._names: dict[int, bytes] = {}
        self._lost: set[int] = set()
        """Dead ranks that were not replaced yet."""
        self._call_ids = itertools.count(1)
        self._calls: dict[int, tuple[int, asyncio.Future[object]]] = {}
        self._loop.add_reader(self._listener.socket.FD, self._pump)
        self._cells = None if cells is None else CellSockets(cells, self._hear_of_cells)
        self._cell_streams: dict[int, Stream] = {}
        """The stream of each rank's last incarnation."""

    def expect(self, rank: int, incarnation: int) -> None:
        """Expect this incarnation of a rank from now on, and ignore earlier ones."""
        self._names[rank] = f"{rank}.{incarnation}".encode()
        self._lost.discard(rank)

    def send(self, rank: int, message: Message) -> None:
        """Send to a rank's agent; a dead rank is skipped, as its death is noticed elsewhere."""
        self._send(self._names[rank], encode_to_agent(message))

    def send_cell(self, ranks: Iterable[int], run: Run) -> None:
        """Send a cell to the main threads of these ranks."""
        assert self._cells is not None
        body = encode_to_agent(run)
        for rank in ranks:
            stream = self._cell_streams.get(rank)
            if stream is not None and stream.name == self._names[rank]:  # not a predecessor's
                self._cells.send(stream, body)

    def _hear_of_cells(self, stream: Stream, body: bytes) -> None:
        assert self._cells is not None
        changes.happened()
        try:
            message = decode_to_hub(body)
            if isinstance(message, Hello):
                stream.name = f"{message.rank}.{message.incarnation}".encode()
                if stream.name == self._names.get(message.rank):
                    self._cell_streams[message.rank] = stream
            rank, incarnation = map(int, stream.name.split(b"."))
        except (ValueError, msgspec.DecodeError):
            self.garbage += 1
            self._cells.drop(stream)
            return
        if self._names.get(rank) == stream.name and not isinstance(message, Reply):
            self._hear(rank, incarnation, message)

    def _send(self, name: bytes, body: bytes) -> None:
        try:
            self._listener.socket.send_multipart([name, body], zmq.NOBLOCK)
        except zmq.ZMQError:
            return
        # The socket's file descriptor is edge-triggered: a send may consume the edge of an arrival.
        self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        sock = self._listener.socket
        while not sock.closed:
            try:
                frames = sock.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            changes.happened()
            try:
                name, body = frames
                rank, incarnation = map(int, name.split(b"."))
                message = decode_to_hub(body)
            except (ValueError, msgspec.DecodeError):
                self.garbage += 1
                continue
            if self._newcomers and isinstance(message, Hello) and self._is_new(rank, incarnation):
                self.expect(rank, incarnation)
            if self._names.get(rank) != name:
                continue
            match message:
                case Reply():
                    self._answered(rank, message)
                case _:
                    self._hear(rank, incarnation, message)

    def _is_new(self, rank: int, incarnation: int) -> bool:
        known = self._names.get(rank)
        return known is None or incarnation > int(known.split(b".")[1])

    def _answered(self, rank: int, reply: Reply) -> None:
        _, future = self._calls.pop(reply.id, (0, None))
        if future is None or future.done():
            return
        if reply.error:
            future.set_exception(NbdistError(f"rank {rank}: {reply.error}"))
        else:
            future.set_result(reply.value)

    async def call(self, rank: int, call: Call[Answer], *, timeout: float = CALL_SECONDS) -> Answer:
        """Call a rank and wait for the answer, whose type belongs to the call.

        Raises
        ------
        NbdistError
            If the rank raised, died, did not answer in time, or answered something else.
        """
        if rank in self._lost:
            raise NbdistError(f"rank {rank} has died")
        number = next(self._call_ids)
        future: asyncio.Future[object] = self._loop.create_future()
        self._calls[number] = rank, future
        self.send(rank, Ask(number, cast("AnyCall", call)))  # all that are made are among them
        name = type(call).__name__
        try:
            return call.read(await asyncio.wait_for(future, timeout))
        except asyncio.TimeoutError:
            msg = f"rank {rank} did not answer `{name}` within {in_time(timeout)}"
            raise NoAnswer(msg) from None
        except msgspec.ValidationError as err:
            raise NbdistError(f"rank {rank} answered `{name}` wrongly: {err}") from err
        finally:
            self._calls.pop(number, None)

    async def call_all(
        self, ranks: Iterable[int], call: Call[Answer], *, timeout: float = CALL_SECONDS
    ) -> dict[int, Answer | NbdistError]:
        """Call several ranks at once; each answer is a value or an `NbdistError`."""

        async def answer(rank: int) -> Answer | NbdistError:
            try:
                return await self.call(rank, call, timeout=timeout)
            except NbdistError as err:
                return err

        ranks = list(ranks)
        answers = await asyncio.gather(*map(answer, ranks))
        return dict(zip(ranks, answers, strict=True))

    def lost(self, rank: int) -> None:
        """Fail the open calls to a rank that has died."""
        self._lost.add(rank)
        for number, future in list(self._calls.values()):
            if number == rank and not future.done():
                future.set_exception(NbdistError(f"rank {rank} has died"))

    def close(self) -> None:
        """Close the socket."""
        self._loop.remove_reader(self._listener.socket.FD)
        self._listener.close()
        if self._cells is not None:
            self._cells.close()
