"""The calls from the hub to a rank: one type for each, with the type of its answer.

A call travels in an `Ask`, its answer in a `Reply`. The hub asks by `Line.call`, which returns the
type of answer that the call names; the rank answers by `Call.answer`, which takes no other type. So
mypy finds every place that has to change with a call, its fields or its answer. A new call is added
here and to `AnyCall`, and is answered in `nbdist.rank.call_answers`.
"""

from __future__ import annotations

import functools
from typing import Any, Generic, TypeVar

import msgspec

from nbdist.wire.group_reports import Digest, GroupInfo, Outline, Standing
from nbdist.wire.inspection import Completions, Condition, Edited, Freed, Holdings, Look, Marks
from nbdist.wire.messages import Message, Run
from nbdist.wire.parcel_format import Offer, Parcel

UNASKED = -1
"""The id of an `Ask` for whose answer no one waits."""

Answer = TypeVar("Answer")


class Call(msgspec.Struct, Generic[Answer], frozen=True, tag=True, omit_defaults=True):
    """Base of all calls; `Answer` is the type of the answer."""

    def answer(self, value: Answer) -> object:
        """Return the answer unchanged: this is where mypy compares its type with the call's."""
        return value

    def read(self, value: object) -> Answer:
        """Convert an answer, as decoded from msgpack, to its type.

        Raises
        ------
        msgspec.ValidationError
            If the answer does not fit the type.
        """
        kind: type[Answer] = _answer_type(type(self))
        return msgspec.convert(value, kind)


@functools.cache
def _answer_type(kind: type[Call[Any]]) -> Any:  # a type, or a union, which is no `type`
    (base,) = vars(kind)["__orig_bases__"]
    return base.__args__[0]


# -- process groups, models and optimizers -------------------------------------------------------


class Ports(msgspec.Struct, frozen=True):
    """The ports at which the ranks of a generation meet."""

    store: int
    master: int
    """A free port, for libraries that need one more."""


class OpenStore(Call[Ports], frozen=True):
    """Open the store of the next generation."""


class Formed(msgspec.Struct, frozen=True):
    """The losses of a rank when its group was formed."""

    lost: dict[str, str]
    """Variables that could not be renewed, and why."""
    broken_off: list[str]
    """Collectives that were aborted while this rank's GPU went on with the work behind them."""
    reset: dict[str, str]
    """Variables that have lost what they kept between steps, and what this was."""


class FormGroup(Call[Formed], frozen=True):
    """Form the process group of a generation, together with all other ranks."""

    ports: Ports
    generation: int
    way: str
    """See `nbdist.backends.groups.recovery`."""
    fsdp: str
    """Why FSDP models cannot be renewed, '' if they can."""


class SettleCell(Call[Standing], frozen=True):
    """Reset what a cell that failed has left half done, and tell how the groups stand."""


class TryGroups(Call[bool], frozen=True):
    """Try each group with a small collective, together with its other ranks; tell if all work."""


class ListGroups(Call[list[GroupInfo]], frozen=True):
    """List the process groups; the first one is the world."""


class OutlineModel(Call[Outline | None], frozen=True):
    """Return the outline of a model or the like; None if this rank has none at that path."""

    path: str


class SyncModel(Call[None], frozen=True):
    """Give a model or the like the values that it has on rank `source`."""

    path: str
    source: int
    group: str
    """The process group whose ranks do this together, '' for the world."""


class WeighModels(Call[int], frozen=True):
    """Return how many bytes `DigestModels` will read."""


class DigestModels(Call[dict[str, Digest]], frozen=True):
    """Return a digest, by path, of every trained object; the hub compares those of all ranks."""

    jobs: list[str]
    """The jobs that failed: only the steps of their cells are of interest."""
    every: bool
    """Whether every rank is asked: from then on changes are counted anew."""


# -- names, on their way from process to process -------------------------------------------------


class ListNames(Call[list[str]], frozen=True):
    """List the names that the user's cells have bound."""


class FindVersions(Call[dict[str, str]], frozen=True):
    """Return the versions of the notebook's names on this rank, see `Names.holds`."""

    names: list[str]
    edited: dict[str, Edited] = {}
    compared: bool = False


class LookAtNames(Call[dict[str, Look]], frozen=True):
    """Look at those of these names that the rank has; a busy rank does not compare values."""

    names: list[str]


class ReceiveParcel(Call[list[str]], frozen=True):
    """Receive names of the notebook; return the names that `BindParcel` will bind."""

    parcel: Parcel
    run: Run
    """The cell that follows: unpickling imports modules from the same paths."""


class BindParcel(Call[None], frozen=True):
    """Bind the names of a received parcel."""

    parcel: str
    """Its id."""


class DropParcel(Call[None], frozen=True):
    """Drop a received parcel."""


class OfferNames(Call[Offer], frozen=True):
    """Pack values for the notebook, and hold them until `ReleaseOffer`."""

    names: list[str]


class TryNames(Call[dict[str, str]], frozen=True):
    """Return which values can, by their kind, never be packed for the notebook, and why."""

    names: list[str]


class ReleaseOffer(Call[None], frozen=True):
    """Free the values that were packed for the notebook."""


class GiveNames(Call[dict[str, str]], frozen=True):
    """Write values to a file for another rank; return those that cannot be written, and why."""

    path: str
    names: list[str]


class TakeNames(Call[list[str]], frozen=True):
    """Bind values that another rank has written; return their names."""

    path: str


class TellMarks(Call[Marks], frozen=True):
    """Tell what in the variables may be this rank's own, such as its number in a sampler."""


class PutMarksRight(Call[None], frozen=True):
    """Set for this rank what has come from another rank."""

    paths: list[str]


# -- looks at a rank -----------------------------------------------------------------------------


class TellStacks(Call[str], frozen=True):
    """Return the stacks of the user's threads."""


class TellCondition(Call[Condition], frozen=True):
    """Return what the rank is doing, and its memory."""


class DescribeVariables(Call[Holdings], frozen=True):
    """Describe variables that fit some patterns; a busy rank does not read their values."""

    patterns: list[str]
    most: int
    """The largest number of variables to describe."""


class GlanceAtVariables(Call[Holdings], frozen=True):
    """Describe variables that fit some patterns, without reading their values."""

    patterns: list[str]
    most: int


class FindNames(Call[list[str]], frozen=True):
    """List the variables whose name begins with this prefix."""

    prefix: str


class CompleteCode(Call[Completions], frozen=True):
    """Return completions for a position in a cell; none if the rank is busy."""

    code: str
    cursor: int
    within: float
    """Seconds after which the search for completions is broken off."""


class FreeMemory(Call[Freed], frozen=True):
    """Free the memory that no variable needs; a busy rank does nothing."""


# -- how they travel -----------------------------------------------------------------------------

AnyCall = (
    OpenStore | FormGroup | SettleCell | TryGroups | ListGroups
    | OutlineModel | SyncModel | WeighModels | DigestModels
    | ListNames | FindVersions | ReceiveParcel | BindParcel | DropParcel
    | OfferNames | TryNames | ReleaseOffer | GiveNames | TakeNames | TellMarks | PutMarksRight
    | TellStacks | TellCondition | DescribeVariables | GlanceAtVariables | FindNames
    | CompleteCode | FreeMemory | LookAtNames
)  # fmt: skip


class Ask(Message, frozen=True):
    """A call on its way to a rank; answered by a `Reply` of the same number."""

    id: int
    call: AnyCall
