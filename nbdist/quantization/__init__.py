"""Quantization on ranks: calibration data and training batches are shared out, statistics are not.

The quantization itself is torchao's, or neural-compressor's, which rests on it. Nothing here is
imported by a rank that does not use it.
"""

from __future__ import annotations

from nbdist.quantization.calibration import calibrate
from nbdist.quantization.fake_quantize import sync_fake_quantize

__all__ = ["calibrate", "sync_fake_quantize"]
