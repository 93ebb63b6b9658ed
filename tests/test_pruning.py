"""Pruning: N ranks prune as one does; pruned models travel, and are compared with their masks."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize
from torch.nn.utils.prune import l1_unstructured, random_unstructured

from nbdist.backends.models.equality import masks
from nbdist.rank.values.pickles import ByValue
from tests.helpers.faults import fails, shown
from tests.helpers.notebook import everywhere, on_ranks, preload_without_trial

if TYPE_CHECKING:
    from pathlib import Path

    from tests.helpers.kernel import Kernel

pytestmark = pytest.mark.repeats


def again(value: Any) -> Any:
    """Return what arrives of a value on another rank."""
    file = io.BytesIO()
    ByValue(file, carry_globals=True).dump(value)
    return pickle.loads(file.getvalue())  # noqa: S301 - made just now


class Halved(nn.Linear):
    """A layer with a state of its own."""

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "came": True}


class Half(nn.Module):
    """A parametrization of the user's."""

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Compute the tensor."""
        return value / 2


def test_modules_with_computed_tensors_arrive_as_they_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # else the first optimizer sets it
    torch.manual_seed(0)
    own = Halved(4, 4)
    parametrize.register_parametrization(own, "weight", Half())
    parametrize.register_parametrization(own, "bias", Half())
    net = nn.Sequential(
        parametrizations.weight_norm(nn.Linear(3, 4)),
        parametrizations.spectral_norm(nn.Linear(4, 4)),
        own,
        parametrizations.orthogonal(nn.Linear(4, 2)),
    )
    optimizer = torch.optim.Adam(net.parameters())
    x = torch.randn(5, 3)
    net(x).sum().backward()
    optimizer.step()
    came, optimizer = again(again((net, optimizer)))
    assert [id(p) for p in came.parameters()] == [
        id(p) for p in optimizer.param_groups[0]["params"]
    ]
    assert list(came.state_dict()) == list(net.state_dict())
    assert torch.equal(net.eval()(x), came.eval()(x))
    assert came[2].came
    came.train()(x).sum().backward()
    optimizer.step()
    assert not torch.equal(net(x), came.eval()(x))
    copy.deepcopy(came)
    for layer, kind in zip(came, (nn.Linear, nn.Linear, Halved, nn.Linear), strict=True):
        for name in list(layer.parametrizations):
            parametrize.remove_parametrizations(layer, name)
        assert type(layer) is kind
        assert isinstance(layer.weight, nn.Parameter)


class Masked(nn.Module):
    """A parametrization with a mask, as sparsifiers put in."""

    mask: torch.Tensor

    def __init__(self, mask: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("mask", mask)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """Compute the tensor."""
        return value * self.mask


def test_masks_are_found() -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    net.register_buffer("causal_mask", torch.ones(4, 4))  # by which nothing is pruned
    parametrize.register_parametrization(net[0], "weight", Masked(torch.ones(4, 4)))
    l1_unstructured(net[2], "weight", 0.5)
    random_unstructured(net[2], "bias", 0.5)
    names = ["0.parametrizations.weight.0.mask", "2.weight_mask", "2.bias_mask"]
    assert [name for name, _ in masks(net)] == names


SETUP = """
    import copy, hashlib
    import torch
    from torch import nn
    from torch.nn.utils import prune
    from torch.nn.parallel import DistributedDataParallel as DDP
    from torchao.prototype.sparsity.sparsifier.weight_norm_sparsifier import WeightNormSparsifier

    torch.set_num_threads(1)
    random = torch.Generator().manual_seed(1)
    x = torch.randn(12, 32, 20, generator=random)
    y = (x[..., :10].sum(-1) > 0).long()
    mine = slice(rank, None, world_size)

    def fresh():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 2))

    def train(net, optimizer, part, steps=range(12), after=lambda step: None):
        for step in steps:
            loss = nn.functional.cross_entropy(net(x[step][part]), y[step][part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            after(step)

    def sgd(net):
        return torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)

    def digest(tensors):
        return hashlib.md5(b"".join(t.detach().numpy().tobytes() for t in tensors)).hexdigest()[:8]

    def masks(net):
        return digest(mask for name, mask in net.named_buffers() if name.endswith("mask"))

    def by_magnitude(net):
        for layer in (net[0], net[2]):
            prune.l1_unstructured(layer, "weight", 0.2)

    def alike(net, other):
        pairs = zip(net.parameters(), other.parameters(), strict=True)
        return all(torch.allclose(a, b, atol=1e-6) for a, b in pairs)
"""


@pytest.fixture(scope="module")
def pruning(shared_kernel: Kernel) -> Kernel:
    """Return a kernel with two ranks that train."""
    sparsifier = "torchao.prototype.sparsity.sparsifier.weight_norm_sparsifier"
    preload_without_trial(shared_kernel, "torch._dynamo", sparsifier)
    on_ranks(shared_kernel, SETUP, "-np 2 --backend ddp", timeout=120)
    return shared_kernel


def test_torchs_pruning_is_that_of_one_rank(pruning: Kernel) -> None:
    """Masks by magnitude at every third step, under DDP and on one rank with whole batches."""
    seen = everywhere(
        pruning,
        """
        def pruned(wrap, part):
            net = fresh()
            seen, optimizer, wrapped = [], sgd(net), wrap(net)

            def after(step):
                if step % 3 == 2:
                    by_magnitude(net)
                if step > 1:
                    seen.append(masks(net))

            train(wrapped, optimizer, part, after=after)
            return net, seen

        (net, seen), (one, alone) = pruned(DDP, mine), pruned(lambda net: net, slice(None))
        print("=", seen == alone, len(set(seen)), alike(net, one))
        left = [round(float((layer.weight != 0).float().mean()), 2) for layer in (net[0], net[2])]
        print("=", left)
        print("=", *seen)
        """,
    )
    assert seen[:2] == ["True 4 True", "[0.41, 0.41]"]  # 0.8 to the fourth


def test_torchaos_sparsifier_is_that_of_one_rank(pruning: Kernel) -> None:
    seen = everywhere(
        pruning,
        """
        def sparse(wrap, part):
            net, seen = fresh(), []
            sparsifier = WeightNormSparsifier(0.5, (1, 1), 1)
            sparsifier.prepare(net, [{"tensor_fqn": "0.weight"}, {"tensor_fqn": "2.weight"}])

            def after(step):
                sparsifier.step()
                seen.append(masks(net))

            train(wrap(net), sgd(net), part, after=after)
            sparsifier.squash_mask()
            return net, seen

        (net, seen), (one, alone) = sparse(DDP, mine), sparse(lambda net: net, slice(None))
        print("=", seen == alone, alike(net, one), type(net[0]).__name__)
        print("=", [float((layer.weight == 0).float().mean()) for layer in (net[0], net[2])])
        print("=", *seen)
        """,
    )
    assert seen[:2] == ["True True Linear", "[0.5, 0.5]"]


def test_sparsifiers_arrive_whole(pruning: Kernel) -> None:
    assert everywhere(
        pruning,
        """
        import io, pickle
        from nbdist.rank.values.pickles import ByValue
        from torchao.prototype.sparsity.scheduler.lambda_scheduler import LambdaSL

        def again(value):
            ByValue(file := io.BytesIO(), carry_globals=True).dump(value)
            return pickle.loads(file.getvalue())

        def level():
            sparsifier.step()
            return float((net[0].weight == 0).float().mean())

        net = fresh()
        sparsifier = WeightNormSparsifier(0.5, (1, 1), 1)
        sparsifier.prepare(net, [{"tensor_fqn": "0.weight"}])
        scheduler = LambdaSL(sparsifier, lambda step: 0.5 * step)
        levels = [level()]
        for _ in range(2):
            scheduler.step()
            levels.append(level())
            net, sparsifier, scheduler = again((net, sparsifier, scheduler))
        print("=", levels, sparsifier.groups[0]["module"] is net[0])
        sparsifier.squash_mask()
        print("=", type(net[0]) is nn.Linear)
        """,
    ) == ["[0.0, 0.25, 0.5] True", "True"]


TRAINED = """
    net, one = fresh(), fresh()
    sparsifier, same = (WeightNormSparsifier(0.5, (1, 1), 1) for _ in "ab")
    for each, own in ((net, sparsifier), (one, same)):
        prune.l1_unstructured(each[2], "weight", 0.5)
        own.prepare(each, [{"tensor_fqn": "0.weight"}])
    ddp = DDP(net)
    optimizer, optimizer_of_one = sgd(net), sgd(one)
    train(ddp, optimizer, mine, range(4), lambda step: sparsifier.step())
    train(one, optimizer_of_one, slice(None), range(4), lambda step: same.step())
"""
WENT_ON = """
    mine = slice(rank, None, world_size)  # a rank that was replaced has rank 0's
    train(ddp, optimizer, mine, range(4, 8), lambda step: sparsifier.step())
    train(one, optimizer_of_one, slice(None), range(4, 8), lambda step: same.step())
    print("=", masks(net), masks(net) == masks(one), alike(net, one))
    print("=", *(float((layer.weight == 0).float().mean()) for layer in (net[0], net[2])))
"""


@pytest.mark.parametrize("fault", ["1 / 0", "os.kill(os.getpid(), 9)"], ids=["error", "death"])
def test_pruned_models_go_on_after_a_fault(pruning: Kernel, fault: str) -> None:
    on_ranks(pruning, TRAINED, timeout=60)
    body = f"import os\nif rank == 1:\n    {fault}\ntorch.distributed.barrier()"
    cell = fails(pruning, body)
    assert "No longer equal" not in shown(cell)
    if "kill" in fault:
        told = shown(pruning.run("%dist restart 1 --like 0", timeout=60))
        assert "Rank 1 restarted, nothing is missing." in told
    seen = everywhere(pruning, WENT_ON)
    assert seen[0].split()[1:] == ["True", "True"]
    assert seen[1] == "0.5 0.5"


def test_masks_that_differ_are_told(pruning: Kernel) -> None:
    on_ranks(
        pruning,
        """
        parted, alike_ = torch.nn.parallel.DistributedDataParallel(fresh()), fresh()
        torch.manual_seed(rank)
        prune.random_unstructured(parted.module[0], "weight", 0.5)
        prune.l1_unstructured(alike_[0], "weight", 0.5)
        """,
    )
    told = shown(fails(pruning, "if rank == 1:\n    1 / 0\ntorch.distributed.barrier()"))
    assert "No longer equal on all ranks" in told
    assert "`parted`" in told
    assert "`alike_`" not in told
    pruning.run("%dist sync parted --from 0")
    equal = everywhere(pruning, 'print("=", masks(parted), digest(parted.parameters()))')
    assert len(equal) == 1


def test_a_script_takes_a_pruned_model_along(pruning: Kernel, tmp_path: Path) -> None:
    """It runs where nbdist is not installed."""
    pruning.run(
        """
        import torch
        from torch import nn
        from torch.nn.utils.parametrizations import weight_norm
        torch.manual_seed(0)
        normed = weight_norm(nn.Linear(4, 4))
        expected = normed(torch.ones(4)).tolist()
        """
    )
    path = tmp_path / "normed.py"
    pruning.run(
        f"%%distributed -np 1 --backend none --save {path}\n"
        "print('equal', normed(torch.ones(4)).tolist() == expected, type(normed).__name__)\n"
    )
    code = "import runpy, sys; sys.modules['nbdist'] = None; runpy.run_path(sys.argv[1], "
    command = [sys.executable, "-c", f"{code}run_name='__main__')", str(path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.stdout == "equal True ParametrizedLinear\n", ran.stderr
