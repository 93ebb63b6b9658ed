"""What the hub asks of ranks: every call travels, and its answer is of the call's own type."""

from __future__ import annotations

import asyncio
import os
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, get_args

import pytest
import zmq

from nbdist.backends.choice import CANNOT_SEND, Backend, NoBackend
from nbdist.errors import NbdistError
from nbdist.hub.asking import rank_equality, variables
from nbdist.hub.link.agent_connections import Line, NoAnswer, given
from nbdist.hub.link.ranks import Rank as Known
from nbdist.rank.hub_connection import HubConnection
from nbdist.wire import channel
from nbdist.wire.encoding import ToAgent, decode_to_agent, encode_to_agent, encode_to_hub
from nbdist.wire.group_reports import GroupInfo, Outline
from nbdist.wire.messages import Done, Hello, Quit, Reply, Run
from nbdist.wire.parcel_format import Parcel
from nbdist.wire.rank_calls import (
    AnyCall,
    Ask,
    Call,
    ListGroups,
    ListNames,
    OutlineModel,
    ReceiveParcel,
    SyncModel,
    WeighModels,
)
from tests.helpers.waiting import Deadline, allowed

if TYPE_CHECKING:
    from collections.abc import Iterator

GROUP = GroupInfo("0", [0, 1], "gloo", 600.0, world=True)
ANSWERS: dict[type[Call[Any]], object] = {
    ListGroups: [GROUP],
    ListNames: ["x", 3],
    OutlineModel: None,
    SyncModel: None,
}


class Rank(HubConnection):
    """Answers what `ANSWERS` say, and nothing else."""

    def _handle(self, message: ToAgent) -> None:
        if isinstance(message, Ask) and type(message.call) in ANSWERS:
            self.send(Reply(message.id, ANSWERS[type(message.call)]))

    def _pulse(self) -> None:
        return None


def test_every_call_can_travel() -> None:
    assert {*get_args(AnyCall)} == {*Call.__subclasses__()}
    run = Run("1", "x", 0, 1, "/logs", 0, "/", [], {"A": None})
    parcel = Parcel("7", {"x": ""}, b"\0\1", [])
    for call in (ReceiveParcel(parcel, run), SyncModel("model", 1, ""), ListNames()):
        assert decode_to_agent(encode_to_agent(Ask(3, call))) == Ask(3, call)


def test_without_a_backend_a_rank_has_nothing_in_common_with_others() -> None:
    backend: Backend = NoBackend()
    names: dict[str, object] = {"model": object()}
    assert (backend.open_store(), backend.groups(), backend.formed()) == (0, [], True)
    assert (backend.checksums(names), backend.weigh(names)) == ({}, 0)
    assert backend.outline(names, "gone") is None
    assert backend.outline(names, "model") == Outline({}, CANNOT_SEND)
    assert not backend.goes_on_when_freed()
    backend.refuse()
    backend.admit()
    with pytest.raises(RuntimeError, match="with --backend none, ranks cannot send anything"):
        backend.sync(names, "model", 0)


async def test_an_answer_is_of_the_type_of_its_call() -> None:
    there = asyncio.Event()
    line = Line(lambda *_: there.set(), newcomers=True)
    context = zmq.Context[zmq.Socket[bytes]]()
    rank = Rank(context, line.url, line.keys, Hello(0, 0, os.getpid(), "here"), linger=1)
    rank.start()
    try:
        await asyncio.wait_for(there.wait(), allowed(60))
        assert await line.call(0, ListGroups(), timeout=allowed(60)) == [GROUP]
        assert await line.call(0, OutlineModel("model"), timeout=allowed(60)) is None
        with pytest.raises(NbdistError, match="rank 0 answered `ListNames` wrongly: "):
            await line.call(0, ListNames(), timeout=allowed(60))
        with pytest.raises(NoAnswer, match="rank 0 did not answer `WeighModels` within"):
            await line.call(0, WeighModels(), timeout=0.05)
        answers = await line.call_all([0], SyncModel("model", 0, ""), timeout=allowed(60))
        assert given(answers) == answers == {0: None}
        line.lost(0)
        answers = await line.call_all([0], SyncModel("model", 0, ""), timeout=allowed(60))
        assert str(answers[0]) == "rank 0 has died"
        assert given(answers) == {}
    finally:
        rank.end(wait=allowed(10))
        line.close()
        context.destroy(0)
        for end in (rank._wake, rank._woken):  # a rank keeps them to its own end
            end.close()


@contextmanager
def without_ranks() -> Iterator[Line]:
    """Expect two ranks that never come."""
    line = Line(lambda *_: None)
    try:
        line.expect(0, 0)
        line.expect(1, 0)
        yield line
    finally:
        line.close()


async def test_who_waits_for_a_rank_that_dies_waits_no_more() -> None:
    loop = asyncio.get_running_loop()
    with without_ranks() as line:
        asked = [
            loop.create_task(line.call(rank, ListNames(), timeout=allowed(60))) for rank in (0, 1)
        ]
        await asyncio.sleep(0)
        line.lost(0)
        with pytest.raises(NbdistError, match="rank 0 has died"):
            await asyncio.wait_for(asked[0], allowed(20))
        assert not asked[1].done()
        asked[1].cancel()


async def test_a_rank_that_dies_when_it_is_asked_is_told() -> None:
    with without_ranks() as line:
        hub: Any = SimpleNamespace(
            backend="ddp", ranks={0: Known(0, Path(), state="idle")}, uncompared=False,
            broken_off={}, loop=asyncio.get_running_loop(), call_all=line.call_all,
        )  # fmt: skip
        line.lost(0)  # the hub has not looked at its death yet
        (told,) = await rank_equality.compare(hub)
        assert "were not compared: rank 0 has died. The next cell compares them." in told
        assert hub.uncompared
        assert (await variables.who(hub, [0], [], None)).silent == {0: "rank 0 has died"}


async def test_predecessors_are_not_heard_and_nothing_is_read_after_the_end() -> None:
    heard: list[object] = []
    troubles: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, about: troubles.append(about))
    line = Line(lambda *_: heard.append(_))
    context = zmq.Context[zmq.Socket[bytes]]()
    try:
        line.expect(0, 1)
        before = channel.connect(context, line.url, line.keys, b"0.0")
        before.send(encode_to_hub(Done("1", 0)))
        before.send(b"the end")  # which is no message
        deadline = Deadline(60)
        while not line.garbage:
            assert not deadline.over
            await asyncio.sleep(0.005)
        assert not heard
        line.expect(0, 0)
        line.send(0, Quit())  # after which it looks for what has come meanwhile
    finally:
        line.close()
        context.destroy(0)
    await asyncio.sleep(0)
    assert not troubles
