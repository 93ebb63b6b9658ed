"""Tab inside a distributed cell knows what the ranks know."""

from __future__ import annotations

from typing import TYPE_CHECKING

import IPython
import pytest

from tests.helpers.notebook import ANSWERS_LATE, complete, on_ranks
from tests.helpers.waiting import until, within

if TYPE_CHECKING:
    from tests.helpers.kernel import Kernel

pytestmark = pytest.mark.repeats

VARIABLES = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
network = Net()
batch = {"images": torch.zeros(2), "labels": 1}
def train_step(momentum=0.9):
    pass
if rank == 1:
    only_on_one = 1
class Slow:
    def __dir__(self):
        print("LOUD")
        while True:
            pass
slow = Slow()
"""
TAB = {
    "netw": ["network"],
    "only_": ["only_on_one"],
    "world_s": ["world_size"],
    "network.backb": ["backbone"],
    "x = 1\ny = network.backbone[0].wei": ["weight"],
    "nn.LeakyR": ["LeakyReLU"],
    'batch["': ["images", "labels"],
    'batch["im': ["images"],
    "train_step(momen": ["momentum="],
    "%%time\nbatch.setd": ["setdefault"],
}


PATIENCE = "from nbdist.notebook import inspecting\ninspecting.COMPLETE_SECONDS = {}"
"""Who presses Tab waits for a third of a second; a busy machine may need longer."""


@pytest.fixture(scope="module")
def filled(notebook: Kernel) -> Kernel:
    """Return the notebook with variables on its ranks."""
    on_ranks(notebook, VARIABLES)
    on_ranks(notebook, ANSWERS_LATE)
    notebook.run(PATIENCE.format(20))
    return notebook


def offered(kernel: Kernel, code: str, flags: str = "") -> list[str]:
    return complete(kernel, f"%%distributed {flags}\n{code}")


@pytest.mark.parametrize("jedi", [True, False])
def test_names_attributes_and_keys_of_the_ranks(filled: Kernel, jedi: bool) -> None:  # noqa: FBT001 - a parameter
    filled.run(f"get_ipython().Completer.use_jedi = {jedi}")
    wanted = dict(TAB)
    if IPython.version_info < (9,):  # whose completer looks into no item of a class of the user's
        del wanted["x = 1\ny = network.backbone[0].wei"]
    assert {code: offered(filled, code) for code in wanted} == wanted
    assert complete(filled, "only_") == [], "a plain cell runs in the notebook"


def test_the_notebooks_own_names_stand_beside(filled: Kernel) -> None:
    filled.run("netto = 1")
    on_ranks(filled, "netted = 1")
    assert sorted(offered(filled, "nett")) == ["netted", "netto"]
    filled.run("del netto")


def test_the_ranks_of_the_cell_are_asked(filled: Kernel) -> None:
    on_ranks(filled, "part = 'text' if rank == 0 else []")
    assert offered(filled, "part.startsw") == ["startswith"]
    assert offered(filled, "part.startsw", "--ranks 1") == []
    assert offered(filled, "part.exten", "--ranks 1") == ["extend"]
    assert offered(filled, "only_", "--ranks 0") == []
    assert offered(filled, "network.backb", "--ranks 9") == [], "no such rank, and no error"


def test_commands_offer_the_names_of_the_ranks(filled: Kernel) -> None:
    for command in ("pull", "sync", "who"):
        assert "network" in complete(filled, f"%dist {command} netw")
    assert "network.backbone" in complete(filled, "%dist pull network.backb")


def test_what_takes_long_is_left_out_and_nothing_is_printed(filled: Kernel) -> None:
    filled.run(PATIENCE.format(0.3))
    with within(10):
        assert offered(filled, "slow.x") == []
    filled.run(PATIENCE.format(20))
    assert on_ranks(filled, "print('fine')").text == "fine\n"


def test_busy_ranks_offer_their_names(filled: Kernel) -> None:
    filled.run(
        "import nbdist\n"
        "job = nbdist.cluster().submit('import time\\nwhile True:\\n    time.sleep(0.05)')"
    )
    try:
        busy = "print(len(nbdist.cluster().who('batch').busy))"
        until(lambda: filled.run(busy).stdout == "2\n")
        assert offered(filled, "netw") == ["network"]
        assert offered(filled, "only_") == ["only_on_one"]
        assert offered(filled, "network.backb") == [], "that would run the user's code"
    finally:
        filled.run("job.cancel()")
    until(lambda: offered(filled, "network.backb") == ["backbone"])


def test_without_a_cluster_only_the_notebook_is_asked(kernel: Kernel) -> None:
    kernel.run("%load_ext nbdist")
    on_ranks(kernel, "only_there = 1", "-np 1 --backend none")
    kernel.run("%dist stop\nonly_here = 1")
    assert offered(kernel, "only_") == ["only_here"]
