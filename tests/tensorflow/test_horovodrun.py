"""TensorFlow under horovodrun: scripts, functions, elastic jobs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.helpers.faults import LOST, shown
from tests.helpers.notebook import distributed, on_ranks
from tests.helpers.waiting import allowed

if TYPE_CHECKING:
    from pathlib import Path

    from tests.helpers.kernel import Kernel

pytestmark = pytest.mark.repeats

FLAGS = "-np 2 --backend horovod --launcher horovodrun"
TRAIN = """
    tf.keras.utils.set_random_seed(rank)
    model = make()
    callbacks = [khvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    history = fit(model, epochs=2, callbacks=[*callbacks, nbdist.loops.KerasCallback()])
    history = {name: [float(value) for value in values] for name, values in history.items()}
    print(rank, world_size, device, hvd.__name__, are_equal(model))
"""


@pytest.mark.parametrize("how", ["", "--cold"], ids=["warm", "cold"])
def test_keras_trains(ranks: Kernel, how: str) -> None:
    cell = on_ranks(ranks, TRAIN, f"{FLAGS} {how} --return history,model", timeout=120)
    told = shown(cell)
    assert "0 2 /CPU:0 horovod.tensorflow True\n" in told
    assert "epoch: 2 of 2" in told
    assert ranks.run("print(len(history['loss']))").stdout == "2\n"
    assert ranks.run("print(type(model.optimizer).__module__)").stdout.startswith("keras.")


def test_a_saved_script_runs_by_itself(ranks: Kernel, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    body = "print(rank, world_size, device, float(hvd.allreduce(tf.ones(1))[0]))"
    on_ranks(ranks, body, f"{FLAGS} --save {path}")
    ran = subprocess.run(
        [sys.executable, path], check=True, capture_output=True, text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert ran.stdout == "0 1 /CPU:0 1.0\n"


def test_a_rank_that_raises_is_the_cause(ranks: Kernel) -> None:
    body = "if rank == 1:\n    raise ValueError('the true cause')\nhvd.allreduce(tf.ones(1))"
    told = shown(on_ranks(ranks, body, FLAGS, check=False, timeout=60))
    assert "Rank 1 failed: ValueError: the true cause (cell line 3)" in told
    assert "Rank 0 failed" not in told


def test_a_function_is_called_on_every_rank(ranks: Kernel) -> None:
    call = """
import horovod.tensorflow as hvd
def summed(x):
    return float(hvd.allreduce(tf.constant([x + hvd.rank()]), op=hvd.Sum)[0])
print(nbdist.launch(summed, 1.0, np=2, backend="horovod"))
del hvd
"""
    assert ranks.run(call, 60).stdout == "[3.0, 3.0]\n"


TAPE = """
    class Weights(tf.Module):
        def __init__(self):
            super().__init__()
            self.total = tf.Variable([0.0])

    model, optimizer = Weights(), tf.keras.optimizers.SGD(1.0)
    optimizer.build(model.trainable_variables)
    state = hvd.elastic.TensorFlowKerasState(model, optimizer, step=0)

    def step():
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = -tf.reduce_sum(model.total)
        optimizer.apply_gradients([(tape.gradient(loss, [model.total])[0], model.total)])
"""
LOOP = """
    import os, time

    @hvd.elastic.run
    def train(state):
        print("size", hvd.size(), "step", state.step, flush=True)
        began = state.step
        while hvd.size() == 2 or state.step < began + 10 or not began:
            step()
            if rank == 1 and os.path.exists("looked"):
                os.kill(os.getpid(), 9)
            state.step += 1
            state.commit()
            time.sleep(0.01)
        time.sleep(1)
    train(state)
    print("ended with", hvd.size(), state.step, float(model.total[0]))
"""


def test_an_elastic_job_takes_in_a_rank_and_goes_on_without_it(
    ranks: Kernel, tmp_path: Path
) -> None:  # the tutorial has one with Keras
    script, more = tmp_path / "hosts.sh", tmp_path / "more"
    script.write_text(f"#!/bin/sh\necho localhost:1\n[ ! -e {more} ] || echo 127.0.0.1:1\n")
    script.chmod(0o700)
    (ranks.home / "looked").unlink(missing_ok=True)
    # TensorFlow's own temporary files, which a worker that is killed leaves.
    flags = f"--min-np 1 --max-np 2 --host-discovery-script {script} --env TMPDIR={tmp_path}"
    flags += f" --env HOROVOD_GLOO_TIMEOUT_SECONDS={allowed(60):.0f}"  # for the newcomer's imports
    ranks.start(distributed(TAPE + LOOP, f"{FLAGS.replace('2', '1')} {flags}"))
    ranks.expect("size 1", 100)
    more.touch()
    ranks.expect("size 2", 100)
    (ranks.home / "looked").touch()
    cell = ranks.wait(100)
    told = re.findall(r"^size (\d) step (\d+)|^ended with (\d) (\d+)", cell.stdout, re.MULTILINE)
    sizes = [first or last for first, _, last, _ in told]
    steps = [int(one or other) for _, one, _, other in told]
    assert sizes == ["1", "2", "1", "1"]
    assert steps == sorted(steps)  # nothing that was committed is lost
    assert steps[-1] == steps[-2] + 10
    assert LOST.search(shown(cell))
    assert float(cell.stdout.split()[-1]) == steps[-1]  # each step added one


def test_variables_of_their_own_outlive_a_worker(ranks: Kernel, tmp_path: Path) -> None:
    script = tmp_path / "hosts.sh"
    script.write_text("#!/bin/sh\necho localhost:1\necho 127.0.0.1:1\n")
    script.chmod(0o700)
    body = """
        import os
        total = tf.Variable([1.0 + rank])
        state = hvd.elastic.TensorFlowState([total], step=0)
        @hvd.elastic.run
        def train(state):
            while state.step < 6:
                total.assign_add(hvd.allreduce(tf.ones(1)))
                if rank == 1 and state.step == 3:
                    os.kill(os.getpid(), 9)
                state.step += 1
                if state.step % 2 == 0:
                    state.commit()
        train(state)
        print("ended with", hvd.size(), float(total[0]))
    """
    flags = f"{FLAGS} --min-np 1 --host-discovery-script {script} --env TMPDIR={tmp_path}"
    cell = on_ranks(ranks, body, flags, timeout=120)
    assert cell.stdout.endswith("ended with 1 7.0\n")
