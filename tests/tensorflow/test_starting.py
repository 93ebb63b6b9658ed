"""How ranks come by TensorFlow: by forks of a process that has it imported, or by themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nbdist.backends.horovod import engine_ranks
from nbdist.errors import UsageError
from tests.helpers.faults import shown
from tests.helpers.notebook import on_ranks
from tests.tensorflow import digits

if TYPE_CHECKING:
    from tests.conftest import KernelFactory
    from tests.helpers.kernel import Kernel

pytestmark = pytest.mark.repeats

TRAINS = """
    import tensorflow as tf
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(tf.ones((8, 2)), tf.ones((8, 1)), verbose=0)
    print(float(hvd.allreduce(tf.ones(1), op=hvd.Sum)[0]))
"""


def test_what_has_run_tensorflow_is_not_forked(kernel: Kernel) -> None:
    (kernel.home / "runs_it.py").write_text("import tensorflow as tf\ntf.ones(2) + 1\n")
    kernel.run("%load_ext nbdist")
    told = shown(on_ranks(kernel, "pass", "-np 2", check=False))
    assert "Or use --backend horovod: Horovod is installed for TensorFlow" in told
    told = shown(kernel.run("%dist preload runs_it", 90, check=False))
    assert "nothing was preloaded: the import starts threads" in told
    kernel.run("%dist preload tensorflow", 90)
    assert on_ranks(kernel, TRAINS, digits.ENGINES, timeout=90).stdout == "2.0\n"


def test_ranks_that_are_not_forked(start_kernel: KernelFactory) -> None:
    kernel = start_kernel(env={"NBDIST_NO_FORK": "1"})
    kernel.run("%load_ext nbdist")
    assert on_ranks(kernel, TRAINS, digits.ENGINES, timeout=120).stdout == "2.0\n"


def test_the_framework_that_is_asked_for_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NBDIST_HOROVOD", "torch")
    with pytest.raises(
        UsageError, match=r"horovod\.torch: Horovod was built without it.*nbdist\.install horovod"
    ):
        engine_ranks.framework()
    monkeypatch.setenv("NBDIST_HOROVOD", "mxnet")
    with pytest.raises(UsageError, match="NBDIST_HOROVOD=mxnet is none of torch, tensorflow"):
        engine_ranks.framework()
