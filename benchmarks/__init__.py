"""Figures of nbdist, each a ratio to a plain baseline, with the peers measured in the same run."""
