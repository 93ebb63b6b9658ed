"""`AccelerateTracker`: what goes to `Accelerator.log`."""

from __future__ import annotations

from typing import Any

from accelerate.tracking import GeneralTracker

from nbdist.loops.numbers import log_numbers
from nbdist.rank.metrics.logger import log


class AccelerateTracker(GeneralTracker):
    """Show what is given to ``accelerator.log`` as curves.

    accelerate asks trackers on rank zero alone; what the other ranks have is gathered first, or
    logged by `nbdist.log`. Texts are left to other trackers.

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
        """What does the logging."""
        return log

    def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:
        """Log the numbers among `values`."""
        log_numbers(values, step)
