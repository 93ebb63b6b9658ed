"""`Cluster.push` and `Cluster.pull`: variables between this process and the ranks. Main thread."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from nbdist.notebook.names_both_ways import Names


class Sharing(ABC):
    """What `nbdist.Cluster` can do with variables."""

    names_between: Names

    @abstractmethod
    def _chosen(self, ranks: Iterable[int] | None) -> tuple[int, ...]: ...

    @abstractmethod
    def _check_alive(self) -> None: ...

    def push(self, **names: Any) -> None:
        """Bind copies of these values on every rank, whatever it has under their names.

        Raises
        ------
        UsageError
            If one cannot travel; nothing was bound.
        """
        self.send(names)

    def pull(self, name: str, ranks: int | Iterable[int] = 0) -> Any:  # whatever it is bound to
        """Return a copy of what a name is bound to: on one rank, or by rank if several are named.

        Raises
        ------
        UsageError
            If it is not there or cannot travel.
        """
        if isinstance(ranks, int):
            return self.fetch([name], ranks)[name]
        return {rank: self.fetch([name], rank)[name] for rank in self._chosen(ranks)}

    def send(self, values: dict[str, Any], ranks: Iterable[int] | None = None) -> list[str]:
        """Do what `push` does, on some ranks; return what to tell of it."""
        self._check_alive()
        return self.names_between.push(values, self._chosen(ranks))

    def fetch(self, names: Sequence[str], rank: int) -> dict[str, Any]:
        """Return copies of one rank's variables, those that are shared by several names once."""
        self._check_alive()
        return self.names_between.pull(names, self._chosen([rank])[0])
