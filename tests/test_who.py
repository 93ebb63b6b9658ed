"""`%dist who`: the ranks' variables, where ranks differ, and no cell disturbed by the question."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from nbdist.hub.asking.variables import compare
from nbdist.wire.inspection import Seen
from tests.helpers.notebook import on_ranks

if TYPE_CHECKING:
    from tests.helpers.kernel import Kernel

VARIABLES = """
import collections
import warnings
import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
model = DDP(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
opt = torch.optim.AdamW(model.parameters())
model(torch.ones(2, 4)).mean().backward()
opt.step()
norm = nn.BatchNorm1d(4)
norm(torch.ones(2, 4) * rank)
single = nn.Linear(2, 2)
with torch.no_grad():
    single.weight += rank
batch = {"x": torch.zeros(2, 3), "y": [torch.ones(2) * rank]}
same = {"x": torch.zeros(2, 3), "z": (1, "a", {2.5})}
rows = torch.zeros(2 + rank, 3)
bits = torch.tensor([True, False])
half = torch.zeros(3, dtype=torch.bfloat16)
array = np.arange(6.0).reshape(2, 3)
number = np.float32(2)
sparse, unreal = torch.eye(2).to_sparse(), torch.zeros(2, device="meta")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch means to drop them; reading their bits is a crash
    coded = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
data = TensorDataset(torch.zeros(5))
loader = DataLoader(data, batch_size=2)
lr = 0.1 * (rank + 1)
words = "many " * 100
queue = collections.deque([1, 2])
_private = 1
def train(): pass
if rank == 1:
    lonely = None
class Odd:
    @property
    def shape(self):
        raise RuntimeError("no shape")
    dtype = property(lambda self: 1 / 0)
    def __len__(self):
        print("LOUD")
        return 7
odd = Odd()
class Stubborn:
    def __getattribute__(self, name):
        raise ValueError(name)
stubborn = Stubborn()
"""
TABLE = """
name  type  shape  dtype  device  size  between the ranks
array  ndarray  (2, 3)  float64  48 B  equal
batch  dict  2 items  cpu  32 B  values differ
bits  Tensor  (2,)  bool  cpu  2 B  equal
coded  Tensor  (3,)  qint8  cpu  3 B
data  TensorDataset  5 items
half  Tensor  (3,)  bfloat16  cpu  6 B  equal
loader  DataLoader  3 items
lonely  NoneType  None  rank 0: missing
lr  float  0.1  rank 1: value 0.2
model  DistributedDataParallel(Sequential)  28 parameters  float32  cpu  152 B  equal
norm  BatchNorm1d  8 parameters  float32  cpu  72 B  parameters equal; buffers differ
number  float32  2.0  equal
odd  Odd  7 items
opt  AdamW  28 parameters  float32  cpu  240 B  equal
queue  deque  2 items  equal
rows  Tensor  (2, 3)  float32  cpu  24 B  rank 1: shape (3, 3)
same  dict  2 items  cpu  24 B  equal
single  Linear  6 parameters  float32  cpu  24 B  values differ
sparse  Tensor  (2, 2)  float32  cpu
stubborn  Stubborn
unreal  Tensor  (2,)  float32  meta
words  str  'many many many many many many many many' of 500  equal
"""
PATIENT = """
import nbdist.rank.agent, nbdist.rank.looking.who
nbdist.rank.agent.INSPECT_SECONDS = 20
nbdist.rank.looking.who.LIMIT_SECONDS, nbdist.rank.looking.who.DIGEST_SECONDS = {}, {}
"""
SLOW = "import time\nfor _ in range(1200):\n    time.sleep(0.05)"


@pytest.fixture(scope="module")
def filled(notebook: Kernel) -> Kernel:
    """Return the notebook with variables of many kinds on its ranks, and time for questions."""
    on_ranks(notebook, VARIABLES)
    on_ranks(notebook, PATIENT.format(20, 10))
    notebook.run("import nbdist, time; from nbdist.hub.asking import variables")
    notebook.run("variables.WHO_SECONDS = variables.GLANCE_SECONDS = 60")
    return notebook


def rows(lines: list[str]) -> list[str]:
    """Return a table's rows with two blanks between their cells, empty cells left out."""
    return ["  ".join(part.strip() for part in line.split("  ") if part.strip()) for line in lines]


def asked(kernel: Kernel, line: str) -> list[str]:
    return rows(kernel.run(line).stdout.splitlines())


def records(kernel: Kernel, call: str) -> dict[str, Any]:
    """Return what `Cluster.who` answers, name by name, as rank 0 or the first rank has it."""
    cell = kernel.run(
        f"import json, msgspec\nfound = nbdist.cluster().who({call})\n"
        "print(json.dumps({v.name: msgspec.to_builtins(v.first) for v in found.variables}))"
    )
    return dict(json.loads(cell.stdout))


def test_every_kind_of_variable_and_where_ranks_differ(filled: Kernel) -> None:
    assert asked(filled, "%dist who") == TABLE.strip().splitlines()
    assert on_ranks(filled, "print('quiet')").text == "quiet\n", (
        "what a property prints is not told"
    )


def test_patterns_and_ranks(filled: Kernel) -> None:
    found = [row.split()[0] for row in asked(filled, "%dist who lo[an]* train _p* rank nn")]
    assert found == ["name", "_private", "loader", "lonely", "nn", "rank", "train"]
    assert asked(filled, "%dist who rank")[1] == "rank  int  0  rank 1: value 1"
    assert asked(filled, "%dist who lr --ranks 1")[1] == "lr  float  0.2"
    assert asked(filled, "%dist who zzz*") == ["No variable on the ranks matches zzz*."]
    wrong = filled.run("%dist who --ranks 7", check=False)
    assert "there is no rank 7" in wrong.error


def test_a_busy_rank_is_not_disturbed_and_says_so(filled: Kernel) -> None:
    filled.run(
        f"job = nbdist.cluster().submit({SLOW!r}, ranks=[1])\n"
        "while True:\n"
        "    busy = nbdist.cluster().who('lr').busy\n"
        "    if busy and busy[1].line == 3:\n"
        "        break\n"
        "    time.sleep(0.05)"
    )
    try:
        told = asked(filled, "%dist who")
        assert told[-1] == "rank 1 is busy (running cell line 3): values not compared"
        table = {row.split()[0]: row for row in told[:-1]}
        assert table["single"] == "single  Linear  6 parameters  float32  cpu  24 B"
        assert table["rows"].endswith("rank 1: shape (3, 3)")
        assert table["model"].endswith("28 parameters  float32  cpu  152 B")
        assert table["odd"] == "odd  Odd  7 items", "rank 0 is idle, so its user's code may run"
        alone = {row.split()[0]: row for row in asked(filled, "%dist who --ranks 1")}
        assert alone["odd"] == "odd  Odd", "on a busy rank it may not"
        assert alone["array"] == "array  ndarray  (2, 3)  float64  48 B"
    finally:
        filled.run("job.cancel()\njob.until_end(100)\nprint(job.output(1))")
    assert "LOUD" not in filled.cell.stdout


def test_what_holds_the_question_up_is_broken_off(filled: Kernel) -> None:
    on_ranks(
        filled,
        """
        class Endless:
            @property
            def shape(self):
                while True:
                    pass
        endless = Endless()
        """,
    )
    on_ranks(filled, PATIENT.format(1, 1))
    told = asked(filled, "%dist who endl* lo[an]*")
    assert "endless  Endless" in told
    on_ranks(filled, PATIENT.format(20, 10))
    assert (
        told[-1] == "Not compared, because that would have taken too long: endless, loader, lonely"
    )
    assert on_ranks(filled, "del endless\nprint('fine')").text == "fine\n"


def test_a_rank_that_does_not_answer_is_named(filled: Kernel) -> None:
    on_ranks(filled, "here = 1")
    filled.run("limits = variables.WHO_SECONDS, variables.GLANCE_SECONDS")
    filled.run("variables.WHO_SECONDS = variables.GLANCE_SECONDS = 0.3")
    pid = int(filled.run("print(nbdist.cluster().ranks[1].pid)").stdout)
    os.kill(pid, signal.SIGSTOP)
    try:
        told = asked(filled, "%dist who here")
    finally:
        os.kill(pid, signal.SIGCONT)
    filled.run("variables.WHO_SECONDS, variables.GLANCE_SECONDS = limits")
    assert any("rank 1 does not answer" in line for line in told), told
    on_ranks(filled, "del here")


def test_thousands_of_names_make_a_bounded_table(filled: Kernel) -> None:
    on_ranks(filled, "globals().update({f'many_{i:04}': i for i in range(3000)})")
    told = asked(filled, "%dist who many*")
    assert len(told) == 202
    assert told[-1] == "… and 2,800 more: %dist who PATTERN lists the variables that match."
    found = records(filled, "'many_*'")
    assert len(found) == 3000
    on_ranks(filled, "for i in range(3000):\n    del globals()[f'many_{i:04}']\ndel i")


def test_records_for_python(filled: Kernel) -> None:
    found = records(filled, "'rows', 'l[or]*', ranks=[0]")
    assert found["rows"] == {
        "name": "rows", "type": "Tensor", "shape": "(2, 3)", "dtype": "float32", "device": "cpu",
        "size": 24, "digest": found["rows"]["digest"],
    }  # fmt: skip
    assert list(found) == ["loader", "local_rank", "lr", "rows"]


def seen(**changes: Any) -> Seen:
    return Seen("x", **{"type": "Tensor", "shape": "(2,)", "digest": "a"} | changes)


@pytest.mark.parametrize(
    ("ranks", "told"),
    [
        ({0: seen(), 1: seen(), 2: seen()}, ()),
        ({0: seen(), 1: seen()}, ("rank 2: missing",)),
        ({0: seen(), 1: seen(shape="(4,)"), 2: seen(shape="(4,)")}, ("rank 0: shape (2,)",)),
        ({0: seen(), 1: seen(digest="b"), 2: seen()}, ("rank 1: other values",)),
        ({0: seen(device="cuda:0"), 1: seen(device="cuda:1"), 2: seen(device="cuda:2")}, ()),
        ({0: seen(device="cuda:0"), 1: seen(device="cpu"), 2: seen(device="cuda:2")},
         ("rank 1: device cpu",)),
        ({0: seen(), 1: seen(type="list", shape=""), 2: seen(digest="")}, ("rank 1: type list",)),
        ({0: seen(), 1: seen(digest=""), 2: seen(digest="b")}, ()),
        ({rank: seen(shape=f"({rank},)") for rank in range(4)}, ("shapes differ",)),
    ],
)  # fmt: skip
def test_differences_in_words(ranks: dict[int, Seen], told: tuple[str, ...]) -> None:
    variable = compare("x", ranks, range(max(3, len(ranks))))
    assert variable.differs == told
    assert variable.equal == (not told and len({one.digest for one in ranks.values()}) == 1)
