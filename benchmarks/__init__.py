"""Measures nbdist against plain baselines, and other packages (peers) in the same run."""
