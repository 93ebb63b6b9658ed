"""Writes amounts for people: durations, sizes, rates, counts.

`labextension/src/amounts.ts` does the same for the page, and one table, `tests/amounts.json`, tests
both. All round a half up, which `format` and JavaScript's `toFixed` do not.

`humanize` is not used. It writes what the page does not ("2 minutes and 5 seconds", and "512.3 MB"
with a tenth whatever the size), and it knows neither rates nor figures of three digits.
"""

from __future__ import annotations

import math
import re
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

Number = TypeVar("Number", int, float)

UNKNOWN = "n/a"
"""What a table has in place of an amount that nobody knows."""
MINUTE, HOUR, DAY = 60, 60 * 60, 24 * 60 * 60
THOUSAND = 1000
SHORT_TIMES = (("µs", 1e6, THOUSAND), ("ms", 1e3, THOUSAND), ("s", 1.0, MINUTE))
"""Units, how many there are in a second, and how many make up the next."""
SIZES = ("B", "kB", "MB", "GB", "TB")
FEW_UNITS = 10
"""Below so many units, tenths are shown; in a longer duration they are noise."""
FEW_BYTES = 100
"""The same of sizes: 61.2 GB are not 61.7, which may be what is too much for a device."""
THREE_DIGITS = 100
STEP = re.compile(r"(epoch|step|batch)(?:e?s)?", re.IGNORECASE)
"""Labels of loops that name what is done once an iteration; "epoch 3" is one of its batches."""
MANY = {"epoch": "epochs", "step": "steps", "batch": "batches", "it": "it"}


def in_time(seconds: float) -> str:
    """Write a duration: ``12 ms``, ``3.2 s``, ``12 min 5 s``, ``2 h 5 min``, ``1 d 3 h``."""
    if seconds <= 0:
        return "0 s"
    for unit, factor, most in SHORT_TIMES:
        number = _shortened(seconds * factor, FEW_UNITS)
        if number < most:
            return f"{number:.12g} {unit}"
    whole = _rounded(seconds)
    if whole < HOUR:
        return _two(whole, MINUTE, "min", "s")
    whole = _rounded(seconds / MINUTE) * MINUTE
    if whole < DAY:
        return _two(whole // MINUTE, HOUR // MINUTE, "h", "min")
    return _two(_rounded(seconds / HOUR), DAY // HOUR, "d", "h")


def in_seconds(limit: float) -> str:
    """Write a limit in seconds, as a person has set it: ``300 s``, ``0.5 s``."""
    return f"{limit:g} s"


def in_bytes(size: float) -> str:
    """Write a number of bytes: ``12.3 MB``; a MB is 10**6 bytes everywhere."""
    number = float(size)
    for unit in SIZES:
        shown = _shortened(number, 0 if unit == "B" else FEW_BYTES)
        if shown < THOUSAND or unit == SIZES[-1]:
            break
        number /= THOUSAND
    return f"{shown:.12g} {unit}"


def in_digits(value: float) -> str:
    """Write a figure with three digits, all of them before the point: ``5.28``, ``12,345``."""
    if math.isfinite(value) and abs(value) >= THREE_DIGITS:
        return f"{_rounded(value):,}"
    return f"{float(f'{value:.3g}'):.12g}"


def in_milliseconds(seconds: float) -> str:
    """Write what a step takes as columns of milliseconds have it: ``5.28``."""
    return in_digits(THOUSAND * seconds)


def in_rate(rate: float, label: str = "") -> str:
    """Write how often a loop comes round: ``12.5 it/s``, and below one a second ``2.4 s/it``.

    Parameters
    ----------
    rate
        Iterations a second.
    label
        The loop's: one that says epoch, step or batch tells what an iteration is.
    """
    found = STEP.fullmatch(label.strip())
    unit = found[1].lower() if found else "it"
    return f"{in_digits(rate)} {MANY[unit]}/s" if rate >= 1 else f"{in_time(1 / rate)}/{unit}"


def in_percent(share: float) -> str:
    """Write a number of percent."""
    return f"{_rounded(share)} %"


def in_share(share: float) -> str:
    """Write a part of a whole, which is 1, as a number of percent."""
    return in_percent(100 * share)


def in_value(value: float) -> str:
    """Write a value that a cell has logged, with four digits: ``0.03125``, ``1.2e-05``."""
    return f"{value:.4g}"


def known(amount: Number | None, write: Callable[[Number], str]) -> str:
    """Write an amount as a table has it, also one that nobody knows."""
    return UNKNOWN if amount is None else write(amount)


def counted(number: int, what: str) -> str:
    """Write how many there are of something: ``1 rank``, ``1,000 ranks``."""
    return f"{number:,} {what}" + "s" * (number != 1)


def clock(at: float) -> str:
    """Write a time as a clock shows it."""
    return time.strftime("%H:%M:%S", time.localtime(at))


def _two(number: int, most: int, unit: str, part: str) -> str:
    """Write so many parts in units, each of which has `most`."""
    units, parts = divmod(number, most)
    return f"{units} {unit} {parts} {part}" if parts else f"{units} {unit}"


def _shortened(number: float, few: int) -> float:
    """Return a number in tenths below so many, else a whole one."""
    tenths = _rounded(10 * number) / 10
    return tenths if tenths < few else _rounded(number)


def _rounded(number: float) -> int:
    return math.floor(number + 0.5)
