"""Quantization on ranks: data are split over the ranks, and statistics are combined.

The quantization itself is that of torchao, neural-compressor (based on torchao) or TensorFlow. Each
part is imported when its name is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbdist.quantization.calibration import calibrate
    from nbdist.quantization.fake_quantize import sync_fake_quantize
    from nbdist.quantization.keras_quantizers import sync_quantizers
    from nbdist.quantization.tflite import convert_tflite

__all__ = ["calibrate", "convert_tflite", "sync_fake_quantize", "sync_quantizers"]

_MODULES = {
    "calibrate": "calibration",
    "convert_tflite": "tflite",
    "sync_fake_quantize": "fake_quantize",
    "sync_quantizers": "keras_quantizers",
}


def __getattr__(name: str) -> Any:  # whatever the name stands for
    if name not in _MODULES:
        msg = f"module 'nbdist.quantization' has no attribute {name!r}; it has {', '.join(__all__)}"
        raise AttributeError(msg)
    module = importlib.import_module(f"nbdist.quantization.{_MODULES[name]}")
    found = globals()[name] = getattr(module, name)
    return found
