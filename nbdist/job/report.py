"""The error report of a job: the rank that failed first, then what each other rank did."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Literal

from nbdist.errors import Interrupted, LaunchError, NbdistError, RankError
from nbdist.job.deaths import Death, how_died, name_signal
from nbdist.job.gpu_failures import LATER, gpu_failure, without_paragraph
from nbdist.job.job import Job
from nbdist.job.named_ranks import show_ranks
from nbdist.wire.elastic_rounds import LOST_TEXT

if TYPE_CHECKING:
    from nbdist.job.states import Stop
    from nbdist.wire.group_reports import Waiting
    from nbdist.wire.messages import Fault

LAST_LINES = 5
PLURALS = {"was": "were", "is": "are", "has": "have", "waits": "wait", "does": "do"}


class CellFailed(RankError):
    """A job failed; IPython shows the failed rank's traceback instead of ours."""

    def __init__(self, summary: str, body: str) -> None:
        super().__init__(summary)
        self._body = body

    @property
    def body(self) -> str:
        """The text that is shown."""
        return self._body

    def _render_traceback_(self) -> list[str]:
        return self._body.splitlines()


class CellInterrupted(Interrupted):
    """A job was interrupted; shown without a traceback, only with the ranks' places."""

    def _render_traceback_(self) -> list[str]:
        return str(self).splitlines()


ErrorKind = Literal["CellFailed", "CellInterrupted", "LaunchError", "NbdistError"]
"""What a job ends with, if not well."""
ErrorWords = tuple[ErrorKind, str, str]
"""Kind, text and body of an error, as another process reads it."""


def secondary(fault: Fault | Death) -> bool:
    """Whether a fault is a consequence of another rank's fault."""
    if isinstance(fault, Death):
        return fault.asked or silent(fault)
    return fault.aborted or bool(LOST_TEXT.search(fault.text))


def silent(fault: Fault | Death) -> bool:
    """Whether a rank ended without a report (``os._exit(0)``): no failure, but others may wait."""
    return isinstance(fault, Death) and not fault.asked and not fault.signum and not fault.code


def first_of(errors: dict[int, Fault | Death]) -> int:
    """Return the rank with the first fault that is not a consequence of another.

    If there is no other fault, it is a rank that ended without a report.
    """

    def order(rank: int) -> tuple[bool, bool, float]:
        fault = errors[rank]
        return secondary(fault), not silent(fault), fault.at

    return min(errors, key=order)


def told_first(job: Job) -> str:
    """Return one line about the rank that failed first."""
    first = first_of(job.errors)
    return told(first, job.errors[first], job)


def told(rank: int, fault: Fault | Death, job: Job) -> str:
    """Return one line about how a rank ended."""
    return f"rank {rank}{_where([rank], job)} {_headline(rank, fault, job)}"


def failure(job: Job) -> RankError:
    """Return the error of a failed job."""
    first = first_of(job.errors)
    groups: dict[str, list[int]] = defaultdict(list)
    for rank, fault in sorted(job.errors.items()):
        if not secondary(fault) or rank == first:
            groups[_headline(rank, fault, job)].append(rank)
    order = sorted(groups, key=lambda line: first not in groups[line])
    lines = [
        f"{_name(groups[line])}{_where(groups[line], job)} {agree(groups[line], line)}"
        for line in order
    ]
    body = [lines[0]]
    fault = job.errors[first]
    gpu = gpu_failure(job, first, fault)
    if isinstance(fault, Death):
        body += [] if gpu else _last_words(job, first)
    else:
        body += ["", *without_paragraph("\n".join(fault.traceback).splitlines())]
    rest = lines[1:] + _others(job, first) + job.notes + ([LATER] if gpu else [])
    return CellFailed(
        "\n".join([lines[0], *rest]), "\n".join([*body, *([""] if rest else []), *rest])
    )


def interrupted(job: Job, why: Stop) -> Interrupted:
    """Return the error of a stopped job, with the places of its ranks."""
    places = defaultdict(list)
    for rank, fault in sorted(job.errors.items()):
        if isinstance(fault, Death) or not secondary(fault):  # it came before the stop
            places[_headline(rank, fault, job)].append(rank)
        else:
            places[_place(fault)].append(rank)
    lines = [f"{_name(ranks)} {agree(ranks, place)}." for place, ranks in places.items()]
    lines = [line.replace("..", ".") for line in lines]
    return CellInterrupted("\n".join([f"The cell was {why.text}.", *lines, *job.notes]))


