"""What only rank zero writes: checkpoints, TensorBoard's logs."""

from __future__ import annotations

import re
import urllib.request
from typing import TYPE_CHECKING

from tests.helpers.faults import shown
from tests.helpers.notebook import on_ranks
from tests.helpers.waiting import allowed

if TYPE_CHECKING:
    from tests.helpers.kernel import Kernel

TRAIN = """
    callbacks = [khvd.callbacks.BroadcastGlobalVariablesCallback(0), nbdist.loops.KerasCallback()]
    if rank == 0:
        callbacks += [
            tf.keras.callbacks.ModelCheckpoint("best.weights.h5", save_weights_only=True),
            tf.keras.callbacks.TensorBoard("board", write_graph=False),
        ]
    tf.keras.utils.set_random_seed(rank)
    model = make()
    fit(model, epochs=2, callbacks=callbacks)
    if rank == 0:
        model.save("whole.keras")
        model.save("whole.h5")
        tf.train.Checkpoint(model=model).write("checkpoint/last")
    print(float(tf.reduce_sum(model.layers[0].kernel)))
"""
LOAD = """
found = []
for way in range(4):
    model = make(compiled=False)
    if way == 0:
        model.load_weights("best.weights.h5")
    elif way == 1:
        tf.train.Checkpoint(model=model).read("checkpoint/last").expect_partial()
    elif way == 2:
        model = khvd.load_model("whole.h5")  # with an optimizer of Horovod's, to train on
        assert type(model.optimizer).__module__ == "horovod._keras"
    else:
        model = tf.keras.models.load_model("whole.keras", compile=False)
    found.append(float(tf.reduce_sum(model.layers[0].kernel)))
print(found)
"""


def test_rank_zero_writes_and_the_notebook_reads(ranks: Kernel) -> None:
    cell = on_ranks(ranks, TRAIN, timeout=120)
    total = float(cell.stdout.splitlines()[-1])
    found = [float(text) for text in re.findall(r"-?[\d.]+", ranks.run(LOAD, 60).stdout)]
    assert found == [total] * 4
    assert len(list((ranks.home / "board" / "train").glob("events.*"))) == 1


def test_tensorboard_shows_the_ranks_metrics(ranks: Kernel) -> None:
    on_ranks(ranks, "fit(make(), callbacks=[nbdist.loops.KerasCallback()])", timeout=120)
    told = shown(ranks.run("%dist tensorboard", 90))
    address = re.search(r"http://127\.0\.0\.1:\d+\S*?/(?=[\s\"'<]|$)", told)
    assert address, told
    with urllib.request.urlopen(address[0], timeout=allowed(30)) as page:  # noqa: S310
        assert b"TensorBoard" in page.read()
    ranks.run("%dist tensorboard --stop")


def test_a_job_of_horovodruns_writes_once(ranks: Kernel) -> None:
    body = """
        import os
        with open("wrote", "a") as file:
            if hvd.rank() == 0:
                file.write(f"{hvd.size()}")
    """
    on_ranks(ranks, body, "-np 2 --backend horovod --launcher horovodrun", timeout=120)
    assert (ranks.home / "wrote").read_text() == "2"
