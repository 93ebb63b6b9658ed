"""Other people's loops on real ranks: what they tell becomes metrics and bars of the job."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from nbdist.rank.metrics import progress
from tests.helpers.notebook import on_ranks

if TYPE_CHECKING:
    from tests.helpers.kernel import Kernel

pytestmark = pytest.mark.timeout(240)  # importing some of these takes long on a busy machine

TOLD = """
import json, nbdist
job = nbdist.jobs()[-1]
print(json.dumps({
    "metrics": {
        name: {
            rank: [series.of(rank).steps.tolist(), series.of(rank).values.tolist()]
            for rank in sorted(set(series.ranks.tolist()))
        }
        for name, series in ((name, job.metrics[name]) for name in job.metrics)
    },
    "bars": {
        rank: [[bar.label, bar.done, bar.total] for bar in pulse.bars if not bar.tqdm]
        for rank, pulse in job.pulses.items()
    },
}))
"""
Steps = dict[str, list[int]]


def train(kernel: Kernel, body: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run a cell on both ranks; return its metrics by name and rank, and its last bars by rank."""
    on_ranks(kernel, body, timeout=180)
    told = json.loads(kernel.run(TOLD).stdout)
    return told["metrics"], told["bars"]


def steps(metrics: dict[str, Any]) -> dict[str, Steps]:
    """Return the steps of each metric by rank."""
    return {name: {rank: s for rank, (s, _) in ranks.items()} for name, ranks in metrics.items()}


def test_a_loop_counted_by_hand_goes_on_from_where_it_was() -> None:
    loop = progress.open_loop("train", 10, 4)
    inner = progress.open_loop("evaluate", None)
    inner.end()
    loop.count(6, 16)
    loop.end()
    bar, _ = progress.end()
    assert (bar.label, bar.done, bar.total, bar.waited) == ("train", 6, 10, None)
    assert bar.rate is not None
    assert bar.samples == pytest.approx(8 * bar.rate), "two iterations, and not six"


def test_loops_are_imported_when_asked_for() -> None:
    code = """
import sys, nbdist
nbdist.loops.__all__
heavy = {"torch", "numpy", "keras", "lightning", "transformers", "accelerate", "tensorboard"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
try:
    nbdist.loops.Tracker
except AttributeError as err:
    assert "AccelerateTracker" in str(err)
else:
    raise AssertionError
"""
    subprocess.run([sys.executable, "-c", code], check=True)


WRITERS = """
    import tempfile
    from torch.utils.tensorboard import SummaryWriter
    folder = tempfile.TemporaryDirectory()
    train = SummaryWriter(f"{folder.name}/{rank}/train")
    val = SummaryWriter(f"{folder.name}/{rank}/val")
    train.add_scalar("before", 1.0)
    with nbdist.loops.mirror_tensorboard():
        train.add_scalar("loss", torch.tensor(0.5), 10)
        train.add_scalar("loss", 0.25, global_step=20)
        val.add_scalar("loss", 0.75, 20)
        train.add_scalar("lr", 0.1 * (rank + 1))
        train.add_scalars("accuracy", {"first": 1, "second": 2}, 20)
        with nbdist.loops.mirror_tensorboard():
            train.add_scalar("twice", 3, 1)
        train.add_scalar("twice", 4, 2)
    train.add_scalar("after", 1.0)
    nbdist.loops.mirror_tensorboard()
    nbdist.loops.mirror_tensorboard().undo()
    train.add_scalar("after", 1.0)
    train.close(), val.close()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    kept = EventAccumulator(f"{folder.name}/{rank}/train").Reload()
    print(sorted(kept.Tags()["scalars"]), [e.value for e in kept.Scalars("loss")])
    folder.cleanup()
"""


def test_scalars_of_summary_writers_are_mirrored(notebook: Kernel) -> None:
    notebook.run("import nbdist")
    metrics, _ = train(notebook, "import torch\n" + WRITERS.replace("\n    ", "\n"))
    assert metrics["loss"]["0"] == metrics["loss"]["1"] == [[10, 20], [0.5, 0.25]]
    assert metrics["val/loss"]["0"] == [[20], [0.75]]
    assert metrics["lr"] == {"0": [[0], [0.1]], "1": [[0], [0.2]]}
    assert metrics["accuracy/first"]["0"] == [[20], [1]]
    assert metrics["accuracy/second"]["0"] == [[20], [2]]
    assert metrics["twice"]["0"] == [[1, 2], [3, 4]]
    assert not {"before", "after"} & set(metrics)


