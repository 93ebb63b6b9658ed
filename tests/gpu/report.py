"""The page that tells how the GPU tests went, written anew after each of them."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import TYPE_CHECKING

import nbdist
from tests.gpu.machine import REHEARSAL, facts

if TYPE_CHECKING:
    import pytest

FIGURE = "figure: "
LAST_LINES = 60
"""Of a failure, so much of what was seen goes into the page."""


class Page:
    """Collects what pytest tells. A run that is cut off leaves the page as it was until then."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.began = time.strftime("%Y-%m-%d %H:%M %Z")
        self._clock = time.monotonic()
        self._left = self._not_chosen = 0
        self._now = ""
        self._passed: list[str] = []
        self._skipped: dict[str, list[str]] = {}
        self._failed: dict[str, str] = {}
        self._figures: dict[str, str] = {}

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        """Count what whoever started this left out."""
        self._not_chosen += len(items)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Count what is to come."""
        self._left = len(session.items)
        self.write()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Write which test is at it: the one that a run was cut off in."""
        self._now = _name(nodeid)
        self.write()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take in a test, or what came before or after it."""
        name = _name(report.nodeid)
        if report.failed:
            where = "" if report.when == "call" else f" ({report.when})"
            self._failed[name + where] = report.longreprtext
        elif report.skipped:
            self._skipped.setdefault(_reason(report), []).append(name)
        elif report.when == "call":
            self._passed.append(name)
        if report.when == "teardown":
            told = ((key, str(value)) for key, value in report.user_properties)
            self._figures |= {k.removeprefix(FIGURE): v for k, v in told if k.startswith(FIGURE)}
            self._left -= 1

    def pytest_sessionfinish(self) -> None:
        """Write it for good."""
        self._now = ""
        self.write()

    def write(self) -> None:
        """Write the page."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text("\n\n".join(self._parts()) + "\n")

    def _parts(self) -> list[str]:
        skipped = sum(map(len, self._skipped.values()))
        passed = len([name for name in self._passed if name not in self._failed])
        counts = f"{passed} passed, {len(self._failed)} failed, {skipped} skipped"
        parts = [
            "# A rehearsal on the CPU: it proves nothing about GPUs" if REHEARSAL else "# On a GPU",
            f"`make test-gpu{' REHEARSE=1' if REHEARSAL else ''}` wrote this.",
            "\n".join(f"- {line}" for line in self._machine()),
            f"**{counts}**, in {time.monotonic() - self._clock:.0f} s.",
        ]
        if self._not_chosen:
            parts.append(f"**Some only: {self._not_chosen} tests were left out by choice.**")
        if self._left:
            at = f"; it stopped in, or is now at, `{self._now}`" if self._now else ""
            parts.append(f"**Not all was run: {self._left} more tests{at}.**")
        parts += _section(
            "Figures", [f"{name}: **{self._figures[name]}**" for name in self._figures]
        )
        parts += _section("Failed", [f"`{n}`: {_first(text)}" for n, text in self._failed.items()])
        parts += _section(
            "Skipped",
            [f"{reason}: " + ", ".join(map(_code, set_)) for reason, set_ in self._skipped.items()],
        )
        parts += _section("Passed", [_code(name) for name in self._passed])
        for name, text in self._failed.items():
            shown = "\n".join(text.splitlines()[-LAST_LINES:]).replace("```", "'''")
            parts += [f"## The end of {_code(name)}", f"```text\n{shown}\n```"]
        return parts

    def _machine(self) -> list[str]:
        seen = facts()
        nccl = ".".join(map(str, seen["nccl"])) if seen["nccl"] else "none"
        versions = f"torch {seen['torch']}, CUDA {seen['cuda']}, NCCL {nccl}"
        return [
            f"{self.began}; {os.cpu_count()} CPUs, {platform.system()} {platform.release()}",
            f"GPU: {'; '.join(seen['gpus']) or 'none'}; driver {seen['driver'] or 'unknown'}",
            f"Python {platform.python_version()}, {versions}, nbdist {nbdist.__version__}",
        ]


def _name(nodeid: str) -> str:
    return nodeid.removeprefix("tests/gpu/")


def _code(name: str) -> str:
    return f"`{name}`"


def _section(title: str, lines: list[str]) -> list[str]:
    return [f"## {title}", "\n".join(f"- {line}" for line in lines)] if lines else []


def _reason(report: pytest.TestReport) -> str:
    told = report.longrepr
    return str(told[2] if isinstance(told, tuple) else told).removeprefix("Skipped: ")


def _first(text: str) -> str:
    """Return the line of a failure that says most: that of the assert, or the first."""
    lines = [line[1:].strip() for line in text.splitlines() if line.startswith("E  ")]
    return " ".join((lines or text.splitlines() or [""])[0].split())[:300]
