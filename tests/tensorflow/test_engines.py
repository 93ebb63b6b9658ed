"""TensorFlow on ranks that stay: what a cell finds, Horovod's ways to train, metrics."""

from __future__ import annotations

import itertools
import json
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from tests.helpers.faults import shown
from tests.helpers.notebook import on_ranks, printed_by
from tests.tensorflow import digits

if TYPE_CHECKING:
    from tests.helpers.kernel import Kernel


def test_torch_is_not_needed() -> None:
    assert find_spec("torch") is None


def test_ranks_are_joined_and_know_their_device(ranks: Kernel) -> None:
    body = """
        import os
        total = hvd.allreduce(tf.constant([rank + 1.0]), op=hvd.Sum)
        print(hvd.__name__, hvd.rank() == rank, hvd.size(), total.numpy(), device)
        with tf.device(device):
            print(tf.ones(1).device.endswith(device.lstrip("/")))
        threads = tf.config.threading.get_intra_op_parallelism_threads()
        print(threads == int(os.environ["OMP_NUM_THREADS"]))
    """
    told = "horovod.tensorflow True 2 [3.] /CPU:0\nTrue\nTrue\n"
    assert on_ranks(ranks, body).stdout == told
    assert printed_by(ranks, 1) == told
    assert "/CPU:0" in ranks.run("%dist status").stdout


def test_forked_ranks_share_the_import(ranks: Kernel) -> None:
    body = """
        import os
        print("libtensorflow" in open(f"/proc/{os.getppid()}/maps").read())
    """
    assert on_ranks(ranks, body).stdout == "True\n"


def test_a_gradient_tape_averages_over_ranks(ranks: Kernel) -> None:
    body = """
        tf.keras.utils.set_random_seed(rank)
        net = make(compiled=False)
        hvd.broadcast_variables(net.variables, root_rank=0)
        loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

        @tf.function
        def gradients(x, y, everywhere):
            with tf.GradientTape() as tape:
                loss = loss_of(y, net(x))
            tape = hvd.DistributedGradientTape(tape) if everywhere else tape
            return tape.gradient(loss, net.trainable_variables)

        theirs = gradients(*share(64), True)
        alone = gradients(images[:64], labels[:64], False)
        print(all(np.allclose(a, b, atol=1e-6) for a, b in zip(theirs, alone)))
        tf.keras.optimizers.SGD(0.1).apply_gradients(zip(theirs, net.trainable_variables))
        print(are_equal(net))
    """
    assert on_ranks(ranks, body, timeout=120).stdout == "True\nTrue\n"


def test_keras_fits_with_horovods_callbacks_and_ours(ranks: Kernel) -> None:
    body = """
        import json
        tf.keras.utils.set_random_seed(rank)
        model = make()
        before = are_equal(model)
        history = fit(
            model, epochs=3, validation_data=(images[1440:][rank::2], labels[1440:][rank::2]),
            callbacks=[
                khvd.callbacks.BroadcastGlobalVariablesCallback(0),
                khvd.callbacks.MetricAverageCallback(),
                khvd.callbacks.LearningRateWarmupCallback(initial_lr=0.01, warmup_epochs=2),
                nbdist.loops.KerasCallback(),
            ],
        )
        history = {name: [float(value) for value in values] for name, values in history.items()}
        print(json.dumps([before, are_equal(model), history]))
    """
    cell = on_ranks(ranks, body, timeout=120)
    before, after, history = json.loads(cell.stdout.splitlines()[-1])
    assert (before, after) == (False, True)
    assert json.loads(printed_by(ranks, 1).splitlines()[-1])[2] == history  # averaged
    assert history["val_accuracy"][-1] > 0.85
    assert history["lr"] == pytest.approx([0.0075, 0.01, 0.01], abs=0.003)
    told = shown(cell)
    assert "epoch: 3 of 3" in told
    assert "train: 23 of 23" in told
    assert "val/accuracy: " in told
    metrics = ranks.run("m = nbdist.jobs()[-1].metrics; print(len(m['train/loss'].values))")
    assert metrics.stdout == f"{2 * 3 * 23}\n"  # each rank its own, every batch


