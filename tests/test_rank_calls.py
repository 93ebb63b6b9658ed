"""What the hub asks of ranks: every call travels, and its answer is of the call's own type."""

from __future__ import annotations

import asyncio
import os
from typing import Any, get_args

import pytest
import zmq

from nbdist.backends.choice import Backend, NoBackend
from nbdist.errors import NbdistError
from nbdist.hub.link.agent_connections import Line, NoAnswer, given
from nbdist.rank.hub_connection import HubConnection
from nbdist.wire.encoding import ToAgent, decode_to_agent, encode_to_agent
from nbdist.wire.group_reports import GroupInfo
from nbdist.wire.messages import Hello, Reply, Run
from nbdist.wire.parcel_format import Parcel
from nbdist.wire.rank_calls import (
    AnyCall,
    Ask,
    Call,
    FindSharers,
    ListGroups,
    ListNames,
    ReceiveParcel,
    SyncModel,
    WeighModels,
)
from tests.helpers.waiting import allowed

GROUP = GroupInfo("0", [0, 1], "gloo", 600.0, world=True)
ANSWERS: dict[type[Call[Any]], object] = {
    ListGroups: [GROUP],
    ListNames: ["x", 3],
    FindSharers: None,
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
    assert (backend.sharers(names, "model"), backend.sharers(names, "gone")) == ([], None)
    assert not backend.goes_on_when_freed()
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
        assert await line.call(0, FindSharers("model"), timeout=allowed(60)) is None
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
