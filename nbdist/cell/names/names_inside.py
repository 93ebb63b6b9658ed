"""Finds the notebook's names whose objects are inside of values that are brought. Main thread.

A later cell may use such a name: `net`, after `trainer = Trainer(net)` was brought. Sent only then,
it would be a second copy, which the ranks' trainer does not train. So it is bound along. Likewise
the model of an optimizer, which holds only the model's parameters.
"""

from __future__ import annotations

from types import BuiltinFunctionType
from typing import TYPE_CHECKING, Any

from nbdist.cell.names.sent_versions import FIXED
from nbdist.rank.values.kinds import PLAIN, VALUES, is_value_of_library
from nbdist.rank.values.parts_inside import is_model

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable, Mapping

    from nbdist.cell.names.sent_versions import Known

EQUAL_TO_COPIES = (*FIXED, *PLAIN, *VALUES, BuiltinFunctionType)
"""Types of values that need not be the same object."""


class Inside:
    """The notebook's names for what the values in one parcel hold."""

    def __init__(self, space: Mapping[str, Any], has: Callable[[str], bool]) -> None:
        self._space = space
        self._ids = {
            name: id(value)
            for name, value in space.items()
            if not isinstance(value, EQUAL_TO_COPIES)
            and not is_value_of_library(type(value))
            and has(name)
        }
        self.holders: dict[str, list[str]] = {}
        """For each such name, the names whose values hold its object."""

    def meet(self, holder: str, ids: Container[int]) -> None:
        """Take note of the objects of a value that was pickled."""
        for name, one in self._ids.items():
            if one in ids and name != holder:
                self.holders.setdefault(name, []).append(holder)

    def trained(self, updated: Collection[int]) -> list[str]:
        """Return the other models with parameters that optimizers update, given by their ids."""
        others = [name for name in self._ids if name not in self.holders] if updated else []
        models = {name: value for name in others if is_model(value := self._space[name])}
        return [
            name
            for name, model in models.items()
            if any(id(parameter) in updated for parameter in model.parameters())
        ]

    def lacking(
        self, names: Iterable[str], known: Known, ask: Callable[[list[str]], list[Any]]
    ) -> list[str]:
        """Return those of these names that ranks lack, or have with earlier values."""
        tokens = {name: known.unchanged(name, self._space[name]) for name in names}
        asked = [name for name, token in tokens.items() if token is not None]
        answers = ask(asked) if asked else []
        versions = {name: {answer.get(name) for answer in answers} for name in asked}
        # '' is the version of what a cell has bound there.
        return [n for n, found in versions.items() if "" not in found and found != {tokens[n]}]
