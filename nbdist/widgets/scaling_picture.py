"""Shows a scaling series (`--scale`) in a notebook: a picture above its table."""

from __future__ import annotations

import base64
from functools import partial
from typing import TYPE_CHECKING, Any

from nbdist.widgets.metrics_picture import COLOURS, INK, dress, painted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from matplotlib.axes import Axes

    from nbdist.metrics.comparison_table import Comparison
    from nbdist.metrics.scaling_table import Row, Scaling

PARTS = ("compute", "data", "communication")


def bundle(scaling: Scaling) -> tuple[dict[str, str], dict[str, Any]]:
    """Return a table and its picture as a MIME bundle and its metadata."""
    return pictured(scaling, "Throughput and time a step by ranks", _parts(scaling.rows))


def pictured(
    table: Scaling | Comparison, about: str, parts: list[Callable[[Axes], None]]
) -> tuple[dict[str, str], dict[str, Any]]:
    """Return a table below a picture with these panels, as a MIME bundle and its metadata."""
    data, metadata = {"text/plain": repr(table)}, {}
    image = ""
    if parts:
        png, width, height = painted(parts)
        encoded = data["image/png"] = base64.b64encode(png).decode()
        metadata["image/png"] = {"width": width, "height": height}
        image = (
            f'<img alt="{about}" style="max-width:100%;width:{width}px"'
            f' src="data:image/png;base64,{encoded}">'
        )
    data["text/html"] = f"<div>{image}{table._repr_html_()}</div>"
    return data, metadata


def _parts(rows: list[Row]) -> list[Callable[[Axes], None]]:
    """Return functions that draw the panels for which there are values."""
    parts: list[Callable[[Axes], None]] = []
    fast = [row for row in rows if row.samples_per_second]
    if fast:
        parts.append(partial(_throughput, rows=sorted(fast, key=lambda row: row.ranks)))
    timed = [row for row in rows if row.step_seconds]
    if timed:
        parts.append(partial(_step, rows=sorted(timed, key=lambda row: row.ranks)))
    return parts


def _throughput(axes: Axes, rows: list[Row]) -> None:
    ranks = [row.ranks for row in rows]
    rates = [row.samples_per_second or 0.0 for row in rows]
    ideal = [rates[0] * number / ranks[0] for number in ranks]
    axes.plot(ranks, ideal, color=INK, linewidth=1, linestyle="--", label="ideal")
    axes.plot(
        ranks, rates, color=COLOURS[0], linewidth=1.4, linestyle="-", marker="o", markersize=4,
        label="measured",
    )  # fmt: skip
    dress(axes, "samples/s")
    axes.set_ylim(bottom=0)
    axes.set_xticks(ranks)
    axes.set_xlabel("ranks", fontsize=8, color=INK)
    axes.legend(loc="best", frameon=False, fontsize=7, labelcolor=INK)


def _step(axes: Axes, rows: list[Row]) -> None:
    places = range(len(rows))
    for name, colour, low, high in stacked(rows):
        axes.bar(places, high, bottom=low, color=colour, width=0.6, label=name)
    dress(axes, "ms/step")
    axes.set_xticks(places, [str(row.ranks) for row in rows])
    axes.set_xlabel("ranks", fontsize=8, color=INK)
    axes.legend(loc="best", frameon=False, fontsize=7, labelcolor=INK)


def stacked(rows: list[Row]) -> Iterator[tuple[str, str, list[float], list[float]]]:
    """Yield the parts of a step's time: name, colour, where the bars begin, and their lengths.

    Begins and lengths are in milliseconds, with a number for each row.
    """
    low = [0.0] * len(rows)
    for name, colour in zip(PARTS, COLOURS, strict=False):
        high = [1000 * (getattr(row, name) or 0.0) if _is_split(row) else 0.0 for row in rows]
        yield name, colour, low, high
        low = [a + b for a, b in zip(low, high, strict=True)]
    whole = [0.0 if _is_split(row) else 1000 * (row.step_seconds or 0.0) for row in rows]
    if any(whole):
        yield "unknown", COLOURS[-1], [0.0] * len(rows), whole


def _is_split(row: Row) -> bool:
    """Whether the parts of a step's time are known."""
    return None not in (row.compute, row.data, row.communication)
