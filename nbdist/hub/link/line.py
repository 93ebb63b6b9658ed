"""The hub's end of the wire: messages to and from agents, and questions with their answers.

Hub's thread only.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec
import zmq

from nbdist.errors import NbdistError
from nbdist.hub.link.cell_sockets import CellSockets
from nbdist.job import changes
from nbdist.machine.amounts import in_time
from nbdist.machine.sockets import LOOPBACK
from nbdist.wire.channel import Keys, Listener
from nbdist.wire.messages import (
    Call,
    Display,
    Done,
    Hello,
    Message,
    Pulse,
    Reply,
    Run,
    decode_to_hub,
    encode_to_agent,
)

if TYPE_CHECKING:
    from pathlib import Path

    from nbdist.wire.framing import Stream

CALL_SECONDS = 5.0

Heard = Hello | Done | Display | Pulse


class NoAnswer(NbdistError):
    """A rank did not answer in time."""


class Line:
    """Speaks with every agent; `hear` gets what they say of their own accord.

    An agent is named by its rank and incarnation, which is also its socket's identity.

    Parameters
    ----------
    hear
        Called with rank, incarnation and message.
    newcomers
        Whether a later incarnation is expected as soon as it says hello: others start the ranks.
    host
        The address of this machine at which agents find it.
    cells
        Path of the socket that the main threads of ranks that stay find.
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
        """Messages that fitted no type and were dropped."""
        self._hear = hear
        self._listener = Listener(self.keys, host)
        self.url = self._listener.url
        self._loop = asyncio.get_running_loop()
        self._names: dict[int, bytes] = {}
        self._lost: set[int] = set()
        """Ranks that have died and have no successor yet."""
        self._call_ids = itertools.count(1)
        self._calls: dict[int, tuple[int, asyncio.Future[Any]]] = {}
        self._loop.add_reader(self._listener.socket.FD, self._pump)
        self._cells = None if cells is None else CellSockets(cells, self._hear_of_cells)
        self._cell_streams: dict[int, Stream] = {}
        """By rank, that of its last incarnation."""

    def expect(self, rank: int, incarnation: int) -> None:
        """Take this incarnation for the rank from now on, and listen to no earlier one."""
        self._names[rank] = f"{rank}.{incarnation}".encode()
        self._lost.discard(rank)

    def send(self, rank: int, message: Message) -> None:
        """Send to a rank's agent; one that is gone is left out, its death is told elsewhere."""
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
        # The socket's descriptor is edge-triggered: a send may swallow the edge of an arrival.
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
            if isinstance(message, Reply):
                self._answered(rank, message)
            else:
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

    async def call(
        self,
        rank: int,
        method: str,
        *,
        timeout: float = CALL_SECONDS,
        **args: Any,
    ) -> Any:  # whatever the method returns
        """Ask a rank and wait for the answer.

        Raises
        ------
        NbdistError
            If the rank raised, died or did not answer in time.
        """
        if rank in self._lost:
            raise NbdistError(f"rank {rank} has died")
        number = next(self._call_ids)
        future: asyncio.Future[Any] = self._loop.create_future()
        self._calls[number] = rank, future
        self.send(rank, Call(number, method, args))
        try:
            return await asyncio.wait_for(future, timeout)
        except asyncio.TimeoutError:
            msg = f"rank {rank} did not answer `{method}` within {in_time(timeout)}"
            raise NoAnswer(msg) from None
        finally:
            self._calls.pop(number, None)

    async def call_all(
        self,
        ranks: Iterable[int],
        method: str,
        *,
        timeout: float = CALL_SECONDS,
        **args: Any,
    ) -> dict[int, Any]:
        """Ask several ranks at once; each answer is a value or the `NbdistError` it met."""
        ranks = list(ranks)
        answers = await asyncio.gather(
            *(self.call(rank, method, timeout=timeout, **args) for rank in ranks),
            return_exceptions=True,
        )
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, NbdistError):
                raise answer
        return dict(zip(ranks, answers, strict=True))

    def lost(self, rank: int) -> None:
        """Answer the questions a rank leaves open by its death."""
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
