"""Other libraries in cells, with their users' code as it stands in a script for torchrun."""

from __future__ import annotations

import os
import re
import sys
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from nbdist.rank.running import libraries
from tests.helpers.notebook import on_ranks, plain, printed_by

if TYPE_CHECKING:
    from tests.helpers.kernel import Kernel

pytestmark = [
    pytest.mark.timeout(240),  # importing some of these takes long on a busy machine
    pytest.mark.repeats,
]

SAME = """
    import torch, torch.distributed as dist
    def same(model):
        "Whether all parameters are equal on all ranks."
        mine = torch.cat([p.detach().flatten() for p in model.parameters()])
        low, high = mine.clone(), mine.clone()
        dist.all_reduce(low, dist.ReduceOp.MIN)
        dist.all_reduce(high, dist.ReduceOp.MAX)
        return bool(torch.equal(low, high))
"""


@pytest.fixture(scope="module")
def ranks(notebook: Kernel) -> Kernel:
    """Return the shared notebook, with `same` on its ranks."""
    on_ranks(notebook, SAME)
    return notebook


@pytest.mark.parametrize(("device", "said"), [("cuda:0", "true"), ("cuda:1", None), ("cpu", None)])
def test_accelerate_is_told_of_ranks_that_share_a_gpu(
    device: str, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would give DDP the GPU of the rank's number; the backend is a stand-in."""
    for name in ("ACCELERATE_BYPASS_DEVICE_MAP", "ACCELERATE_USE_CPU"):
        monkeypatch.setenv(name, "")  # so that it is as before afterwards
        monkeypatch.delenv(name)
    backend: Any = SimpleNamespace(name="ddp", device=lambda: device)
    monkeypatch.setitem(sys.modules, "tqdm.notebook", ModuleType("tqdm.notebook"))
    libraries.welcome(backend, local_rank=1)
    assert os.environ.get("ACCELERATE_BYPASS_DEVICE_MAP") == said


def lines(kernel: Kernel, body: str) -> tuple[list[str], list[str]]:
    """Run a cell; return the lines that rank 0 and rank 1 print after ``=``."""
    cell = on_ranks(kernel, body, timeout=180)
    texts = cell.stdout, printed_by(kernel, 1)
    here, there = ([m[1] for m in re.finditer(r"^= (.*)", text, re.MULTILINE)] for text in texts)
    return here, there


ACCELERATE = """
    from accelerate import Accelerator
    from torch.utils.data import DataLoader, TensorDataset
    torch.manual_seed(rank)
    accelerator = Accelerator()
    net = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.arange(64.0).reshape(16, 4)), batch_size=4)
    net, optimizer, loader = accelerator.prepare(net, optimizer, loader)
    seen = []
    for (batch,) in loader:
        loss = net(batch / 64).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        seen.append(int(batch[0, 0]))
    print("=", accelerator.num_processes, accelerator.process_index, accelerator.device.type)
    print("=", type(net).__name__, seen, same(net))
    print("=", accelerator.gather(torch.tensor([rank])).tolist())
"""


def test_accelerate(ranks: Kernel) -> None:
    for _ in range(2):
        here, there = lines(ranks, ACCELERATE)
        assert here[0].startswith("2 0 ")
        assert there[0].startswith("2 1 ")
        assert here[1] == "DistributedDataParallel [0, 32] True"
        assert there[1] == "DistributedDataParallel [16, 48] True"
        assert here[2] == there[2] == "[0, 1]"


def test_accelerate_that_ends_its_training(ranks: Kernel) -> None:
    here, _ = lines(
        ranks,
        """
        from accelerate import Accelerator
        accelerator = Accelerator()
        accelerator.end_training()
        print("=", dist.is_initialized())
        """,
    )
    assert here == ["False"]
    plainly = "total = torch.ones(1); dist.all_reduce(total); print(int(total))"
    assert on_ranks(ranks, plainly).stdout == "2\n"
    here, there = lines(ranks, ACCELERATE)
    assert here[1] == "DistributedDataParallel [0, 32] True"
    assert there[1] == "DistributedDataParallel [16, 48] True"


LIGHTNING = """
    import lightning
    from torch.utils.data import DataLoader, TensorDataset
    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Linear(4, 1)
        def training_step(self, batch, index):
            loss = self.net(batch[0]).square().mean()
            self.log("loss", loss, prog_bar=True, sync_dist=True)
            return loss
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)
    module = Module()
    data = DataLoader(TensorDataset(torch.randn(32, 4)), batch_size=4)
"""
FIT = """
    trainer = lightning.Trainer(
        strategy="ddp", accelerator="cpu", devices=2, max_epochs=2, log_every_n_steps=1,
        logger=False, enable_checkpointing=False,
    )
    trainer.fit(module, data)
    print("=", trainer.world_size, trainer.global_rank, type(trainer.strategy).__name__)
    print("=", trainer.global_step, trainer.num_training_batches, same(module))
"""


def test_lightning(ranks: Kernel) -> None:
    on_ranks(ranks, LIGHTNING, timeout=180)
    for _ in range(2):
        here, there = lines(ranks, FIT)
        assert here == ["2 0 DDPStrategy", "8 4 True"]
        assert there == ["2 1 DDPStrategy", "8 4 True"]
    assert on_ranks(ranks, "print(same(module))").stdout == "True\n"


TRANSFORMERS = """
    import tempfile
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
    torch.manual_seed(0)
    bert = BertForSequenceClassification(
        BertConfig(
            vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
            intermediate_size=16, max_position_embeddings=16,
        )
    )
    dataset = [
        {"input_ids": torch.randint(0, 50, (8,)), "labels": torch.tensor(i % 2)} for i in range(32)
    ]
    folder = tempfile.TemporaryDirectory()
"""
TRAIN = """
    arguments = TrainingArguments(
        output_dir=folder.name, num_train_epochs=1, per_device_train_batch_size=4,
        logging_steps=2, report_to=[], save_strategy="no",
    )
    trainer = Trainer(model=bert, args=arguments, train_dataset=dataset)
    outcome = trainer.train()
    print("=", arguments.world_size, arguments.process_index, outcome.global_step)
    print("=", type(trainer.model_wrapped).__name__, same(bert))
"""


def test_transformers(ranks: Kernel) -> None:
    on_ranks(ranks, TRANSFORMERS, timeout=180)
    for _ in range(2):
        here, there = lines(ranks, TRAIN)
        assert here == ["2 0 4", "DistributedDataParallel True"]
        assert there == ["2 1 4", "DistributedDataParallel True"]
    on_ranks(ranks, "folder.cleanup()")


def test_fully_shard(ranks: Kernel) -> None:
    here, there = lines(
        ranks,
        """
        from torch.distributed.fsdp import fully_shard
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        whole = sum(p.numel() for p in net.parameters())
        for layer in net:
            if isinstance(layer, torch.nn.Linear):
                fully_shard(layer)
        fully_shard(net)
        optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
        def step(value):
            loss = net(torch.full((4, 4), value)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.item()
        first = step(rank + 1.0)
        mine = sum(p.to_local().numel() for p in net.parameters())
        print("=", type(net[0].weight).__name__, mine, whole)
        """,
    )
    assert here == there == ["DTensor 29 58"]
    here, there = lines(
        ranks,
        """
        for _ in range(20):
            last = step(rank + 1.0)
        full = net[0].weight.full_tensor().sum().item()
        print("=", last < first)
        print("=", round(full, 4))
        """,
    )
    assert here == there
    assert here[0] == "True"


def test_data_loader_workers(ranks: Kernel) -> None:
    here, there = lines(
        ranks,
        """
        from torch.utils.data import DataLoader, Dataset
        from torch.utils.data.distributed import DistributedSampler
        class Squares(Dataset):
            def __len__(self): return 16
            def __getitem__(self, i): return torch.tensor(i * i)
        squares = Squares()
        loader = DataLoader(
            squares, batch_size=4, num_workers=2, persistent_workers=True,
            sampler=DistributedSampler(squares, shuffle=False),
        )
        print("=", [batch.tolist() for batch in loader])
        """,
    )
    assert here == [str([[0, 4, 16, 36], [64, 100, 144, 196]])]
    assert there == [str([[1, 9, 25, 49], [81, 121, 169, 225]])]
    again, _ = lines(ranks, "print('=', sum(int(batch.sum()) for batch in loader))")
    assert again == ["560"], "kept workers go on in the next cell"
    lines(ranks, "del loader")


def test_libraries_fail_like_cells(ranks: Kernel) -> None:
    on_ranks(ranks, LIGHTNING, timeout=180)
    broken = """
        class Broken(Module):
            def training_step(self, batch, index):
                if index == 2 and rank == 1:
                    raise ValueError("bad batch")
                return super().training_step(batch, index)
        module = Broken()
    """
    on_ranks(ranks, broken)
    cell = on_ranks(ranks, FIT, check=False)
    assert plain(cell.text).count("ValueError: bad batch") >= 1
    assert cell.error.startswith("CellFailed: Rank 1 failed: ValueError: bad batch")
    on_ranks(ranks, "module = Module()")
    here, _ = lines(ranks, FIT)
    assert here == ["2 0 DDPStrategy", "8 4 True"]