TRANSFORMERS = """
import tempfile, nbdist, torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
bert = BertForSequenceClassification(
    BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=16,
    )
)
dataset = [
    {"input_ids": torch.randint(0, 50, (8,)), "labels": torch.tensor(i % 2)} for i in range(32)
]
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder, num_train_epochs=2, per_device_train_batch_size=4, logging_steps=2,
        eval_strategy="epoch", report_to=[], save_strategy="no",
    )
    trainer = Trainer(
        model=bert, args=arguments, train_dataset=dataset, eval_dataset=dataset,
        callbacks=[nbdist.loops.TransformersCallback()],
    )
    trainer.train()
"""


def test_transformers(notebook: Kernel) -> None:
    metrics, bars = train(notebook, TRANSFORMERS)
    assert steps(metrics) == {
        "train/loss": {"0": [2, 4, 6, 8]},
        "train/grad_norm": {"0": [2, 4, 6, 8]},
        "train/learning_rate": {"0": [2, 4, 6, 8]},
        "eval/loss": {"0": [4, 8]},
    }
    assert bars["0"] == bars["1"] == [["train", 8, 8], ["evaluate", 2, 2]]
    passes = "print([pace.passes for pace in nbdist.jobs()[-1].pulses[0].paces])"
    assert notebook.run(passes).stdout == "[1, 1]\n"  # its bar goes through both epochs


LIGHTNING = """
import lightning, nbdist, tempfile, torch
from torch.utils.data import DataLoader, TensorDataset
class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.save_hyperparameters({"width": 4})
        self.net = torch.nn.Linear(4, 1)
    def training_step(self, batch, index):
        loss = self.net(batch[0]).square().mean()
        self.log("train/loss", loss)
        self.log("train/rank", float(self.global_rank))
        return loss
    def validation_step(self, batch, index):
        self.log("val/loss", self.net(batch[0]).square().mean(), sync_dist=True)
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
pile = lambda samples: [torch.stack([each for (each,) in samples])]
data = DataLoader(TensorDataset(torch.randn(30, 4)), batch_size=4, collate_fn=pile)
with tempfile.TemporaryDirectory() as folder:
    trainer = lightning.Trainer(
        strategy="ddp", accelerator="cpu", devices=2, max_epochs=2, log_every_n_steps=1,
        logger=nbdist.loops.LightningLogger(), callbacks=[nbdist.loops.LightningProgress()],
        default_root_dir=folder, enable_model_summary=False,
    )
    trainer.fit(Module(), data, data)
    print("=", trainer.checkpoint_callback.dirpath.removeprefix(folder))
"""


def test_lightning(notebook: Kernel) -> None:
    metrics, bars = train(notebook, LIGHTNING)
    logged = [[0, 1, 2, 3, 4, 5, 6, 7]] * 2
    assert [metrics["train/loss"][rank][0] for rank in "01"] == logged
    assert metrics["train/rank"]["1"][1] == [1.0] * 8
    assert metrics["val/loss"]["0"] == metrics["val/loss"]["1"]
    assert "epoch" not in metrics
    assert bars["0"] == bars["1"] == [["epoch", 2, 2], ["train", 4, 4], ["validate", 4, 4]]
    told = "[round(bar.samples / bar.rate, 3) for bar in nbdist.jobs()[-1].pulses[1].bars[1:]]"
    assert notebook.run(f"print({told})").stdout == "[3.75, 3.75]\n"  # half of 30 in 4 batches


ACCELERATE = """
import nbdist, torch
from accelerate import Accelerator
accelerator = Accelerator(log_with=nbdist.loops.AccelerateTracker())
accelerator.init_trackers("mine", config={"lr": 0.1})
for step in range(3):
    accelerator.log(
        {"loss": torch.tensor(step / 2), "val": {"loss": 1}, "note": "begun"}, step=step
    )
"""


def test_accelerate(notebook: Kernel) -> None:
    metrics, _ = train(notebook, ACCELERATE)
    assert metrics == {
        "loss": {"0": [[0, 1, 2], [0, 0.5, 1]]},
        "val/loss": {"0": [[0, 1, 2], [1, 1, 1]]},
    }


KERAS = """
import os
os.environ["KERAS_BACKEND"] = "torch"
import keras, nbdist, numpy
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
x = numpy.random.rand(32, 4)
model.fit(
    x, x.sum(1), epochs=2, batch_size=8, validation_split=0.25, verbose=0,
    callbacks=[nbdist.loops.KerasCallback()],
)
"""


def test_keras(notebook: Kernel) -> None:
    metrics, bars = train(notebook, KERAS)
    assert steps(metrics) == {
        "train/loss": {rank: [0, 1, 2, 3, 4, 5] for rank in "01"},
        "val/loss": {rank: [2, 5] for rank in "01"},
    }
    assert bars["0"] == bars["1"] == [["epoch", 2, 2], ["train", 3, 3], ["evaluate", 1, None]]
