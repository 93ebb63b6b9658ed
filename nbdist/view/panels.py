"""Groups curves into panels by their names."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from nbdist.metrics.resource_names import CPU, GPU, GPU_MEMORY, MEMORY, RECEIVED, SENT

if TYPE_CHECKING:
    from nbdist.metrics.thinned_curves import Curve

SPLITS = ("train", "training", "val", "valid", "validation", "test", "eval", "dev")
"""Names of parts of the data; the same metric on several parts shares a panel."""
MOST_PANELS = 100
MOST_CURVES = 8
"""The most panels of a view and curves of a panel; other metrics are only named, and are in
`Job.metrics`."""
RESOURCES = {
    "CPU, % of one core": {CPU: "mean"},
    "Memory, bytes": {MEMORY: "mean"},
    "GPU, %": {GPU: "mean"},
    "GPU memory, bytes": {GPU_MEMORY: "mean"},
    "Network of the host, bytes/s": {RECEIVED: "received", SENT: "sent"},
}
"""For each panel of resources, the names of its curves with their labels."""


class Panel(NamedTuple):
    """Curves on the same axes, each with its label."""

    title: str
    curves: list[tuple[str, Curve]]


def place(name: str) -> tuple[str, str]:
    """Return the panel of a metric, and the metric's label there.

    ``train/loss``, ``val/loss``, ``loss/test`` and ``loss`` are all on the panel ``loss``.
    Otherwise the panel is the part before the last slash: ``grad/norm`` is on ``grad``.
    """
    first, slash, rest = name.rpartition("/")
    if not slash:
        return name, name
    if rest.lower() in SPLITS or first.lower() not in SPLITS:
        return first, rest
    return rest, first


def panels(curves: list[Curve]) -> tuple[list[Panel], list[str]]:
    """Return the panels, and the names of the metrics for which there is no room."""
    found: dict[str, Panel] = {}
    left_out = []
    for curve in curves:
        title, label = place(curve.name)
        if title not in found and len(found) < MOST_PANELS:
            found[title] = Panel(title, [])
        panel = found.get(title)
        if panel is not None and len(panel.curves) < MOST_CURVES:
            panel.curves.append((label, curve))
        else:
            left_out.append(curve.name)
    return list(found.values()), left_out


def resource_panels(curves: list[Curve]) -> list[Panel]:
    """Return the panels of resources that have curves."""
    known = {curve.name: curve for curve in curves}
    found = [
        Panel(title, [(label, known[name]) for name, label in labels.items() if name in known])
        for title, labels in RESOURCES.items()
    ]
    return [panel for panel in found if panel.curves]
