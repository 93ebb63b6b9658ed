"""Metrics on a rank: `nbdist.log`, `nbdist.progress`, step times, resource use."""
