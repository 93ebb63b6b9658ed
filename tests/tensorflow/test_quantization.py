"""TensorFlow's quantization on ranks: N of them make the model that one makes of the same data."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from tests.helpers.faults import shown
from tests.helpers.notebook import everywhere, on_ranks

if TYPE_CHECKING:
    from tests.helpers.kernel import Kernel

pytestmark = pytest.mark.skipif(
    find_spec("tensorflow_model_optimization") is None,
    reason="needs tensorflow_model_optimization, as in make test-tensorflow",
)

SETUP = """
    import numpy as np
    import tensorflow as tf
    import tensorflow_model_optimization as tfmot
    from sklearn.datasets import load_digits
    import horovod.tensorflow.keras as khvd
    from nbdist.quantization import convert_tflite, sync_quantizers

    clone = tf.keras.models.clone_model  # with weights of its own
    digits = load_digits()
    images, labels = (digits.images[..., None] / 16).astype("float32"), digits.target
    train_x, train_y, test_x, test_y = images[:1400], labels[:1400], images[1400:], labels[1400:]
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    tf.keras.utils.set_random_seed(0)
    model = tf.keras.Sequential([
        tf.keras.layers.Conv2D(8, 3, activation="relu", input_shape=(8, 8, 1)),
        tf.keras.layers.Flatten(), tf.keras.layers.Dense(10),
    ])
    model.compile("adam", loss)
    _ = model.fit(train_x, train_y, epochs=3, verbose=0, shuffle=False)

    def converter(rows, model=model):
        made = tf.lite.TFLiteConverter.from_keras_model(model)
        made.optimizations = [tf.lite.Optimize.DEFAULT]
        made.representative_dataset = lambda: ([row[None]] for row in rows)
        return made

    def right(content):
        "How many test images a model of TFLite's gets right."
        interpreter = tf.lite.Interpreter(model_content=content)
        (entry,), (exit,) = interpreter.get_input_details(), interpreter.get_output_details()
        interpreter.resize_tensor_input(entry["index"], test_x.shape)
        interpreter.allocate_tensors()
        interpreter.set_tensor(entry["index"], test_x)
        interpreter.invoke()
        return int((interpreter.get_tensor(exit["index"]).argmax(1) == test_y).sum())

    def right_of(model):
        return int((model.predict(test_x, verbose=0).argmax(1) == test_y).sum())
"""


@pytest.fixture(scope="module")
def quantizing(shared_kernel: Kernel) -> Kernel:
    """Return a kernel with two ranks that Horovod has joined, which have a trained model."""
    shared_kernel.run("%load_ext nbdist\nimport tensorflow as tf", timeout=120)
    on_ranks(shared_kernel, SETUP, "-np 2 --backend horovod --launcher engines", timeout=180)
    return shared_kernel


def test_a_converter_calibrates_over_ranks(quantizing: Kernel) -> None:
    assert everywhere(
        quantizing,
        """
        rows = train_x[:101]
        alone = converter(rows).convert()  # TensorFlow's own way, on one rank
        together = convert_tflite(converter(rows[rank::world_size]))
        apart = converter(rows[rank::world_size]).convert()
        print("=", together == alone, apart == alone)
        print("=", right(together) == right(alone), right(together) > 300)
        few = converter(rows[:1][rank::world_size])  # nothing for rank 1
        print("=", convert_tflite(few) == converter(rows[:1]).convert(), "_quantize" in vars(few))
        """,
    ) == ["True False", "True True", "True False"]


WRONG = {
    "convert_tflite(converter(train_x[:0]))": "no rank's representative_dataset has yielded",
    "convert_tflite(tf.lite.TFLiteConverter.from_keras_model(model))": "no representative_dataset",
    "convert_tflite(model)": "use TensorFlow 2.14",
    "convert_tflite(converter(train_x[:9], clone(model) if rank else model))": "different models",
    "sync_quantizers(model)": "no quantizers of activations that could be synchronised: none",
}


@pytest.mark.parametrize(("line", "told"), WRONG.items())
def test_what_cannot_be_combined_is_said(quantizing: Kernel, line: str, told: str) -> None:
    cell = quantizing.run(f"%%distributed\n{line}\n", timeout=120, check=False)
    assert told in shown(cell)
    assert "UsageError" in shown(cell)


def test_keras_trains_for_it_over_ranks(quantizing: Kernel) -> None:
    """Steps on two ranks with halves of the batches, and on one with whole ones."""
    assert everywhere(
        quantizing,
        """
        def train(sync, optimizer, part):
            net = tfmot.quantization.keras.quantize_model(model)
            if sync:
                assert sync_quantizers(net) is net
            net.compile(optimizer, loss)
            for first in range(0, 8 * 56, 56):
                batch = slice(first, first + 56)
                net.train_on_batch(train_x[batch][part], train_y[batch][part])
            return net

        def ranges(net):
            return np.array([w.numpy() for w in net.weights if "post_activation_m" in w.name])

        mine = slice(rank, None, world_size)
        sgd = tf.keras.optimizers.SGD
        together = train(True, khvd.DistributedOptimizer(sgd(0.05)), mine)
        alone = train(False, sgd(0.05), slice(None))  # as tensorflow_model_optimization has it
        apart = train(False, khvd.DistributedOptimizer(sgd(0.05)), mine)
        close = [
            np.allclose(a.numpy(), b.numpy(), atol=1e-5)
            for a, b in zip(together.weights, alone.weights, strict=True)
        ]
        print("=", all(close), np.allclose(ranges(apart), ranges(alone), atol=1e-5))
        print("=", abs(right_of(together) - right_of(alone)) <= 1)
        made = tf.lite.TFLiteConverter.from_keras_model(together)
        made.optimizations = [tf.lite.Optimize.DEFAULT]
        print("=", abs(right(made.convert()) - right_of(together)) <= 2)
        """,
    ) == ["True False", "True", "True"]
