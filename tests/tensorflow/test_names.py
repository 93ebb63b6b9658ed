"""TensorFlow's values between notebook and ranks, and between ranks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.helpers.faults import shown
from tests.helpers.notebook import on_ranks, printed_by
from tests.tensorflow import digits

if TYPE_CHECKING:
    from tests.helpers.kernel import Kernel

HERE = """
right_here = np.allclose(model.evaluate(images, labels, verbose=0), right, atol=1e-5)
print(right_here, type(model.optimizer).__module__, model.optimizer.iterations.numpy())
"""


@pytest.fixture
def trained(ranks: Kernel) -> Kernel:
    """Return a kernel whose ranks have trained a model."""
    on_ranks(ranks, digits.START, digits.ENGINES, timeout=120)
    return ranks


def test_tensors_and_models_are_brought_and_returned(ranks: Kernel) -> None:
    ranks.run("table = tf.reshape(tf.range(400_000.0), (-1, 2)); plain = make(compiled=False)")
    body = """
        table += rank
        plain.layers[0].kernel.assign_add(tf.ones_like(plain.layers[0].kernel))
        part = tf.Variable(table[:2])
    """
    cell = on_ranks(ranks, body, "--return part,plain,table")
    assert "table (1.6 MB)" in shown(cell)
    assert ranks.run("print(part.numpy().tolist())").stdout == "[[0.0, 1.0], [2.0, 3.0]]\n"
    assert ranks.run("print(plain(images[:2]).shape)").stdout == "(2, 10)\n"


def test_a_trained_model_is_returned_with_the_optimizer_that_was_wrapped(trained: Kernel) -> None:
    on_ranks(trained, "right = model.evaluate(images, labels, verbose=0)", "--return right,model")
    told = trained.run(HERE, 60).stdout
    assert told == "True keras.src.optimizers.adam 23\n"
    trained.run("del model")


def test_what_is_horovods_stays_on_its_rank(trained: Kernel) -> None:
    on_ranks(trained, "optimizer = model.optimizer")
    told = shown(trained.run("%dist pull optimizer", check=False))
    assert "a Horovod optimizer cannot be copied from its rank" in told
    told = shown(trained.run("%dist restart 1 --like 0", timeout=60))
    assert (
        "model: PicklingError: its optimizer is a Horovod optimizer, which cannot be copied from "
        "its rank" in told
    )
    assert on_ranks(trained, "print(kept)", "--ranks 1").stdout == "kept\n"


def test_who_tells_what_they_are(ranks: Kernel) -> None:
    body = """
        tf.keras.utils.set_random_seed(0)
        batch, count = tf.zeros((3, 4)), tf.Variable(rank, dtype=tf.int64)
        small, other = make(compiled=False), make(compiled=False)
        other.layers[0].kernel.assign_add(tf.fill((64, 32), float(rank)))
    """
    on_ranks(ranks, body)
    rows = {row.split()[0]: row for row in ranks.run("%dist who").stdout.splitlines()}
    told = ["EagerTensor", "(3,", "4)", "float32", "/CPU:0", "48", "B", "equal"]
    assert rows["batch"].split()[1:] == told
    assert rows["count"].split()[1:4] == ["ResourceVariable", "()", "int64"]
    assert "equal" not in rows["count"]
    assert "2,410 parameters" in rows["small"]
    assert rows["small"].endswith("equal")
    assert not rows["other"].endswith("equal")


def test_a_busy_rank_tells_what_needs_no_code_of_the_users(ranks: Kernel) -> None:
    on_ranks(ranks, "batch = tf.zeros((3, 4))")
    ranks.run("%%distributed --async\nimport time; time.sleep(600)")
    rows = {row.split()[0]: row for row in ranks.run("%dist who").stdout.splitlines()}
    ranks.run("nbdist.jobs()[-1].cancel()")
    assert rows["batch"].split()[1:5] == ["EagerTensor", "(3,", "4)", "float32"]


def test_models_are_made_equal(ranks: Kernel) -> None:
    body = """
        tf.keras.utils.set_random_seed(rank)
        net, steps = make(), tf.Variable(rank)
        adam = net.optimizer
        adam.build(net.trainable_variables)
        adam.iterations.assign(5 + rank)
        print(are_equal(net))
    """
    assert on_ranks(ranks, body).stdout == "False\n"
    ranks.run("%dist sync net adam steps --from 1")
    body = "print(are_equal(net), adam.iterations.numpy(), steps.numpy())"
    assert on_ranks(ranks, body).stdout == "True 6 1\n"
    assert printed_by(ranks, 1) == "True 6 1\n"
    on_ranks(ranks, "odd = make()\nif rank == 0:\n    odd.optimizer.build(odd.variables)")
    on_ranks(ranks, "odd = odd.optimizer\nwords = ['no', 'model']")
    told = shown(ranks.run("%dist sync odd --from 0", check=False))
    assert re.search(r"`variable \d+` is .+ on rank 0 and missing on rank 1", told)
    told = shown(ranks.run("%dist sync words --from 0", check=False))
    assert "a list is not a model, optimizer or variable" in told
    on_ranks(ranks, "other = tf.Variable([1.0] * (1 + rank))")
    told = shown(ranks.run("%dist sync other --from 0", check=False))
    assert "`other` is float32 (1,) on rank 0 and float32 (2,) on rank 1" in told
    assert on_ranks(ranks, "print(float(hvd.allreduce(tf.ones(1))[0]))").stdout == "1.0\n"


def test_a_model_that_keras_cannot_put_together_is_told_of(ranks: Kernel) -> None:
    body = """
        class Doubled(tf.keras.layers.Layer):
            def call(self, x):
                return 2 * x
        odd = tf.keras.Sequential([Doubled(), tf.keras.layers.Dense(1)])
        _ = odd(tf.ones((1, 2)))
    """
    on_ranks(ranks, body)
    told = shown(ranks.run("%dist pull odd", check=False))
    assert "odd cannot be unpickled here: TypeError:" in told
    assert "Traceback" not in told


def test_memory_is_given_back(ranks: Kernel) -> None:
    on_ranks(ranks, "large = tf.zeros((40_000_000,))\nprint(float(large[0]))")
    on_ranks(ranks, "del large")
    assert "->" in ranks.run("%dist free").stdout
