"""`convert_tflite`: TensorFlow's converter with the representative data split over ranks.

The converter finds the smallest and largest value of each tensor, and then chooses scales. There is
no hook between these two steps, so one of its methods is replaced while it runs. This was written
for TensorFlow 2.14; in a release that lacks the needed names, an error says so.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

from nbdist.collectives import ranks
from nbdist.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

NEEDED = ("_quantize", "_experimental_calibrate_only", "experimental_new_quantizer")


def convert_tflite(converter: Any) -> bytes:
    """Do what ``converter.convert()`` does, with each rank's part of the representative data.

    The converted model is the same on every rank, and the same as one rank makes from all data.
    Every rank must call this function.

    Parameters
    ----------
    converter
        A `tf.lite.TFLiteConverter` that quantizes to eight bits. Its ``representative_dataset``
        yields this rank's part, which may be empty: ``data.shard(hvd.size(), hvd.rank())``.

    Returns
    -------
    bytes
        The converted model.
    """
    lacking = [name for name in NEEDED if not hasattr(converter, name)]
    if lacking or not converter.experimental_new_quantizer:
        raise UsageError(
            "the calibration of this converter cannot be combined over ranks: use TensorFlow 2.14, "
            f"with its new quantizer{f' (this one lacks {lacking})' if lacking else ''}"
        )
    if converter.representative_dataset is None:
        raise UsageError("the converter has no representative_dataset")
    vars(converter)["_quantize"] = _Quantize(converter)
    try:
        return bytes(converter.convert())
    finally:
        del vars(converter)["_quantize"]  # the class's own method is used again


class _Quantize:
    """Replaces the converter's method: calibrates, combines over ranks, quantizes."""

    def __init__(self, converter: Any) -> None:
        self._converter = converter
        self._original = converter._quantize  # noqa: SLF001  # private, see above

    def __call__(self, model: bytes, input_type: Any, output_type: Any, *others: Any) -> Any:
        from tensorflow.lite.python.convert import mlir_quantize
        from tensorflow.lite.tools import flatbuffer_utils

        names = vars(self._converter)
        names["_experimental_calibrate_only"] = True
        try:
            calibrated = self._original(model, input_type, output_type, *others)
        finally:
            names["_experimental_calibrate_only"] = False
        found = flatbuffer_utils.convert_bytearray_to_object(bytearray(calibrated))
        _combine(list(_tensors(found)), _digest(found))
        combined = flatbuffer_utils.convert_object_to_bytearray(found)
        return mlir_quantize(
            bytes(combined),
            names["_experimental_disable_per_channel"],
            input_data_type=input_type,
            output_data_type=output_type,
            enable_variable_quantization=others[-1],
        )


def _tensors(model: Any) -> Iterator[Any]:
    for graph in model.subgraphs:
        yield from graph.tensors


def _digest(model: Any) -> str:
    """Return a digest of a model's tensors and weights, without names, which may differ."""
    hasher = hashlib.blake2b(digest_size=8)
    for tensor in _tensors(model):
        content = model.buffers[tensor.buffer].data
        hasher.update(f"{tensor.type}{tensor.shape}".encode())
        hasher.update(b"" if content is None else bytes(content))
    return hasher.hexdigest()


def _combine(tensors: list[Any], model: str) -> None:
    """Give each tensor the smallest minimum and the largest maximum over ranks."""
    everyone = ranks()
    if len(set(everyone.gather(model))) > 1:
        raise UsageError(
            "the ranks convert different models; convert the same one on all, with the same weights"
        )
    told = everyone.gather([_seen(tensor) for tensor in tensors])
    if not any(pair for seen in told for pair in seen):
        raise UsageError("no rank's representative_dataset has yielded anything")
    for tensor, seen in zip(tensors, zip(*told, strict=True), strict=True):
        pairs = [pair for pair in seen if pair is not None]
        if pairs:
            tensor.quantization = tensor.quantization or _blank()
            tensor.quantization.min = np.min([low for low, _ in pairs], axis=0)
            tensor.quantization.max = np.max([high for _, high in pairs], axis=0)


def _seen(tensor: Any) -> tuple[Any, Any] | None:
    found = tensor.quantization
    if found is None or found.min is None or not len(found.min):
        return None
    return np.asarray(found.min), np.asarray(found.max)


def _blank() -> Any:
    from tensorflow.lite.python import schema_py_generated

    return schema_py_generated.QuantizationParametersT()
