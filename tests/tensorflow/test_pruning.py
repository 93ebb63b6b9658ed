"""TensorFlow's pruning on ranks: N of them prune as one does, and pruned models travel."""

from __future__ import annotations

import re
from importlib.util import find_spec
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from tests.helpers.faults import fails, shown
from tests.helpers.notebook import everywhere, on_ranks

if TYPE_CHECKING:
    from tests.helpers.kernel import Kernel

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        find_spec("tensorflow_model_optimization") is None,
        reason="needs tensorflow_model_optimization, as in make test-tensorflow",
    ),
]

SETUP = """
    import hashlib
    import numpy as np
    import tensorflow as tf
    import tensorflow_model_optimization as tfmot
    from sklearn.datasets import load_digits
    import horovod.tensorflow.keras as hvd

    sparsity = tfmot.sparsity.keras
    digits = load_digits()
    x, y = (digits.images[:560, ..., None] / 16).astype("float32"), digits.target[:560]
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def fresh(seed=0):
        tf.keras.utils.set_random_seed(seed)
        return tf.keras.Sequential([
            tf.keras.layers.Conv2D(4, 3, activation="relu", input_shape=(8, 8, 1)),
            tf.keras.layers.Flatten(), tf.keras.layers.Dense(10),
        ])

    def pruned(model, optimizer):
        schedule = sparsity.PolynomialDecay(0.0, 0.75, 0, 16, frequency=2)
        net = sparsity.prune_low_magnitude(model, pruning_schedule=schedule)
        net.compile(optimizer, loss)
        return net

    def digest(variables):
        held = b"".join(np.ascontiguousarray(each.numpy()).tobytes() for each in variables)
        return hashlib.md5(held).hexdigest()[:8]

    def masks(net):
        return digest(each for each in net.weights if "mask" in each.name)

    class Seen(tf.keras.callbacks.Callback):
        "The masks of every step."

        def __init__(self):
            super().__init__()
            self.masks = []

        def on_train_batch_end(self, batch, logs=None):
            self.masks.append(masks(self.model))

    def fit(net, parts, callbacks=(), epochs=2):
        "In batches of 56, of which this rank takes one part of so many."
        part, of = parts
        order = np.concatenate([np.arange(56)[part::of] + first for first in range(0, 560, 56)])
        seen = Seen()
        net.fit(
            x[order], y[order], batch_size=56 // of, epochs=epochs, verbose=0, shuffle=False,
            callbacks=[sparsity.UpdatePruningStep(), seen, *callbacks],
        )
        return seen.masks

    def zeros(net):
        return [float((each.numpy() == 0).mean()) for each in net.weights if "kernel" in each.name]

    sgd = tf.keras.optimizers.SGD
"""
TRAIN = """
    net, one = pruned(fresh(), hvd.DistributedOptimizer(sgd(0.05))), pruned(fresh(), sgd(0.05))
    start = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    seen, alone = fit(net, (hvd.rank(), hvd.size()), [start]), fit(one, (0, 1))
    bare, bare_one = sparsity.strip_pruning(net), sparsity.strip_pruning(one)
    pairs = zip(bare.weights, bare_one.weights, strict=True)
    close = all(np.allclose(a.numpy(), b.numpy(), atol=1e-5) for a, b in pairs)
    print("=", seen == alone, len(set(seen)) > 5, close)
    print("=", zeros(bare), [type(layer).__name__ for layer in bare.layers])
    print("=", *seen, digest(net.weights))
"""
EXPECTED = ["True True True", "[0.75, 0.75] ['Conv2D', 'Flatten', 'Dense']"]


def told(text: str) -> list[str]:
    """Return what a rank has printed after ``=``."""
    return re.findall("^= (.*)", text, re.MULTILINE)


@pytest.fixture(scope="module")
def pruning(shared_kernel: Kernel) -> Kernel:
    """Return a kernel with two ranks that Horovod has joined."""
    shared_kernel.run("%load_ext nbdist\nimport tensorflow as tf", timeout=120)
    on_ranks(shared_kernel, SETUP, "-np 2 --backend horovod --launcher engines", timeout=180)
    return shared_kernel


def test_ranks_prune_as_one_does(pruning: Kernel) -> None:
    assert everywhere(pruning, TRAIN)[:2] == EXPECTED


def test_ranks_that_began_apart_prune_alike_after_the_first_step(pruning: Kernel) -> None:
    seen = everywhere(
        pruning,
        """
        apart = pruned(fresh(rank), hvd.DistributedOptimizer(sgd(0.05)))
        start = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
        print("=", *fit(apart, (rank, world_size), [start])[1:], digest(apart.weights))
        """,
    )
    assert len(seen) == 1


def test_pruning_goes_on_after_a_fault(pruning: Kernel) -> None:
    on_ranks(
        pruning,
        """
        net = pruned(fresh(), hvd.DistributedOptimizer(sgd(0.05)))
        _ = fit(net, (rank, world_size), epochs=1)
        """,
        timeout=180,
    )
    fails(pruning, "if rank == 1:\n    1 / 0\nfit(net, (rank, world_size))")
    told_ = shown(pruning.run("%dist sync net --from 0", timeout=60))
    assert "net is now on all ranks as it was on rank 0." in told_
    seen = everywhere(
        pruning, 'print("=", *fit(net, (rank, world_size)), zeros(net), digest(net.weights))'
    )
    assert len(seen) == 1
    assert "[0.75, 0.75]" in seen[0]


def test_models_that_are_pruned_travel(pruning: Kernel) -> None:
    """From the notebook to ranks, to a rank that was replaced, and back."""
    pruning.run(dedent(SETUP).replace("import horovod.tensorflow.keras as hvd", ""), timeout=120)
    pruning.run("given = pruned(fresh(), sgd(0.05))\n_ = fit(given, (0, 1))", timeout=120)
    there = pruning.run("print(masks(given), digest(given.weights))").stdout.split()
    assert everywhere(pruning, 'print("=", masks(given), digest(given.weights))') == [
        " ".join(there)
    ]
    pruning.run("%dist restart 1 --like 0", timeout=120)
    seen = everywhere(
        pruning,
        'print("=", masks(given), fit(given, (0, 1))[-1], zeros(given), digest(given.weights))',
    )
    assert seen[0].split()[0] == there[0]
    assert "[0.75, 0.75]" in seen[0]
    on_ranks(pruning, "came = given", "--return came", timeout=60)
    assert pruning.run("print(zeros(came))").stdout == "[0.75, 0.75]\n"


def test_ranks_of_a_script_prune_as_one_does(pruning: Kernel) -> None:
    body = dedent(SETUP) + dedent(TRAIN)
    flags = "-np 2 --backend horovod --launcher horovodrun --output all"
    shown_ = pruning.run(f"%%distributed {flags}\n{body}", timeout=240).text
    here, there = (told(shown_.replace(f"[{rank}] ", "")) for rank in (0, 1))
    assert here[:2] == there[:2] == EXPECTED
    assert here[2] == there[2]
