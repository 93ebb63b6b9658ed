"""Small programs on several ranks: what they draw at random, and what each rank believes to be.

Each program is a `RankProgram`, drawn by Hypothesis from parts that people write. What is right is
computed by the same code in plain processes, or by ranks that made the object themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

DRAWS = {
    "tensor": "torch.randint(2**60, (1,)).item()",
    "dropout": "torch.nn.functional.dropout(torch.ones(64)).tolist()",
    "weights": "torch.nn.Linear(3, 3).weight.tolist()",
    "order": "torch.randperm(50).tolist()",
    "loader": "next(iter(DataLoader(range(40), batch_size=40, shuffle=True))).tolist()",
    "workers": "[int(b[0]) for b in DataLoader([0], num_workers=1, collate_fn=worker_seed)]",
    "split": "list(random_split(range(40), [20, 20])[0])",
    "initial seed": "torch.initial_seed()",
    "random": "random.getrandbits(60)",
    "numpy": "numpy.random.randint(2**60)",
    "numpy generator": "int(numpy.random.default_rng().integers(2**60))",
    "uuid": "str(uuid.uuid4())",
    "folder": "folder()",
}
"""What draws at random, by kind."""
OTHERS = ("random", "numpy", "numpy generator", "uuid", "folder")
"""Those that torch's seed leaves alone."""
NEEDS = """
import os, random, tempfile, uuid, numpy, torch
from torch.utils.data import DataLoader, random_split
def folder():
    with tempfile.TemporaryDirectory() as path:
        return path
def worker_seed(items):
    return [torch.initial_seed()]
"""


@dataclass(frozen=True)
class Drawing:
    """Draws of a program, after a seed or without one."""

    kinds: tuple[str, ...]
    seed: str = ""
    """The statement that seeds."""

    @property
    def text(self) -> str:
        """The program, which binds `drawn`."""
        values = ", ".join(f"{kind!r}: repr({DRAWS[kind]})" for kind in self.kinds)
        return f"{NEEDS}{self.seed}\ndrawn = {{{values}}}"

    def same_everywhere(self, kind: str) -> bool:
        """Return whether a kind of draw is seeded, so that ranks and runs draw the same."""
        return self.seed == "torch.manual_seed(3)" and kind not in OTHERS


@st.composite
def drawings(draw: Any) -> Drawing:
    """Draw what is drawn at random, and how it is seeded."""
    kinds = draw(st.lists(st.sampled_from([*DRAWS]), min_size=1, max_size=5, unique=True))
    seeds = ["", "", "torch.manual_seed(3)", "torch.manual_seed(100 + rank)"]
    return Drawing(tuple(kinds), draw(st.sampled_from(seeds)))


# -- objects that know their rank ------------------------------------------------------------------

LOADED = "[b.tolist() if hasattr(b, 'tolist') else list(b) for b in {0}]"
BELIEFS: dict[str, tuple[str, str]] = {
    "sampler": ("{0} = DistributedSampler(range({1}), shuffle=False)", "[*{0}]"),
    "shuffled": ("{0} = DistributedSampler(range({1}), seed=4)", "[*{0}]"),
    "drop last": ("{0} = DistributedSampler(range({1}), shuffle=False, drop_last=True)", "[*{0}]"),
    "loader": (
        "{0} = DataLoader(range({1}), 3, sampler=DistributedSampler(range({1}), shuffle=False))",
        LOADED,
    ),
    "batches": (
        "{0} = BatchSampler(DistributedSampler(range({1}), shuffle=False), 2, False)",
        "[*{0}]",
    ),
    "in a dict": (
        "{0} = dict(train=[DistributedSampler(range({1}), shuffle=False)])",
        "[*{0}['train'][0]]",
    ),
    "in an object": (
        "class Kept: pass\n{0} = Kept()\n{0}.data = DistributedSampler(range({1}), shuffle=False)",
        "[*{0}.data]",
    ),
    "subclass": (
        "class {0}_kind(DistributedSampler): pass\n{0} = {0}_kind(range({1}), shuffle=False)",
        "[*{0}]",
    ),
    "exact": ("{0} = ShardedBatchSampler(range({1}), batch_size=2)", "[*{0}]"),
    "stream": (
        """class Stream(IterableDataset):
    def __init__(self): self.rank = rank
    def __iter__(self): return iter(range(self.rank, {1}, 2))
{0} = Stream()""",
        "[*{0}]",
    ),
    "own attribute": (
        "class Mine:\n    def __init__(self): self.rank = dist.get_rank()\n{0} = Mine()",
        "{0}.rank",
    ),
    "own number": ("{0} = 7 * dist.get_rank()", "{0}"),
    "generator": ("{0} = torch.Generator().manual_seed(5 + rank)", "{0}.initial_seed()"),
    "numpy generator": (
        "{0} = numpy.random.default_rng(5 + rank)",
        "{0}.bit_generator.state['state']['state']",
    ),
}
"""For each kind, a statement that makes {0}, and an expression that shows which rank it is for."""
MAKES = """
import os, numpy, torch, torch.distributed as dist
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset
from nbdist.evaluation import ShardedBatchSampler
"""
NOTEBOOKS = {
    "exact": BELIEFS["exact"],
    "sampler": ("{0} = DistributedSampler(range({1}), 1, 0, shuffle=False)", "[*{0}]"),
    "loader": (
        "{0} = DataLoader(range({1}), batch_sampler=ShardedBatchSampler(range({1}), batch_size=2))",
        LOADED,
    ),
}  # fmt: skip
"""What a notebook, which is one process, makes for all."""


@dataclass(frozen=True)
class Believing:
    """Names, each with its kind and size."""

    names: tuple[tuple[str, str, int], ...]
    copied: int
    """The rank that is killed and made again like the other one."""

    def made(self, kinds: dict[str, tuple[str, str]]) -> str:
        """Return the statements that make the objects."""
        lines = [kinds[kind][0].format(name, size) for name, kind, size in self.names]
        return "\n".join([MAKES, *lines])

    def shown(self, kinds: dict[str, tuple[str, str]]) -> str:
        """Return an expression for what all objects believe."""
        told = (f"{name!r}: {kinds[kind][1].format(name)}" for name, kind, _ in self.names)
        return f"{{{', '.join(told)}}}"


@st.composite
def beliefs(draw: Any, kinds: tuple[str, ...], prefix: str) -> Believing:
    """Draw objects that know their rank, and the rank that is lost."""
    chosen = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=4))
    names = tuple(
        (f"{prefix}_{number}", kind, draw(st.integers(4, 17))) for number, kind in enumerate(chosen)
    )
    return Believing(names, draw(st.integers(0, 1)))
