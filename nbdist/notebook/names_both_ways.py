"""Copies names between the notebook and a cluster: for a cell, by push, by pull."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from nbdist.backends.models.variable_paths import last_name
from nbdist.cell.names import packed_names as bring
from nbdist.cell.names.sent_versions import ABSENT, Known
from nbdist.errors import NbdistError, UsageError
from nbdist.hub.asking.names_sent import ask_for, hand_over, not_returned
from nbdist.hub.link.agent_connections import NoAnswer
from nbdist.hub.link.hub_loop import hub_loop
from nbdist.job.named_ranks import name_ranks
from nbdist.launchers.host.engines import working_directory
from nbdist.machine.amounts import in_time
from nbdist.rank.values.parcels import unpacked
from nbdist.rank.values.pickles import namespace
from nbdist.wire import messages
from nbdist.wire.parcel_format import Offer
from nbdist.wire.rank_calls import BindParcel, FindVersions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, MutableMapping, Sequence

    from nbdist.hub.hub import Hub

ASK_SECONDS = 10.0
"""How long to wait for a rank's agent, which normally answers within a millisecond."""


class Names:
    """Copies variables between this process and the ranks of one cluster. Main thread.

    Parameters
    ----------
    hub
        The cluster's.
    gpus
        The GPUs its ranks see, by index; None for all of the machine's.
    """

    def __init__(self, hub: Hub, gpus: Sequence[int] | None) -> None:
        self._hub, self._gpus = hub, gpus
        self._known = Known()

    def pack(self, wanted: bring.Wanted, ranks: Iterable[int]) -> bring.Bringing | None:
        """Pack the values that these ranks lack; return None if they lack none.

        Raises
        ------
        UsageError
            If a value cannot be pickled; nothing has been sent.

        """
        chosen = list(ranks)

        def ask(names: list[str], edited: list[str]) -> list[Mapping[str, str]]:
            if not names:
                return [{} for _ in chosen]
            living = [rank for rank in chosen if self._hub.ranks[rank].sound]
            question = FindVersions(names, edited)
            answers = hub_loop().wait(self._hub.call_all(living, question, timeout=ASK_SECONDS))
            silent = [rank for rank in living if isinstance(answers[rank], NoAnswer)]
            if silent:
                # Copies of what it may have would come apart from what holds the originals.
                raise UsageError(
                    f"{name_ranks(silent)} did not answer within {in_time(ASK_SECONDS)}, so that "
                    "no names of the notebook can be brought: `%dist stacks` shows why; --no-bring "
                    "runs the cell without these names"
                )
            # One that is dead, or has lost its GPU, is replaced, and is sent all.
            found = [answers.get(rank, {}) for rank in chosen]
            return [{} if isinstance(answer, NbdistError) else answer for answer in found]

        return bring.pack(wanted, self._known, ask, bring.devices(self._gpus))

    def push(self, values: dict[str, Any], ranks: Sequence[int]) -> list[str]:
        """Bind values on ranks, whatever their names hold there; return messages for the user."""
        notebook = namespace()
        wanted = bring.Wanted({**notebook, **values}, forced=list(values), automatic=False)
        bringing = self.pack(wanted, ranks)
        for name, value in values.items():
            if notebook.get(name, ABSENT) is not value:
                self._known.let_go(name)
        return [] if bringing is None else hub_loop().wait(self._push(bringing, ranks))

    async def _push(self, bringing: bring.Bringing, ranks: Sequence[int]) -> list[str]:
        hub = self._hub
        try:
            async with hub.turns.take(ranks, "names that are pushed"):
                gone = [rank for rank in ranks if not hub.ranks[rank].sound]
                if gone:
                    raise NbdistError(f"rank {gone[0]} is lost; the next cell replaces it")
                run = place(hub)
                told = await hand_over(hub, ranks, bringing, run)
                await hub.demand(ranks, BindParcel(bringing.parcel.id))
                return told
        finally:
            bringing.close()

    def pull(self, names: Sequence[str], rank: int) -> dict[str, Any]:
        """Return copies of a rank's values.

        Raises
        ------
        UsageError
            If the rank has no such variable, or its value cannot be pickled.

        """
        offer = hub_loop().wait(self._ask(list(names), rank))
        values = self.take(offer)
        if offer.refused:
            raise UsageError(cannot_return(offer))
        return values

    async def _ask(self, names: list[str], rank: int) -> Offer:
        async with self._hub.turns.take([rank], "names that are pulled"):
            return await ask_for(self._hub.line, rank, names)

    def take(self, offer: Offer) -> dict[str, Any]:
        """Unpack the values that a rank has packed; the rank need not be alive any more."""
        return unpacked(offer.parcel, offer.buffers)

    def forget(self, space: Mapping[str, Any]) -> None:
        """Release copied values that the notebook no longer has."""
        self._known.forget(space)

    def bind(self, values: dict[str, Any], space: MutableMapping[str, Any]) -> None:
        """Bind values that came from the ranks; names need not be sent back later.

        What was a part of a value there (`trainer.model`) has no name of its own on the ranks.
        """
        for path, value in values.items():
            name = last_name(path)
            space[name] = value
            if name == path:
                self._known.returned(name, value)


def place(hub: Hub) -> messages.Run:
    """Return a message with which a rank finds the same modules as the notebook."""
    environ = {**hub.host.environ_changes(), **hub.environ}
    return messages.Run("", "", 0, 0, "", 0, working_directory(), sys.path, environ)


def cannot_return(offer: Offer) -> str:
    """Say which names a rank could not return, and why."""
    return not_returned(offer.refused, offer.rank)