def launcher_killed(job: Job, launcher: str, signum: int) -> RankError:
    """Return the error of a script whose launcher was killed, which ends its ranks."""
    how = f"{launcher} itself was killed by {name_signal(signum)}, and its ranks with it"
    text = "\n".join([how, *_others(job, first=-1), *job.notes])
    return CellFailed(text, text)


def as_words(error: NbdistError | None) -> ErrorWords | None:
    """Return an error as texts, for `from_words` in another process."""
    match error:
        case None:
            return None
        case CellFailed():
            return "CellFailed", str(error), error.body
        case CellInterrupted():
            return "CellInterrupted", str(error), ""
        case LaunchError():
            return "LaunchError", str(error), ""
        case _:
            return "NbdistError", str(error), ""


def from_words(words: ErrorWords | None) -> NbdistError | None:
    """Return the error that `as_words` was given."""
    match words:
        case None:
            return None
        case "CellFailed", text, body:
            return CellFailed(text, body)
        case "CellInterrupted", text, _:
            return CellInterrupted(text)
        case "LaunchError", text, _:
            return LaunchError(text)
        case "NbdistError", text, _:
            return NbdistError(text)


def _headline(rank: int, fault: Fault | Death, job: Job) -> str:
    if gpu := gpu_failure(job, rank, fault):
        line = f" (noticed at cell line {fault.line})" if fault.line else ""
        return f"failed on the GPU: {gpu}{line}"
    if isinstance(fault, Death):
        line = f" at cell line {fault.line}" if fault.line else ""
        return f"{how_died(fault)}{line}"
    text = fault.text.splitlines()[0] if fault.text else ""
    line = f" (cell line {fault.line})" if fault.line else ""
    return f"failed: {fault.name}: {text}{line}" if text else f"failed: {fault.name}{line}"


def _last_words(job: Job, rank: int) -> list[str]:
    words = job.output(rank).splitlines()[-LAST_LINES:]
    if not words:
        return ["It had printed nothing."]
    return ["Its last output:", *(f"    {word}" for word in words)]


def _others(job: Job, first: int) -> list[str]:
    places: dict[str, list[int]] = defaultdict(list)
    for rank, fault in sorted(job.errors.items()):
        if rank != first and secondary(fault):
            places[how_died(fault) if isinstance(fault, Death) else _place(fault)].append(rank)
    return [f"{_name(ranks)} {agree(ranks, place)}." for place, ranks in places.items()]


def _place(fault: Fault) -> str:
    line = f" at cell line {fault.line}" if fault.line else ""
    line += f", in {fault.place}" if fault.place else ""
    if fault.waited is not None:
        return f"{_verb(fault.waited)}{line}"
    if LOST_TEXT.search(fault.text) and not fault.aborted:
        return f"lost the connection{line}"
    if fault.name == Interrupted.__name__:
        return f"was stopped where a collective begins after the stop{line}"
    return f"was stopped{line}"


def _verb(waiting: Waiting) -> str:
    group = "" if waiting.group in ("", "0") else f" of group {waiting.group}"
    return f"was waiting in {waiting.op}{group}"


def _where(ranks: list[int], job: Job) -> str:
    """Name the common host of these ranks, if the job has several hosts."""
    theirs = {job.hosts.get(rank, "") for rank in ranks}
    several = len(set(job.hosts.values())) > 1
    return f" on {theirs.pop()}" if several and len(theirs) == 1 else ""


def _name(ranks: list[int]) -> str:
    return f"Rank {ranks[0]}" if len(ranks) == 1 else f"Ranks {show_ranks(ranks)}"


def said_of(ranks: list[int], words: str) -> str:
    """Begin a sentence about ranks: ``Rank 0 has failed``, ``Ranks 0-1 have failed``."""
    return f"{_name(ranks)} {agree(ranks, words)}"


def agree(ranks: list[int], words: str) -> str:
    """Put the verb that `words` begin with into the plural if there are several ranks."""
    if len(ranks) == 1:
        return words
    verb, _, rest = words.replace(" and was ", " and were ").partition(" ")
    return f"{PLURALS.get(verb, verb)} {rest}"
