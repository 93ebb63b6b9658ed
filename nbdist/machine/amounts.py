"""Writes amounts for people: durations, sizes, rates, counts.

`labextension/src/amounts.ts` does the same for the page, and one table, `tests/amounts.json`, tests
both. Both round a half up, unlike `format` and JavaScript's `toFixed`.

`humanize` is not used: its texts differ from the page's ("2 minutes and 5 seconds", and "512.3 MB"
with a tenth for every size), and it has neither rates nor figures of three digits.
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
"""The text in a table for an unknown amount."""
MINUTE, HOUR, DAY = 60, 60 * 60, 24 * 60 * 60
THOUSAND = 1000
SHORT_TIMES = (("µs", 1e6, THOUSAND), ("ms", 1e3, THOUSAND), ("s", 1.0, MINUTE))
"""Each unit, how many make up a second, and how many make up the next unit."""
SIZES = ("B", "kB", "MB", "GB", "TB")
FEW_UNITS = 10
"""Below this number of units, tenths are shown; in longer durations they do not matter."""
FEW_BYTES = 100
"""The same for sizes: half a GB of 61.7 GB may decide whether data fits into a device."""
THREE_DIGITS = 100
STEP = re.compile(r"(epoch|step|batch)(?:e?s)?", re.IGNORECASE)
"""Labels of loops that name one iteration; an iteration of the loop "epoch 3" is a batch."""
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
    """Write a limit in seconds, as the user has set it: ``300 s``, ``0.5 s``."""
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
    """Write a figure with three digits, or as a whole number: ``5.28``, ``12,345``."""
    if math.isfinite(value) and abs(value) >= THREE_DIGITS:
        return f"{_rounded(value):,}"
    return f"{float(f'{value:.3g}'):.12g}"


def in_milliseconds(seconds: float) -> str:
    """Write the time of a step for a column of milliseconds: ``5.28``."""
    return in_digits(THOUSAND * seconds)


def in_rate(rate: float, label: str = "") -> str:
    """Write the speed of a loop: ``12.5 it/s``, below one iteration a second ``2.4 s/it``.

    Parameters
    ----------
    rate
        Iterations a second.
    label
        The loop's label; "epoch", "step" or "batch" becomes the unit of the rate.
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
    """Write an amount for a table, also an unknown one."""
    return UNKNOWN if amount is None else write(amount)


def counted(number: int, what: str) -> str:
    """Write how many there are of something: ``1 rank``, ``1,000 ranks``."""
    return f"{number:,} {what}" + "s" * (number != 1)


def clock(at: float) -> str:
    """Write a time as a clock shows it."""
    return time.strftime("%H:%M:%S", time.localtime(at))


def _two(number: int, most: int, unit: str, part: str) -> str:
    """Write a number of parts as units of `most` parts and the rest."""
    units, parts = divmod(number, most)
    return f"{units} {unit} {parts} {part}" if parts else f"{units} {unit}"


def _shortened(number: float, few: int) -> float:
    """Return a number rounded to tenths if it is below `few`, else to a whole number."""
    tenths = _rounded(10 * number) / 10
    return tenths if tenths < few else _rounded(number)


def _rounded(number: float) -> int:
    return math.floor(number + 0.5)
