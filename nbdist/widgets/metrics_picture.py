"""Draws a job's metrics as a picture and HTML tables, which need no kernel and no scripts.

The picture is made without pyplot, so the notebook's own figures and settings do not change.
"""

from __future__ import annotations

import base64
import html
import io
import logging
import math
import warnings
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from nbdist.machine.amounts import (
    UNKNOWN,
    counted,
    in_bytes,
    in_digits,
    in_milliseconds,
    in_percent,
    in_rate,
    in_time,
    in_value,
    known,
)
from nbdist.machine.tables import html_table, on_ground

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.axes import Axes
    from matplotlib.ticker import ScalarFormatter

    from nbdist.job.rows import RankRow
    from nbdist.metrics.thinned_curves import Curve
    from nbdist.view.job_view import Seen
    from nbdist.view.panels import Panel

COLOURS = ("#0072b2", "#d55e00", "#00825f", "#b3478c", "#7a5c00", "#5a4fcf", "#0d8ba1", "#6b6b6b")
"""The page's colours in its light theme, see `labextension/src/metrics/style.css`."""
INK = "#222222"
COLUMNS = 3
MOST_DRAWN = 12
"""The most panels of a picture; the table contains all metrics."""
WIDE, HIGH = 3.2, 2.3
"""The size of a panel in inches."""
DPI, SHARP = 80, 2
"""Dots an inch on the screen, and the picture's pixels for each dot."""
TONES = 64
"""The number of colours of a picture, enough for lines, bands and the edges of letters."""
HUGE = 1e300
"""The largest value that is drawn: Matplotlib cannot draw much larger ones."""
LONGEST = 32
"""The most characters of a name in a panel."""
FEW_POINTS = 30
"""With fewer points each has a marker: a single point between two gaps has no line."""
MANY_RANKS = 8
"""With more ranks, their table is folded."""


def prepare() -> None:
    """Import matplotlib, which takes most of a second. Any thread."""
    fonts = logging.getLogger("matplotlib.font_manager")
    level = fonts.level
    fonts.setLevel(logging.ERROR)  # else its first search for fonts prints a message in the cell
    try:
        import matplotlib.backends.backend_agg
        import matplotlib.figure  # noqa: F401
    finally:
        fonts.setLevel(level)
    # Names that matplotlib has no font for are readable in the table next to the picture.
    warnings.filterwarnings("ignore", "Glyph .* missing from", module=r"nbdist\.widgets")


def bundle(seen: Seen) -> dict[str, str]:
    """Return a view for front ends without our extension, as a MIME bundle.

    The picture is in the HTML only: otherwise notebooks would contain it twice.
    """
    data = {"text/plain": as_text(seen)}
    image, width = "", 0
    if seen.panels:
        png, width, _ = draw(seen.panels[:MOST_DRAWN])
        image = base64.b64encode(png).decode()
    data["text/html"] = as_html(seen, image, width)
    return data


def draw(panels: list[Panel]) -> tuple[bytes, int, int]:
    """Return a PNG of the panels, and the width and height at which to show it."""
    return painted([partial(_draw_panel, panel=panel) for panel in panels])


def painted(parts: list[Callable[[Axes], None]]) -> tuple[bytes, int, int]:
    """Return a PNG of axes drawn by these functions, and the width and height to show it at."""
    prepare()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    columns = min(COLUMNS, len(parts))
    rows = math.ceil(len(parts) / columns)
    figure = Figure(figsize=(columns * WIDE, rows * HIGH), layout="constrained")
    FigureCanvasAgg(figure)
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes, draw_part in zip(grid, parts, strict=False):
        draw_part(axes)
    for axes in grid[len(parts) :]:
        axes.set_visible(False)
    for text in figure.findobj(Text):
        # Plain text, whatever the notebook's own settings; other ticks copy the first one.
        text.set_usetex(False)
        text.set_parse_math(False)
    with io.BytesIO() as file, np.errstate(all="ignore"):
        figure.savefig(file, format="png", dpi=DPI * SHARP, facecolor="white", edgecolor="white")
        return _small(file), int(columns * WIDE * DPI), int(rows * HIGH * DPI)


def _small(file: io.BytesIO) -> bytes:
    """Return the picture as a PNG with few colours, which is a third of the size."""
    from PIL import Image  # installed with matplotlib

    with Image.open(file) as image, io.BytesIO() as small:
        image.convert("RGB").quantize(
            TONES, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE
        ).save(small, "png", optimize=True)
        return small.getvalue()


def _draw_panel(axes: Axes, panel: Panel) -> None:
    for number, (label, curve) in enumerate(panel.curves):
        line, colour = curve.line, COLOURS[number % len(COLOURS)]
        marker = "." if len(line.steps) < FEW_POINTS else ""
        mean, low, high = (np.clip(each, -HUGE, HUGE) for each in line[1:4])
        axes.plot(
            line.steps, mean, color=colour, linewidth=1.4, linestyle="-", marker=marker,
            label=_label(label),
        )  # fmt: skip
        if (high > low).any():
            axes.fill_between(line.steps, low, high, color=colour, alpha=0.2, linewidth=0)
        for mark in curve.marks:
            axes.axvline(mark.step, color=colour, linestyle=":", linewidth=1)
    # A single curve has no legend, so the title names it.
    alone = len(panel.curves) == 1
    dress(axes, _label(panel.curves[0][1].name if alone else panel.title))
    axes.set_xlabel("step", fontsize=8, color=INK)
    if len(panel.curves) > 1:
        axes.legend(loc="best", frameon=False, fontsize=7, labelcolor=INK)


