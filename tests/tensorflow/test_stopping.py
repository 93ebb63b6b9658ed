"""Faults and interrupts in the middle of TensorFlow: the cell ends, and the next one trains on."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.helpers.faults import shown
from tests.helpers.notebook import distributed, on_ranks
from tests.tensorflow import digits

if TYPE_CHECKING:
    from tests.helpers.kernel import Kernel

BREAK = """
import os, signal, time

class Break(tf.keras.callbacks.Callback):
    def __init__(self, how):
        super().__init__()
        self.how = how

    def on_train_batch_end(self, batch, logs=None):
        if rank == 1 and batch == 3:
            print(f"at={time.monotonic()}", flush=True)
            if self.how == "raise":
                raise ValueError(f"the true cause at={time.monotonic()}")
            if self.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(600)
"""
TRAINS_ON = """
    print(kept, float(hvd.allreduce(tf.ones(1), op=hvd.Sum)[0]))
    before = [v.numpy() for v in model.trainable_variables]
    fit(model)
    print(are_equal(model), any((v.numpy() != b).any() for v, b in zip(model.trainable_variables, before)))
"""  # noqa: E501


@pytest.fixture(scope="module")
def breaking(shared_kernel: Kernel) -> Kernel:
    """Return a kernel with ranks whose training can be broken off."""
    shared_kernel.run("%env NBDIST_HANG_SECONDS=1")
    digits.start(shared_kernel)
    shared_kernel.run(BREAK)
    return shared_kernel


def trains_on(kernel: Kernel, told: str) -> None:
    """Check that the model and the graph that the ranks hold train on, equal on both."""
    parted = re.search(r"`(%dist sync [\w ]+ --from 0)` makes them equal", told)
    if parted:
        kernel.run(parted[1])
    assert on_ranks(kernel, TRAINS_ON, timeout=60).stdout == "kept 2.0\nTrue True\n"


@pytest.mark.parametrize("where", ["allreduce", "graph", "fit"])
def test_a_rank_that_raises_frees_the_others(breaking: Kernel, where: str) -> None:
    on_ranks(breaking, digits.START, timeout=120)
    body = {
        "fit": "fit(model, callbacks=[Break('raise')])",
        "allreduce": "Break('raise').on_train_batch_end(3)\nhvd.allreduce(tf.ones(1))",
        "graph": "total = tf.function(lambda x: hvd.allreduce(x))\n"
        "Break('raise').on_train_batch_end(3)\ntotal(tf.ones(1))",
    }[where]
    cell = on_ranks(breaking, body, check=False)
    told = shown(cell)
    assert "Rank 1 failed: ValueError: the true cause" in told
    assert "HorovodInternalError" not in told
    assert "Rank 0 failed" not in told
    trains_on(breaking, told)


def test_an_interrupt_inside_fit(breaking: Kernel) -> None:
    on_ranks(breaking, digits.START, timeout=120)
    breaking.start(distributed("fit(model, callbacks=[Break('sleep')])", "--output all"))
    breaking.expect("at=", 60)
    breaking.interrupt()
    told = shown(breaking.wait(30))
    assert "The cell was interrupted." in told
    assert re.search(r"stopped at cell line 2[,.]", told)
    trains_on(breaking, told)


def test_a_hang_in_an_eager_collective_is_told(breaking: Kernel) -> None:
    body = """
        import time
        if rank == 0:
            hvd.allreduce(tf.ones(1))
        time.sleep(600)
    """
    breaking.start(distributed(body))
    breaking.expect("rank 0 has waited in allreduce for ", 30)
    breaking.interrupt()
    told = shown(breaking.wait(30))
    assert "Rank 0 was waiting in allreduce at cell line 4." in told


def test_a_killed_rank_is_replaced_and_gets_the_others_weights(breaking: Kernel) -> None:
    on_ranks(breaking, digits.START, timeout=120)
    cell = on_ranks(breaking, "fit(model, callbacks=[Break('kill')])", check=False)
    told = shown(cell)
    assert "Rank 1 was killed by SIGKILL" in told
    assert "Rank 0 failed" not in told
    before = on_ranks(breaking, "print(model.layers[0].kernel[5, 0].numpy())", "--ranks 0").stdout
    on_ranks(breaking, "kept = 'kept'\nmodel = make()", "--ranks 1", timeout=120)
    breaking.run("%dist sync model --from 0")
    after = on_ranks(breaking, "print(model.layers[0].kernel[5, 0].numpy())", "--ranks 1").stdout
    assert after == before
    trains_on(breaking, told)


def test_a_model_made_anew_after_a_replacement_is_broadcast(breaking: Kernel) -> None:
    on_ranks(breaking, "odd = [make() for _ in range(3)]", "--ranks 0")  # Keras counts its layers
    breaking.run("%dist restart 1")
    on_ranks(breaking, digits.START, timeout=60)
    trains_on(breaking, "")
