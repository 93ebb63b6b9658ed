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

from nbdist.wire.group_reports import Digest, GroupInfo
from nbdist.wire.inspection import Completions, Condition, Freed, Holdings
from nbdist.wire.messages import Message, Run
from nbdist.wire.parcel_format import Offer, Parcel

UNASKED = -1
"""Number of an `Ask` whose answer nobody waits for."""

Answer = TypeVar("Answer")


class Call(msgspec.Struct, Generic[Answer], frozen=True, tag=True, omit_defaults=True):
    """Base of all calls; `Answer` is what comes back."""

    def answer(self, value: Answer) -> object:
        """Return the answer unchanged: this is where mypy compares its type with the call's."""
        return value

    def read(self, value: object) -> Answer:
        """Return an answer in its own type, given as msgpack has decoded it.

        Raises
        ------
        msgspec.ValidationError
            If it does not fit.
        """
        kind: type[Answer] = _answer_type(type(self))
        return msgspec.convert(value, kind)


@functools.cache
def _answer_type(kind: type[Call[Any]]) -> Any:  # a type, or a union, which is no `type`
    (base,) = vars(kind)["__orig_bases__"]
    return base.__args__[0]


# -- the process group, and what is trained on it ------------------------------------------------


class Ports(msgspec.Struct, frozen=True):
    """Where a generation meets."""

    store: int
    master: int
    """A free port, for libraries that want another one."""


class OpenStore(Call[Ports], frozen=True):
    """Open the store of the next generation."""


class Formed(msgspec.Struct, frozen=True):
    """What forming a group has cost a rank."""

    lost: dict[str, str]
    """Variables that could not be renewed, and why."""
    broken_off: list[str]
    """Collectives behind which this rank's GPU went on when they were aborted."""


class FormGroup(Call[Formed], frozen=True):
    """Form the process group of a generation, together with all other ranks."""

    ports: Ports
    generation: int
    way: str
    """See `nbdist.backends.groups.recovery`."""
    fsdp: str
    """Why FSDP models cannot be renewed, '' where they can."""


class ListGroups(Call[list[GroupInfo]], frozen=True):
    """Tell which process groups there are; the first one is the world."""


class FindSharers(Call[list[int] | None], frozen=True):
    """Tell which ranks share a model, or the like; None if this rank has none at that path."""

    path: str


class SyncModel(Call[None], frozen=True):
    """Give a model, or the like, the values it has on rank `source`."""

    path: str
    source: int
    group: str
    """The process group all of whose ranks do this together, '' for the world."""


class WeighModels(Call[int], frozen=True):
    """Tell how many bytes `DigestModels` will read."""


class DigestModels(Call[dict[str, Digest]], frozen=True):
    """Tell a digest, by path, of all that is trained here: the hub compares the ranks."""


# -- names, on their way from process to process -------------------------------------------------


class ListNames(Call[list[str]], frozen=True):
    """Tell which names the user's cells have bound."""


class FindVersions(Call[dict[str, str]], frozen=True):
    """Tell which versions of names of the notebook are here, see `Names.holds`."""

    names: list[str]
    edited: list[str]


class ReceiveParcel(Call[list[str]], frozen=True):
    """Take in names of the notebook, and tell which of them will be bound by `BindParcel`."""

    parcel: Parcel
    run: Run
    """The cell that follows: what is unpickled may import from where that does."""


class BindParcel(Call[None], frozen=True):
    """Bind what was received."""

    parcel: str
    """Its id."""


class DropParcel(Call[None], frozen=True):
    """Forget what was received."""


class OfferNames(Call[Offer], frozen=True):
    """Pack values for the notebook, and hold them until `ReleaseOffer`."""

    names: list[str]


class ReleaseOffer(Call[None], frozen=True):
    """Let go of what was offered."""


class GiveNames(Call[dict[str, str]], frozen=True):
    """Write values to a file for another rank; tell which cannot be written, and why."""

    path: str
    names: list[str]


class TakeNames(Call[list[str]], frozen=True):
    """Bind what another rank has written; tell the names."""

    path: str


# -- looks at a rank -----------------------------------------------------------------------------


class TellStacks(Call[str], frozen=True):
    """Tell where the user's threads are."""


class TellCondition(Call[Condition], frozen=True):
    """Tell what the rank is doing, and what it takes of its machine."""


class DescribeVariables(Call[Holdings], frozen=True):
    """Tell of variables that fit some patterns; of a busy rank, without a look at their values."""

    patterns: list[str]
    most: int
    """How many are described."""


class GlanceAtVariables(Call[Holdings], frozen=True):
    """Tell of variables that fit some patterns, without a look at their values."""

    patterns: list[str]
    most: int


class FindNames(Call[list[str]], frozen=True):
    """Tell which variables have a name that begins with this prefix."""

    prefix: str


class CompleteCode(Call[Completions], frozen=True):
    """Tell what may stand at a place of a cell; nothing if the rank is busy."""

    code: str
    cursor: int
    within: float
    """Seconds after which the look is broken off."""


class FreeMemory(Call[Freed], frozen=True):
    """Give back the memory that no variable needs; nothing is done if the rank is busy."""


# -- how they travel -----------------------------------------------------------------------------

AnyCall = (
    OpenStore | FormGroup | ListGroups | FindSharers | SyncModel | WeighModels | DigestModels
    | ListNames | FindVersions | ReceiveParcel | BindParcel | DropParcel
    | OfferNames | ReleaseOffer | GiveNames | TakeNames
    | TellStacks | TellCondition | DescribeVariables | GlanceAtVariables | FindNames
    | CompleteCode | FreeMemory
)  # fmt: skip


class Ask(Message, frozen=True):
    """A call on its way to a rank; answered by a `Reply` of the same number."""

    id: int
    call: AnyCall
