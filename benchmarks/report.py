"""Figures: medians with their spread, targets, the table and RESULTS.md."""

from __future__ import annotations

import math
import os
import platform
import statistics
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import psutil

from benchmarks.systems import ALL, NBDIST, cores

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

PACKAGES = ("nbdist", "torch", "ipykernel", "ipyparallel", "nbdistributed", "jupyter-distributed")


DOUBT = 0.05
T = TypeVar("T")


@dataclass(frozen=True)
class Measured:
    """Repeated measurements of one thing."""

    values: tuple[float, ...]
    note: str = ""  # for a ratio, the absolute times

    @property
    def median(self) -> float:
        """The median, which the table shows, and which must reach the target."""
        return statistics.median(self.values)

    @property
    def range(self) -> tuple[float, float]:
        """The range that holds the true median with 95 % certainty; of few values, all of them.

        By the sign test: the number of values below the median is distributed like the number of
        heads in `n` throws of a coin.
        """
        ordered, n = sorted(self.values), len(self.values)
        outside = 0  # how many values on either side are left out
        chance = 0.5**n + n * 0.5**n  # that the median is outside if one more is left out
        while chance <= DOUBT / 2:
            outside += 1
            chance += math.comb(n, outside + 1) * 0.5**n
        return ordered[outside], ordered[n - 1 - outside]

    def show(self, unit: str) -> str:
        """Write the median, the quartiles in brackets, the unit and the note."""
        shown = f"{_number(self.median)}{unit}"
        if len(set(self.values)) > 1:
            low, _, high = statistics.quantiles(self.values, n=4, method="inclusive")
            shown = f"{_number(self.median)} ({_number(low)}-{_number(high)}){unit}"
        return f"{shown}, {self.note}" if self.note else shown


@dataclass(frozen=True)
class Target:
    """The value that a figure has to reach."""

    sign: Literal["<=", ">=", "<"]
    bound: float

    def met(self, value: float) -> bool:
        """Whether `value` reaches the target."""
        if self.sign == ">=":
            return value >= self.bound
        return value < self.bound or (self.sign == "<=" and value == self.bound)


@dataclass(frozen=True)
class Figure:
    """A row of the table: the values of nbdist and of the peers in the same run."""

    what: str
    unit: str
    target: Target | None  # None for a figure that is only for information
    measured: Mapping[str, Measured | str]  # by system; a text is the reason for a missing number

    @property
    def verdict(self) -> str:
        """Whether nbdist meets the target: `met`, `MISSED` or `not shown`.

        A figure that could not be measured misses its target. `not shown` means that the spread is
        too large to decide.
        """
        if self.target is None:
            return ""
        mine = self.measured.get(NBDIST.name)
        if not isinstance(mine, Measured):
            return "MISSED"
        ends = {self.target.met(end) for end in mine.range}
        return "not shown" if len(ends) > 1 else "met" if ends == {True} else "MISSED"

    @property
    def aim(self) -> str:
        """Write the target."""
        return f"{self.target.sign} {_number(self.target.bound)}{self.unit}" if self.target else ""

    def shown(self, name: str) -> str:
        """Write the value of one system."""
        found = self.measured.get(name, "-")
        return found.show(self.unit) if isinstance(found, Measured) else found


@dataclass(frozen=True)
class Section:
    """The figures of one module, and how they were measured."""

    name: str
    how: str
    figures: Sequence[Figure]
    seconds: float = 0


def measured(take: Callable[[], T]) -> T | str:
    """Take a measurement; if it fails, return the error as a text for the table."""
    try:
        return take()
    except Exception as error:  # a peer, or nbdist, may raise anything
        lines = [line for line in str(error).splitlines() if line.strip()] or [repr(error)]
        return f"failed: {lines[-1].strip()[:160]}"


def show(section: Section) -> str:
    """Write a section for the terminal."""
    lines = [f"{section.name} ({section.seconds:.0f} s)"]
    for figure in section.figures:
        target = f"target {figure.aim}: {figure.verdict}" if figure.target else "no target"
        lines.append(f"  {figure.what}: {target}")
        lines += [f"    {name:<20} {figure.shown(name)}" for name in figure.measured]
    return "\n".join(lines)


def write(path: Path, sections: Sequence[Section], load: float) -> None:
    """Write the Markdown page that is kept in the repository."""
    names = [system.name for system in ALL]
    about = (
        f"`make bench` wrote this on {time.strftime('%Y-%m-%d %H:%M %Z')}, all of it measured in "
        "this one run on this one machine. Medians of repeated measurements, quartiles in "
        "brackets. "
        'Where the target lies within what chance may have made of the median, it is "not shown".'
    )
    rows = [
        [
            f"{figure.what}",
            figure.aim,
            figure.verdict,
            *(figure.shown(name) for name in names),
            "; ".join(
                f"{name} {figure.shown(name)}" for name in figure.measured if name not in names
            ),
        ]
        for section in sections
        for figure in section.figures
    ]
    head = ["what", "target", "", *names, "others"]
    table = [head, ["---"] * len(head), *rows]
    parts = [
        "# Results",
        about,
        "\n".join(f"- {line}" for line in machine(load)),
        "\n".join("| " + " | ".join(_cell(cell) for cell in row) + " |" for row in table),
        "## How each was measured",
        *(
            f"**{section.name}** (`python -m benchmarks --only {section.name}`, "
            f"{section.seconds:.0f} s). {' '.join(section.how.split())}"
            for section in sections
        ),
    ]
    path.write_text("\n\n".join(parts) + "\n")


def machine(load: float) -> list[str]:
    """Describe the machine of the run."""
    versions = ", ".join(f"{name} {_version(name)}" for name in PACKAGES)
    memory = psutil.virtual_memory().total / 2**30
    system = f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    return [
        f"{cores()} cores ({_processor()}), {memory:.0f} GiB memory, {system}",
        versions,
        f"load average {load:.1f} when it began, {os.getloadavg()[0]:.1f} at the end",
    ]


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    for line in cpuinfo.read_text().splitlines() if cpuinfo.exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
