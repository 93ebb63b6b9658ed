"""Durations, sizes and rates are written in one way, in the kernel as on the page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nbdist.machine.amounts import counted, in_bytes, in_digits, in_rate, in_seconds, in_time, known

TABLE = json.loads((Path(__file__).parent / "amounts.json").read_text())
"""What the page's own test reads, too."""


@pytest.mark.parametrize(("seconds", "words"), TABLE["times"])
def test_durations(seconds: float, words: str) -> None:
    assert in_time(seconds) == words


@pytest.mark.parametrize(("size", "words"), TABLE["sizes"])
def test_sizes(size: int, words: str) -> None:
    assert in_bytes(size) == known(size, in_bytes) == words


@pytest.mark.parametrize(("value", "words"), TABLE["digits"])
def test_figures(value: float, words: str) -> None:
    assert in_digits(value) == words


@pytest.mark.parametrize(("rate", "label", "words"), TABLE["rates"])
def test_rates(rate: float, label: str, words: str) -> None:
    assert in_rate(rate, label) == words


def test_how_many_there_are() -> None:
    assert [counted(number, "rank") for number in (0, 1, 2, 1000)] == [
        "0 ranks", "1 rank", "2 ranks", "1,000 ranks",
    ]  # fmt: skip


def test_limits_are_told_as_they_are_set() -> None:
    assert [in_seconds(limit) for limit in (0.5, 300, 7200.0)] == ["0.5 s", "300 s", "7200 s"]


def test_what_nobody_knows_is_said() -> None:
    assert known(None, in_bytes) == "n/a"
    assert known(0, in_bytes) == "0 B"


def test_what_is_no_number_is_no_error() -> None:
    assert in_digits(float("nan")) == "nan"
    assert in_digits(float("inf")) == "inf"
