"""`Cluster.who`, `free` and `complete`: looking at ranks without disturbing them. Any thread."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from nbdist.hub.asking import variables as side_by_side
from nbdist.hub.link.hub_loop import hub_loop
from nbdist.wire.inspection import Completions, State

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nbdist.hub.hub import Hub
    from nbdist.wire.inspection import Freed

COMPLETE_SECONDS = 0.3
NAME = re.compile(r"(?<![.'\"/%!?\\])\b[^\W\d]\w*$|(?<![.'\"/%!?\\\w])$")
"""Where a name can stand, and how far it is written."""


class Inspecting(ABC):
    """What `nbdist.Cluster` tells of its ranks' memory."""

    hub: Hub

    @abstractmethod
    def _chosen(self, ranks: Iterable[int] | None) -> tuple[int, ...]: ...

    @abstractmethod
    def _check_alive(self) -> None: ...

    def who(
        self, *patterns: str, ranks: Iterable[int] | None = None, most: int | None = None
    ) -> side_by_side.Inventory:
        """List the ranks' variables and where ranks differ; a busy rank is not disturbed.

        Parameters
        ----------
        patterns
            Names, or patterns such as ``opt*``; without any, all variables that are not private,
            a module, a function or a class.
        ranks
            The ranks to ask; all by default.
        most
            How many variables to describe; all by default.

        Returns
        -------
        Inventory
            Its `variables`, and the ranks whose values could not be compared.
        """
        self._check_alive()
        return hub_loop().wait(side_by_side.who(self.hub, self._chosen(ranks), patterns, most))

    def free(self, ranks: Iterable[int] | None = None) -> tuple[dict[int, Freed], dict[int, str]]:
        """Have idle ranks give back all the memory that no variable needs.

        Returns
        -------
        tuple of dict
            By rank, memory before and after (neither where it is busy); and why a rank did not
            answer.
        """
        self._check_alive()
        return hub_loop().wait(side_by_side.free(self.hub, self._chosen(ranks)))

    def complete(self, code: str, cursor: int, ranks: Iterable[int] | None = None) -> Completions:
        """Return what the ranks offer at a place of a cell, within a third of a second."""
        line = code[:cursor].rpartition("\n")[2]
        found = NAME.search(line)
        prefix = found[0] if found else None
        try:
            return hub_loop().wait(
                side_by_side.complete(
                    self.hub, self._chosen(ranks), code, cursor, prefix, COMPLETE_SECONDS
                ),
                2 * COMPLETE_SECONDS,
            )
        except TimeoutError:  # the hub is busy itself
            return Completions(State())