def _label(text: str) -> str:
    """Return a name that fits a panel; matplotlib hides labels that begin with `_`."""
    short = "".join(each if each.isprintable() else " " for each in text)
    if len(short) > LONGEST:
        short = short[: LONGEST - 1] + "…"
    return short if short and not short.startswith("_") else f" {short}"


def plain_numbers() -> ScalarFormatter:
    """Return a formatter for the numbers at an axis, without TeX."""
    from matplotlib.ticker import ScalarFormatter

    return ScalarFormatter(useMathText=False, usetex=False)


def dress(axes: Axes, title: str) -> None:
    """Set everything on axes that the notebook's matplotlib settings might change.

    The settings themselves are not changed, as that would affect figures drawn meanwhile.
    """
    axes.set_facecolor("white")
    axes.set_title(title, fontsize=9, fontweight="bold", loc="left", color=INK)
    axes.grid(visible=True, alpha=0.25, color=INK, linewidth=0.6, linestyle="-")
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8, colors=INK)
    axes.locator_params(nbins=5)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(plain_numbers())
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(INK)


# -- words and tables ------------------------------------------------------------------------------


def as_text(seen: Seen) -> str:
    """Return a view as plain text."""
    lines = [_headline(seen), *_bar_lines(seen)]
    lines += [seen.straggler] if seen.straggler else []
    for curve in _curves(seen.panels):
        cells = dict(zip(TITLES, _metric_row(curve), strict=True))
        lines.append(
            f"{cells['metric']}: {cells['last']} (min {cells['min']}, max {cells['max']}, "
            f"{counted(curve.points, 'point')}){_marked(curve)}"
        )
    return "\n".join([*lines, *([seen.note] if seen.note else [])])


def as_html(seen: Seen, image: str, width: int) -> str:
    """Return a view as HTML without scripts and style sheets."""
    words = [f"<b>{html.escape(_headline(seen))}</b>"]
    words += [html.escape(line) for line in _bar_lines(seen)]
    words += [html.escape(line) for line in (seen.straggler, seen.note) if line]
    parts = ["<div>", "<br>".join(words), "</div>"]
    if image:
        drawn = _curves(seen.panels[:MOST_DRAWN])
        about = html.escape(", ".join(curve.name for curve in drawn), quote=True)
        parts.append(
            f'<img alt="Curves of {about}" style="max-width:100%;width:{width}px" '
            f'src="data:image/png;base64,{image}">'
        )
        if more := len(_curves(seen.panels)) - len(drawn):
            parts.append(f"<div>The table has {counted(more, 'more metric')}</div>")
    if _curves(seen.panels):
        rows = [(*_metric_row(curve), _marked(curve)) for curve in _curves(seen.panels)]
        parts.append(html_table((*TITLES, ""), rows, "Metrics"))
    ranks = html_table(RANK_TITLES, [_rank_row(row) for row in seen.ranks], "Ranks")
    unfolded = " open" if len(seen.ranks) <= MANY_RANKS else ""
    many = counted(len(seen.ranks), "rank")
    parts.append(f"<details{unfolded}><summary>{many}</summary>{ranks}</details>")
    return on_ground("".join(parts))


TITLES = ("metric", "last", "min", "max", "points")
RANK_TITLES = ("rank", "device", "state", "ms/step", "CPU", "memory", "GPU", "GPU memory")


def _curves(panels: list[Panel]) -> list[Curve]:
    return [curve for panel in panels for _, curve in panel.curves]


def _headline(seen: Seen) -> str:
    so_far = "for" if seen.state in ("starting", "queued", "running") else "after"
    return f"{seen.title}: {seen.state} {so_far} {in_time(seen.seconds)}"


def _bar_lines(seen: Seen) -> list[str]:
    lines = []
    for bar in seen.bars:
        told = f"{bar.label or 'progress'}: {bar.done}"
        if bar.total is not None:
            told += f" of {bar.total}"
        if bar.rate:
            told += f", {in_rate(bar.rate, bar.label)}"
        if bar.samples:
            told += f", {in_digits(bar.samples)} samples/s on all ranks"
        if bar.left:
            told += f", {in_time(round(bar.left))} left"
        if bar.still:
            told += f", no step for {in_time(bar.still)}"
        lines.append(told)
    return lines


def _metric_row(curve: Curve) -> tuple[str, ...]:
    low, high = curve.range
    values = (known(value, in_value) for value in (curve.latest, low, high))
    return curve.name, *values, f"{curve.points:,}"


def _marked(curve: Curve) -> str:
    if not curve.marks:
        return ""
    first = curve.marks[0]
    return f" {first.kind} at step {first.step} on rank {first.rank}"


def _rank_row(row: RankRow) -> tuple[str, ...]:
    return (
        f"{row.rank} {row.host}".strip(), row.device or UNKNOWN, row.state,
        known(row.step, in_milliseconds), known(row.cpu, in_percent),
        known(row.memory, in_bytes), known(row.gpu, in_percent), known(row.gpu_memory, in_bytes),
    )  # fmt: skip