def test_metrics_are_tensorflows_scalars(ranks: Kernel) -> None:
    body = """
        @tf.function
        def step(x):
            return tf.reduce_mean(x), x

        mean, whole = step(tf.range(4.0))
        nbdist.log(mean=mean, variable=tf.Variable(2.0))
        nbdist.log(whole=whole)
    """
    cell = on_ranks(ranks, body, check=False)
    assert "nbdist.log: `whole` is a EagerTensor of shape (4,), and not one number" in shown(cell)
    told = ranks.run(
        "m = nbdist.jobs()[-1].metrics; print(m['mean'].values[0], m['variable'].values[0])"
    )
    assert told.stdout == "1.5 2.0\n"


def test_a_dataset_is_shared_out(ranks: Kernel) -> None:
    body = """
        rows = tf.data.Dataset.range(11).shard(hvd.size(), hvd.rank())
        mine = [int(row) for row in rows.shuffle(11, seed=1)]
        print(sorted(hvd.allgather_object(mine)))
    """
    told = on_ranks(ranks, body).stdout.replace(" ", "")
    found = json.loads(told)
    assert sorted(map(len, found)) == [5, 6]
    assert sorted(itertools.chain(*found)) == list(range(11))


def test_gradients_are_collected_over_several_steps(ranks: Kernel) -> None:
    body = """
        tf.keras.utils.set_random_seed(0)
        slow = make(backward_passes_per_step=2, average_aggregated_gradients=True)
        fit(slow, steps_per_epoch=4)
        print(are_equal(slow))
        if rank == 0:
            fit(slow, steps_per_epoch=1)  # which collects, and does not ask the others
        # An error of the other rank would stop this one before it has collected.
        hvd.allreduce(tf.ones(1))
        raise ValueError("one of them has collected more")
    """
    cell = on_ranks(ranks, body, check=False, timeout=120)
    assert cell.stdout == "True\n"
    assert "one of them has collected more" in shown(cell)
    assert "`%dist sync slow --from 0` makes them equal" in shown(cell)  # Adam counts its steps
    ranks.run("%dist sync slow --from 0")
    body = "fit(slow, steps_per_epoch=4)\nprint(are_equal(slow))"
    assert on_ranks(ranks, body, timeout=120).stdout == "True\n"


@pytest.mark.gpu
def test_a_rank_sees_its_own_gpu_alone(ranks: Kernel) -> None:
    body = "print(device, len(tf.config.get_visible_devices('GPU')))"
    assert on_ranks(ranks, body, digits.ENGINES).stdout == "/GPU:0 1\n"


GPUS = """
from types import SimpleNamespace
from nbdist.backends.horovod import for_tensorflow
from nbdist.errors import UsageError
told = []
config = SimpleNamespace(  # stands for a TensorFlow that sees two GPUs
    threading=SimpleNamespace(set_intra_op_parallelism_threads=lambda n: None),
    list_physical_devices=lambda kind: [f"{kind}{n}" for n in range(2)],
    set_visible_devices=lambda *words: told.append(words),
    experimental=SimpleNamespace(set_memory_growth=lambda *words: told.append(words)),
)
framework = for_tensorflow.TensorFlow()
framework._tf = SimpleNamespace(config=config)
print(framework.device(1), told)
try:
    framework.device(2)
except UsageError as err:
    print(err)
"""


def test_what_is_asked_of_tensorflow_where_there_are_gpus(ranks: Kernel) -> None:
    pinned, few = ranks.run(GPUS).stdout.splitlines()
    assert pinned == "/GPU:0 [('GPU1', 'GPU'), ('GPU1', True)]"
    assert few == "local rank 2 has no GPU: this host has 2 GPUs"
