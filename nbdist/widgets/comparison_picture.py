"""Shows a comparison in a notebook: a picture above its table."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from nbdist.metrics.comparison_table import Comparison
from nbdist.widgets.metrics_picture import COLOURS, INK, dress
from nbdist.widgets.scaling_picture import pictured, stacked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from matplotlib.axes import Axes

MOST_DRAWN = 9
"""The most metrics with a panel; all metrics have a column."""
LONGEST = 24
"""The most characters of a name in a panel."""


@dataclass(frozen=True, repr=False)
class Compared(Comparison):
    """A comparison that a notebook shows with its picture."""

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, str], dict[str, Any]]:
        return pictured(self, "Throughput, time a step and metrics by way", self._parts())

    def _parts(self) -> list[Callable[[Axes], None]]:
        """Return functions that draw the panels for which there are values."""
        rates = [way.pace.samples_per_second for way in self.rows]
        epochs = [way.pace.epoch_seconds for way in self.rows]
        parts = [*self._bars("samples/s", rates), *self._bars("s/epoch", epochs)]
        if any(way.pace.step_seconds for way in self.rows):
            parts.append(self._steps)
        for metric in self.metrics[:MOST_DRAWN]:
            parts += self._bars(metric, [way.metrics.get(metric) for way in self.rows])
        return parts

    def _bars(self, title: str, values: Sequence[float | None]) -> Iterator[Callable[[Axes], None]]:
        names = [way.name for way in self.rows]
        if any(value is not None for value in values):
            yield partial(_bars, title=title, names=names, values=values)

    def _steps(self, axes: Axes) -> None:
        places = range(len(self.rows))
        for name, colour, low, high in stacked([way.pace for way in self.rows]):
            axes.barh(places, high, left=low, color=colour, height=0.6, label=name)
        _name_bars(axes, "ms/step", [way.name for way in self.rows])
        axes.legend(
            loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=3, frameon=False, fontsize=7,
            labelcolor=INK,
        )  # fmt: skip


def _bars(axes: Axes, title: str, names: Sequence[str], values: Sequence[float | None]) -> None:
    """Draw a bar for each variant with a known value."""
    long = [math.nan if value is None or math.isinf(value) else value for value in values]
    axes.barh(range(len(names)), long, color=COLOURS[0], height=0.6)
    _name_bars(axes, title, names)


def _name_bars(axes: Axes, title: str, names: Sequence[str]) -> None:
    """Label each bar with its name, the first at the top."""
    dress(axes, title)
    short = [name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…" for name in names]
    axes.set_yticks(range(len(names)), short)
    axes.invert_yaxis()
