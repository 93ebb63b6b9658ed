"""scikit-learn's digits, and a small model of them, as cells of a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.helpers.notebook import on_ranks

if TYPE_CHECKING:
    from tests.helpers.kernel import Kernel

ENGINES = "-np 2 --backend horovod --launcher engines"
NOTEBOOK = """
%load_ext nbdist
import nbdist
import numpy as np
import tensorflow as tf
import horovod.tensorflow.keras as khvd
from sklearn.datasets import load_digits

loaded = load_digits()
images, labels = (loaded.data / 16).astype("float32"), loaded.target

def make(compiled=True, **options):
    model = tf.keras.Sequential([
        tf.keras.layers.Input((64,)), tf.keras.layers.Dense(32, activation="relu"),
        tf.keras.layers.Dense(10),
    ])
    if compiled:
        optimizer = khvd.DistributedOptimizer(tf.keras.optimizers.Adam(0.01), **options)
        loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer, loss=loss, metrics=["accuracy"])
    return model

def share(rows=1440):
    return images[:rows][khvd.rank()::khvd.size()], labels[:rows][khvd.rank()::khvd.size()]

def weights_everywhere(model):
    flat = tf.concat([tf.reshape(v, [1, -1]) for v in model.trainable_variables], axis=1)
    return khvd.allgather(flat)

def are_equal(model):
    mine, *others = weights_everywhere(model)
    return all(bool(tf.reduce_all(mine == other)) for other in others)

def fit(model, **options):
    options = {"batch_size": 32, "epochs": 1, "verbose": 0} | options
    return model.fit(*share(), **options).history
"""
START = """
tf.keras.utils.set_random_seed(rank)
model = make()
fit(model, callbacks=[khvd.callbacks.BroadcastGlobalVariablesCallback(0)])
kept = "kept"
"""
"""A cell that leaves a model that all ranks have trained."""


def start(kernel: Kernel) -> None:
    """Give a kernel the digits, and two ranks that Horovod has joined."""
    kernel.run(NOTEBOOK, 120)
    on_ranks(kernel, "import numpy as np", ENGINES, timeout=120)
