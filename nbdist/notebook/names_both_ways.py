"""Copies names between the notebook and a cluster: for a cell, by push, by pull."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from nbdist.backends.models.variable_paths import last_name
from nbdist.cell.names import packed_names as bring
from nbdist.cell.names.sent_versions import ABSENT, Known
from nbdist.cell.names.wanted_names import Wanted
from nbdist.errors import NbdistError, UsageError
from nbdist.hub.asking.names_sent import ask_for, hand_over, not_returned
from nbdist.hub.link.agent_connections import NoAnswer, given
from nbdist.hub.link.hub_loop import hub_loop
from nbdist.job.named_ranks import name_ranks
from nbdist.launchers.host.engines import working_directory
from nbdist.machine.amounts import in_time
from nbdist.rank.looking.likeness import text_of
from nbdist.rank.values import rank_marks
from nbdist.rank.values.parcels import unpacked
from nbdist.rank.values.pickles import namespace
from nbdist.wire import messages
from nbdist.wire.inspection import Edited, Look
from nbdist.wire.parcel_format import Offer
from nbdist.wire.rank_calls import BindParcel, FindVersions, LookAtNames

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, MutableMapping, Sequence

    from nbdist.cell.names.bringing import Bringing
    from nbdist.hub.hub import Hub

ASK_SECONDS = 10.0
"""How long to wait for a rank's agent, which normally answers within a millisecond."""
LOOK_SECONDS = 0.5
"""How long to wait for what only serves to tell the user more."""


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

    def pack(self, wanted: Wanted, ranks: Iterable[int]) -> Bringing | None:
        """Pack the values that these ranks lack; return None if they lack none.

        Raises
        ------
        UsageError
            If a value cannot be pickled; nothing has been sent.

        """
        chosen = list(ranks)

        def ask(
            names: list[str], edited: Mapping[str, Edited] | None = None, *, compared: bool = False
        ) -> list[Mapping[str, str]]:
            if not names:
                return [{} for _ in chosen]
            living = [rank for rank in chosen if self._hub.ranks[rank].sound]
            question = FindVersions(names, dict(edited or {}), compared)
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

        def look(names: list[str]) -> list[Mapping[str, Look]]:
            return list(self.look(names, chosen, LOOK_SECONDS).values())

        bringing = bring.pack(wanted, self._known, ask, look, bring.devices(self._gpus))
        if bringing is not None:
            dealing = bringing.parcel.dealing
            bringing.notes += rank_marks.notes(wanted.space, dealing, self._hub.size)
        return bringing

    def look(
        self, names: list[str], ranks: Iterable[int], seconds: float
    ) -> dict[int, dict[str, Look]]:
        """Return what ranks that answer within so many seconds have under these names."""
        living = [rank for rank in ranks if self._hub.ranks[rank].sound]
        asked = self._hub.call_all(living, LookAtNames(names), timeout=seconds)
        return given(hub_loop().wait(asked))

    def push(self, values: dict[str, Any], ranks: Sequence[int]) -> list[str]:
        """Bind values on ranks, whatever their names hold there; return messages for the user."""
        notebook = namespace()
        wanted = Wanted({**notebook, **values}, forced=list(values), automatic=False)
        bringing = self.pack(wanted, ranks)
        for name, value in values.items():
            if notebook.get(name, ABSENT) is not value:
                self._known.let_go(name)
        return [] if bringing is None else hub_loop().wait(self._push(bringing, ranks))

    async def _push(self, bringing: Bringing, ranks: Sequence[int]) -> list[str]:
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

    def are_on_ranks(self, names: Iterable[str]) -> bool:
        """Return whether cells have bound some of these names on the ranks."""
        return any(name in self._known.there for name in names)

    def bound_here(self, names: Iterable[str]) -> None:
        """Record the names that a plain cell has bound in the notebook."""
        self._known.there.bound_here(names)

    def unseen(self, names: Iterable[str]) -> list[str]:
        """Return those of these names that cells on the ranks may have changed unnoticed."""
        return self._known.there.unseen(names)

    def left_alone(self, names: Iterable[str], space: Mapping[str, Any]) -> list[str]:
        """Return those names whose plain data the notebook has not changed since ranks had them."""
        return [n for n in names if n in space and self._known.left_alone(n, space[n])]

    def overtaken(
        self, names: Sequence[str], looks: Mapping[int, Mapping[str, Look]],
        space: Mapping[str, Any], left_alone: Collection[str], *, idle: bool,
    ) -> dict[str, str]:  # fmt: skip
        """Return the names whose values cells on the ranks have changed, unlike the notebook.

        Each comes once after such a change, with the text of the notebook's value if it is short.

        Parameters
        ----------
        names, looks, space
            The names, what ranks have under them, rank 0 first, and the notebook's namespace.
        left_alone
            Names which the notebook had left alone until the cell that reads them.
        idle
            Whether no cell is running or waiting, whose changes a later look would have to find.
        """
        there, found = self._known.there, {}
        for name in names:
            mine, *others = [each[name] for each in looks.values() if name in each] or [Look()]
            self._known.look_at(name, space[name], (mine, *others))
            # The notebook may have got the value of another rank.
            returned = any(not each.version and not each.changed for each in others)
            if (
                not returned
                and self._known.overtaken(name, space[name], mine, left_alone=name in left_alone)
                and there.tells(name)
            ):
                found[name] = text_of(space[name])
        if idle:
            # A rank may still be at the end of its cell, and has compared nothing.
            busy = {name for each in looks.values() for name, one in each.items() if one.busy}
            there.looked(name for name in names if name not in busy)
        return found

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
