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
    note: str = ""  # what the ratio is made of, in absolute terms

    @property
    def median(self) -> float:
        """What the table shows and the target is held against."""
        return statistics.median(self.values)

    @property
    def range(self) -> tuple[float, float]:
        """Between what the true median lies with 95 % certainty; of few values, all of them.

        By the sign test: below the median lie as many of `n` values as a coin shows heads.
        """
        ordered, n = sorted(self.values), len(self.values)
        outside = 0  # values on either side that it leaves out
        chance = 0.5**n + n * 0.5**n  # that the median lies beyond one more of them
        while chance <= DOUBT / 2:
            outside += 1
            chance += math.comb(n, outside + 1) * 0.5**n
        return ordered[outside], ordered[n - 1 - outside]

    def show(self, unit: str) -> str:
        """Median (quartiles) unit, note."""
        shown = f"{_number(self.median)}{unit}"
        if len(set(self.values)) > 1:
            low, _, high = statistics.quantiles(self.values, n=4, method="inclusive")
            shown = f"{_number(self.median)} ({_number(low)}-{_number(high)}){unit}"
        return f"{shown}, {self.note}" if self.note else shown


@dataclass(frozen=True)
class Target:
    """What a figure has to reach."""

    sign: Literal["<=", ">=", "<"]
    bound: float

    def met(self, value: float) -> bool:
        """Whether `value` reaches it."""
        if self.sign == ">=":
            return value >= self.bound
        return value < self.bound or (self.sign == "<=" and value == self.bound)


@dataclass(frozen=True)
class Figure:
    """One row: what nbdist reached and what the peers reached in the same run."""

    what: str
    unit: str
    target: Target | None  # None: what it is good to know beside the others
    measured: Mapping[str, Measured | str]  # by system; a text says why there is no number

    @property
    def verdict(self) -> str:
        """Whether nbdist meets the target; a figure that could not be measured does not.

        Where the spread is so large that it may be either, it says so.
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
        """Tell what was measured for one system."""
        found = self.measured.get(name, "-")
        return found.show(self.unit) if isinstance(found, Measured) else found


@dataclass(frozen=True)
class Section:
    """The figures of one module, and how they were taken."""

    name: str
    how: str
    figures: Sequence[Figure]
    seconds: float = 0


def measured(take: Callable[[], T]) -> T | str:
    """Take a measurement; one that fails becomes a line of the table, not the end of the run."""
    try:
        return take()
    except Exception as error:  # whatever a peer, or nbdist, does
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
    """Say what it ran on."""
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
