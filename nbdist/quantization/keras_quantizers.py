"""`sync_quantizers`: quantization-aware training of Keras models over all Horovod ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbdist.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

QUANTIZERS = ("MovingAverageQuantizer", "AllValuesQuantizer", "LastValueQuantizer")
KNOWN = (*QUANTIZERS, "_Everywhere")
"""The known quantizers, and our wrapper around them."""


def sync_quantizers(model: Any) -> Any:
    """Make the quantizers of a Keras model's activations use the batches of all ranks.

    This is to tensorflow_model_optimization's ``quantize_model`` what `sync_fake_quantize` is to
    torchao's ``prepare_qat_pt2e``: in every training step, ranges follow the minimum and maximum
    over all ranks. Weights, and so their ranges, are the same on all ranks anyway.

    Parameters
    ----------
    model
        The result of ``quantize_model``, which is changed in place. Train it with
        `horovod.tensorflow.keras.DistributedOptimizer`; convert it, or save its weights.

    Returns
    -------
    keras.Model
        The model.

    Raises
    ------
    UsageError
        If the model has no such quantizer, or one of another kind; nothing was changed.
    """
    places = list(_places(model))
    kinds = [(holder, key, quantizer) for holder, key, quantizer in places if quantizer is not None]
    odd = sorted(
        {
            type(quantizer).__name__
            for *_, quantizer in kinds
            if type(quantizer).__name__ not in KNOWN or getattr(quantizer, "per_axis", False)
        }
    )
    if odd or not kinds:
        raise UsageError(
            f"no quantizers of activations that could be synchronised: {', '.join(odd) or 'none'}. "
            f"Supported are {', '.join(QUANTIZERS)} of whole tensors"
        )
    for holder, key, quantizer in kinds:
        if not isinstance(quantizer, _Everywhere):
            holder[key] = _Everywhere(quantizer)
    return model


def _places(model: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Yield the quantizers in the layers, each with its container and key."""
    for layer in model.layers:
        names = vars(layer)
        if type(layer).__name__ == "QuantizeLayer":
            yield names, "quantizer", names["quantizer"]
        for activation in names.get("_quantize_activations", ()):
            yield vars(activation), "quantizer", activation.quantizer
        outputs = names.get("_output_quantizers") or ()
        for index, quantizer in enumerate(outputs):
            yield outputs, index, quantizer


class _Everywhere:
    """A quantizer whose range covers the batches of all ranks."""

    def __init__(self, quantizer: Any) -> None:
        self._quantizer = quantizer

    def __call__(self, inputs: Any, training: Any, weights: Any, **options: Any) -> Any:
        if training:
            import horovod.tensorflow as hvd
            import tensorflow as tf

            own = tf.stop_gradient(tf.stack([-tf.reduce_min(inputs), tf.reduce_max(inputs)]))
            low, high = tf.unstack(tf.reduce_max(hvd.allgather(own[None]), axis=0))
            # First update the range from these two values, then quantize with this range.
            self._quantizer(tf.stack([-low, high]), True, weights, **options)
        return self._quantizer(inputs, False, weights, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._quantizer, name)
