"""The agent of a script's rank: says how it goes, and stops it when asked."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import msgspec
import zmq

from nbdist.machine.process_lives import here
from nbdist.rank import launched_place
from nbdist.rank.foreground import Foreground, interrupt_thread
from nbdist.rank.hub_connection import HubConnection
from nbdist.rank.looking import vitals
from nbdist.rank.metrics import logger, pace, progress
from nbdist.wire.messages import Hello, Interrupt, Pulse, Reply
from nbdist.wire.rank_calls import Ask, OfferNames, ReleaseOffer, TellStacks

if TYPE_CHECKING:
    from collections.abc import Callable

    from nbdist.rank.script_program import Program
    from nbdist.wire.encoding import ToAgent
    from nbdist.wire.group_reports import Waiting
    from nbdist.wire.parcel_format import Offer
    from nbdist.wire.rank_calls import AnyCall

FLUSH_SECONDS = 10.0
"""How long a rank that ends waits until its last messages have been sent.

The wait ends as soon as they have left, so only a busy machine needs so much time: with 27 busy
programs for each core, 2 s were too short. If the hub has gone, the guard of this host ends the
rank in any case.
"""


class Reporter(HubConnection):
    """One rank's connection to the hub, while its script runs on the main thread.

    Parameters
    ----------
    program
        The script's program.
    rank, restart
        The rank, and how often the job has been restarted.
    waiting
        Returns the collective in which the main thread waits.
    """

    def __init__(
        self, program: Program, rank: int, restart: int, waiting: Callable[[], Waiting | None]
    ) -> None:
        super().__init__(
            zmq.Context(), program.url, program.keys,
            Hello(
                rank, restart, os.getpid(), here().host, size=launched_place.size(),
                place=here().name,
            ),
            linger=FLUSH_SECONDS,
        )  # fmt: skip
        self._program, self._waiting = program, waiting
        self._main = threading.main_thread().ident or 0
        self._foreground = Foreground()
        self.interrupted = threading.Event()
        self._over = False
        """Whether the last pulse has been made; no pulse may follow it."""
        self.offered: Offer | None = None
        """The script's returned values, once they are packed; the main thread sets it."""
        self.taken = threading.Event()
        """Set when the notebook has these values."""

    def close(self) -> None:
        """End after all queued messages have left this process."""
        self.end(FLUSH_SECONDS)
        if not self._thread.is_alive() and not self._context.closed:
            # The process may end without Python's shutdown, and messages of the closed socket would
            # be lost: this waits until they are sent, for the socket's linger time at most.
            self._context.term()

    def _handle(self, message: ToAgent) -> None:
        match message:
            case Interrupt():
                self.interrupted.set()
                interrupt_thread(self._main)
                self._foreground.interrupt()
            case Ask():
                try:
                    self.send(Reply(message.id, self._answer(message.call)))
                except Exception as err:  # the hub must get any error
                    self.send(Reply(message.id, error=f"{type(err).__name__}: {err}"))

    def _answer(self, call: AnyCall) -> object:
        match call:
            case TellStacks():
                return call.answer(self._stacks())
            case OfferNames() if self.offered is not None:
                return call.answer(self.offered)
            case ReleaseOffer():
                self.taken.set()
                return call.answer(None)
        raise NotImplementedError(f"a script's rank has no answer to {type(call).__name__} now")

    def _stacks(self) -> str:
        return vitals.stacks(self._main, (), self._program.path, self._program.named)

    def _pulse(self) -> Pulse | None:
        return None if self._over else self._doing()

    def _doing(self) -> Pulse:
        waiting = self._waiting()
        return Pulse(
            self._program.job,
            self._program.line_now(self._main),
            vitals.where(self._main),
            waiting,
            self._meter.read(0.0 if waiting is None else waiting.since),
            progress.bars(),
            self._meter.device,
        )

    def end_job(self) -> None:
        """Write all logged values to disk, and send the loops' final progress. Main thread."""
        logger.end()
        if self.resources is not None:
            self.resources.end()
        self._over = True
        pulse = self._doing()
        paces, bars = pace.paces(), progress.end()
        if bars:
            self.send(msgspec.structs.replace(pulse, bars=bars, paces=paces))
