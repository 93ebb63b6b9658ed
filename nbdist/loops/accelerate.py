"""`AccelerateTracker`: shows values of `Accelerator.log` as curves."""

from __future__ import annotations

from typing import Any

from accelerate.tracking import GeneralTracker

from nbdist.loops.numbers import log_numbers
from nbdist.rank.metrics.logger import log


class AccelerateTracker(GeneralTracker):
    """Show values of ``accelerator.log`` as curves.

    accelerate calls trackers on rank 0 only: gather the other ranks' values first, or log them
    with `nbdist.log`. Strings are ignored.

    Examples
    --------
    >>> accelerator = Accelerator(log_with=nbdist.loops.AccelerateTracker())  # doctest: +SKIP
    >>> accelerator.init_trackers("mine")  # doctest: +SKIP
    >>> accelerator.log({"train/loss": loss}, step=step)  # doctest: +SKIP
    """

    name = "nbdist"
    requires_logging_directory = False

    def __init__(self) -> None:
        super().__init__()

    @property
    def tracker(self) -> Any:
        """The function that logs."""
        return log

    def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:
        """Log the numbers among `values`."""
        log_numbers(values, step)
