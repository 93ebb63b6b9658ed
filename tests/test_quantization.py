"""Evaluation, calibration and quantization-aware training: N ranks get what one rank gets."""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.utils.data import DistributedSampler, TensorDataset

from nbdist.errors import UsageError
from nbdist.evaluation import ShardedBatchSampler
from nbdist.quantization import calibrate
from tests.helpers.faults import fails, shown
from tests.helpers.notebook import on_ranks, preload_without_trial, printed_by

if TYPE_CHECKING:
    from tests.conftest import KernelFactory
    from tests.helpers.kernel import Kernel

pytestmark = pytest.mark.timeout(300)  # torch's compiler is imported, long on a busy machine

IMPORTED = (
    "torch._dynamo", "sklearn.datasets", "torchmetrics.classification",
    "torchao.quantization.pt2e.quantizer.x86_inductor_quantizer",
)  # fmt: skip
"""What takes seconds is imported once, and not on each of the ranks."""
SETUP = """
    import copy
    import torch, torch.distributed as dist
    from sklearn.datasets import load_digits
    from torch import nn
    from torch.nn.functional import cross_entropy
    from torchao.quantization.pt2e import (
        FakeQuantize, HistogramObserver, MinMaxObserver, MovingAverageMinMaxObserver,
        PerChannelMinMaxObserver,
    )
    from torchao.quantization.pt2e.quantize_pt2e import (
        convert_pt2e, prepare_pt2e, prepare_qat_pt2e,
    )
    from torchao.quantization.pt2e.quantizer import QuantizationSpec
    from torchao.quantization.pt2e.quantizer.x86_inductor_quantizer import (
        QuantizationConfig, X86InductorQuantizer, get_default_x86_inductor_quantization_config,
    )
    from nbdist.evaluation import ShardedBatchSampler
    from nbdist.quantization import calibrate, sync_fake_quantize

    torch.set_num_threads(1)  # three ranks, few cores
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(digits.target)
    train_x, train_y, test_x, test_y = images[:1400], labels[:1400], images[1400:], labels[1400:]
    part_y = test_y[rank::world_size]

    def fresh():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2, padding=1),
            nn.ReLU(), nn.Flatten(), nn.Linear(256, 10),
        )

    model = fresh()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for epoch in range(3):
        order = torch.randperm(1400, generator=torch.Generator().manual_seed(epoch))
        for part in order.split(70):
            loss = cross_entropy(model(train_x[part]), train_y[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    shapes = ({0: torch.export.Dim.DYNAMIC},)
    exported = torch.export.export(model, (train_x[:2],), dynamic_shapes=shapes)

    def prepared(config=None, prepare=prepare_pt2e):
        quantizer = X86InductorQuantizer()
        quantizer.set_global(config or get_default_x86_inductor_quantization_config())
        return prepare(copy.deepcopy(exported).module(), quantizer)

    def config(observer):
        spec = QuantizationSpec(
            dtype=torch.uint8, quant_min=0, quant_max=255, qscheme=torch.per_tensor_affine,
            observer_or_fake_quant_ctr=observer,
        )
        usual = get_default_x86_inductor_quantization_config()
        return QuantizationConfig(spec, spec, usual.weight, usual.bias)

    def shown(data, **options):
        def run(model):
            for part in ShardedBatchSampler(data, 32, **options):
                model(data[part])
        return run

    def scales(model):
        "All scales and zero points of a converted model, and its weights."
        found = {name: value.tolist() for name, value in model.state_dict().items()}
        for index, node in enumerate(model.graph.nodes):
            if "quantize_per_tensor" in str(node.target):
                found[f"{index} {node.target}"] = node.args[1:3]
        return found

    def right(model):
        with torch.no_grad():
            return int((model(test_x).argmax(1) == test_y).sum())

    ALONE = dict(num_replicas=1, rank=0)
    alone = [dist.new_group([each]) for each in range(world_size)][rank]
"""


@pytest.fixture(scope="module")
def ranks(start_shared: KernelFactory) -> Kernel:
    """Return a notebook with three ranks, which have data, a trained model and torchao."""
    kernel = start_shared()
    preload_without_trial(kernel, *IMPORTED)
    on_ranks(kernel, SETUP, "-np 3 --backend ddp", timeout=180)
    return kernel


def everywhere(kernel: Kernel, body: str, flags: str = "") -> list[str]:
    """Run a cell; return what the ranks print after ``=``, which must be the same on all."""
    on_ranks(kernel, body, flags, timeout=180)
    here, *others = (
        re.findall("^= (.*)", printed_by(kernel, rank), re.MULTILINE) for rank in (0, 1)
    )
    assert all(there == here for there in others)
    return here


@pytest.mark.parametrize(
    ("count", "size", "ranks"), [(397, 50, 3), (100, 10, 2), (2, 1, 3), (0, 4, 2), (5, 8, 2)]
)
def test_every_sample_is_dealt_out_once(count: int, size: int, ranks: int) -> None:
    data = range(count)
    shards = [
        ShardedBatchSampler(data, size, num_replicas=ranks, rank=rank) for rank in range(ranks)
    ]
    dealt = [batch for shard in shards for batch in shard]
    assert sorted(dealt) == list(ShardedBatchSampler(data, size, num_replicas=1, rank=0))
    assert sorted(index for batch in dealt for index in batch) == list(data)
    assert [len(shard) for shard in shards] == [len(list(shard)) for shard in shards]
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


def test_the_usual_sampler_repeats_samples() -> None:
    data = TensorDataset(torch.zeros(397))
    usual: list[DistributedSampler[Any]] = [
        DistributedSampler(data, 3, rank, shuffle=False) for rank in range(3)
    ]
    assert sum(map(len, usual)) == 399


def test_sizes_and_places_that_make_no_sense() -> None:
    with pytest.raises(ValueError, match="at least 1, not 0"):
        ShardedBatchSampler([1], 0)
    with pytest.raises(ValueError, match="from 0 to 1, not 2"):
        ShardedBatchSampler([1], 1, num_replicas=2, rank=2)


def test_a_sampler_is_of_the_process_that_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made_elsewhere = ShardedBatchSampler(range(10), 2)  # in the notebook, or on another rank
    assert len(list(made_elsewhere)) == 5
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert list(made_elsewhere) == [[2, 3], [8, 9]]
    assert (made_elsewhere.rank, made_elsewhere.num_replicas) == (1, 3)
    assert list(ShardedBatchSampler(range(10), 4, num_replicas=1, rank=0))[2] == [8, 9]


def test_evaluation_is_exact(ranks: Kernel) -> None:
    assert everywhere(
        ranks,
        """
        from torch.utils.data import DataLoader, TensorDataset
        from torchmetrics import MeanMetric
        from torchmetrics.classification import MulticlassAccuracy

        def evaluate(data, sync=True, **options):
            accuracy = MulticlassAccuracy(10, average="micro", sync_on_compute=sync)
            loss = MeanMetric(sync_on_compute=sync).set_dtype(torch.float64)
            loader = DataLoader(data, batch_sampler=ShardedBatchSampler(data, 32, **options))
            with torch.no_grad():
                for x, y in loader:
                    logits = model(x)
                    accuracy.update(logits, y)
                    loss.update(cross_entropy(logits, y, reduction="none"))
            return accuracy.compute().item(), loss.compute().item()

        test_set = TensorDataset(test_x, test_y)
        (acc, loss), (one_acc, one_loss) = evaluate(test_set), evaluate(test_set, False, **ALONE)
        print("=", acc == one_acc, round(acc * 397) == right(model), abs(loss - one_loss) < 1e-14)
        few = TensorDataset(test_x[:40], test_y[:40])  # two batches: rank 2 has none
        (acc, loss), (one_acc, one_loss) = evaluate(few), evaluate(few, False, **ALONE)
        print("=", acc == one_acc, abs(loss - one_loss) < 1e-14)
        """,
    ) == ["True True True", "True True"]


@pytest.mark.parametrize(
    "observer", ["HistogramObserver", "MinMaxObserver", "MovingAverageMinMaxObserver"]
)
def test_calibration_over_ranks(ranks: Kernel, observer: str) -> None:
    assert everywhere(
        ranks,
        f"""
        data = train_x[:400]  # 13 batches: rank 0 has 5, the others 4
        together, single, plain, apart = (prepared(config({observer})) for _ in range(4))
        calibrate(together, shown(data))
        calibrate(single, shown(data, **ALONE), process_group=alone)
        shown(data, **ALONE)(plain)  # torchao's own way, on one rank
        shown(data)(apart)
        together, single, plain, apart = map(convert_pt2e, (together, single, plain, apart))
        print("=", scales(together) == scales(single), right(together) == right(single))
        print("=", {observer} is HistogramObserver or scales(together) == scales(plain))
        print("=", abs(right(together) - right(plain)) <= 1)
        everyone = [None] * 3
        dist.all_gather_object(everyone, scales(apart))
        print("=", any(one == scales(single) for one in everyone))
        """,
    ) == ["True True", "True", "True", "False"]


def test_a_histogram_is_that_of_all_data_at_once(ranks: Kernel) -> None:
    assert everywhere(
        ranks,
        """
        net = torch.nn.Sequential(HistogramObserver(bins=64), nn.Identity())
        data = train_x[:400].clone()
        data[:32] *= 3  # rank 0 alone sees the widest range
        calibrate(net, shown(data))
        reference = HistogramObserver(bins=64)
        reference(data)
        print("=", torch.equal(net[0].histogram, reference.histogram))
        print("=", net[0].calculate_qparams() == reference.calculate_qparams())
        # Only infinities on rank 1, an empty tensor on rank 2: only what is finite counts.
        odd = [[1.0, 2.0, -torch.inf], [torch.inf], []][rank]
        calibrate(net, lambda model: model(torch.tensor(odd)))
        print("=", net[0].min_val.item(), net[0].max_val.item(), int(net[0].histogram.sum()))
        """,
    ) == ["True", "True", "1.0 2.0 2"]


def test_observers_of_torchs_own_older_library(ranks: Kernel) -> None:
    assert everywhere(
        ranks,
        """
        from torch.ao.quantization import observer
        kinds = observer.MinMaxObserver, observer.HistogramObserver, observer.NoopObserver
        net = nn.Sequential(*(kind() for kind in kinds))
        calibrate(net, shown(train_x[:400]))
        for combined, kind in zip(net, kinds[:2]):
            reference = kind()
            reference(train_x[:400])
            print("=", combined.calculate_qparams() == reference.calculate_qparams())
        """,
    ) == ["True", "True"]


def test_observers_of_several_kinds_stand_side_by_side(ranks: Kernel) -> None:
    assert everywhere(
        ranks,
        """
        def mixed():
            return nn.Sequential(MovingAverageMinMaxObserver(), HistogramObserver())

        together, single = mixed(), mixed()
        calibrate(together, shown(train_x[:400]))
        calibrate(single, shown(train_x[:400], **ALONE), process_group=alone)
        usual = MovingAverageMinMaxObserver()
        shown(train_x[:400], **ALONE)(usual)
        for one in single[0], usual:
            print("=", together[0].calculate_qparams() == one.calculate_qparams())
        print("=", together[1].calculate_qparams() == single[1].calculate_qparams())
        """,
    ) == ["True", "True", "True"]


def test_ranks_that_have_no_group_do_not_calibrate_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="rank 1 of 2, but the ranks have not formed a process"):
        calibrate(nn.Identity(), nn.Module.eval)


def test_a_rank_without_data_has_what_others_saw(ranks: Kernel) -> None:
    assert everywhere(
        ranks,
        """
        together, single = prepared(), prepared()
        calibrate(together, shown(train_x[:20]))
        calibrate(single, shown(train_x[:20], **ALONE), process_group=alone)
        print("=", scales(convert_pt2e(together)) == scales(convert_pt2e(single)))
        """,
    ) == ["True"]


FRESH = """
extremes, histogram, fake = (
    nn.Sequential(kind()) for kind in (MinMaxObserver, HistogramObserver, FakeQuantize)
)
"""
WRONG = {
    "calibrate(prepared(), lambda model: None)": "no rank has shown the model any calibration data",
    "calibrate(model, shown(train_x))": "the model has no observers: prepare it first",
    "once = iter([train_x[:8]]); calibrate(histogram, lambda model: [model(x) for x in once])": (
        "rank 0's run_fn showed `0` 512 values when it was first called and 0 the second time"
    ),
    "calibrate(extremes if rank else histogram, shown(train_x))": (
        "rank 1 has other observers than rank 0"
    ),
    "calibrate(fake if rank == 1 else extremes, shown(train_x))": "over ranks: 0 (FakeQuantize)",
    "calibrate(nn.Sequential(MinMaxObserver(), nn.PReLU(init=float(rank))), shown(train_x))": (
        "rank 1 has other weights than rank 0"
    ),
    "calibrate(extremes, lambda model: model(0 / torch.tensor(rank - 1.0)))": (
        "rank 1 has shown the model data that give NaN at `0`"
    ),
    "only = dist.new_group([1]); calibrate(extremes, shown(train_x), process_group=only)": (
        "this rank is not a member of process_group, and only members may call this"
    ),
    "calibrate(nn.Sequential(HistogramObserver(bins=64 * (1 + rank))), shown(train_x))": (
        "bins=64] and [0 HistogramObserver"
    ),
    "net = nn.Sequential(FakeQuantize(PerChannelMinMaxObserver, ch_axis=0)); "
    "sync_fake_quantize(net)(torch.ones(2 + rank, 1))": (
        "rank 0 is at the range `0` of float32 (2, 2), and rank 1 at the range `0` of float32 (2, "
        "3). Nothing was combined"
    ),
    "net = nn.Sequential(*[FakeQuantize(MinMaxObserver), nn.ReLU()][::1 - 2 * (rank == 2)]); "
    "sync_fake_quantize(net)(torch.ones(2))": (
        "rank 0 is at the range `0` of float32 (2,), and rank 2 at the range `1` of float32 (2,)"
    ),
    "sync_fake_quantize(prepared())": "could be synchronised: there is none",
    "sync_fake_quantize(nn.Sequential(FakeQuantize(HistogramObserver)))": (
        "0 (FakeQuantize of HistogramObserver)"
    ),
}


@pytest.mark.parametrize(("line", "told"), WRONG.items())
def test_what_cannot_be_combined_is_said(ranks: Kernel, line: str, told: str) -> None:
    cell = fails(ranks, f"{FRESH}{line}")
    assert told in shown(cell)
    assert "UsageError" in shown(cell)


def test_training_over_ranks(ranks: Kernel) -> None:
    """The same global batches, on three ranks under DDP and on one: the same model."""
    assert everywhere(
        ranks,
        """
        from torch.nn.parallel import DistributedDataParallel
        from torchao.quantization.pt2e import disable_observer, move_exported_model_to_eval
        qat = get_default_x86_inductor_quantization_config(is_qat=True)

        def train(sync, group=None, ddp=True):
            net = prepared(qat, prepare_qat_pt2e)
            if sync:
                assert sync_fake_quantize(net, process_group=group) is net
            wrapped = DistributedDataParallel(net) if ddp else net
            optimizer = torch.optim.SGD(net.parameters(), 0.01)
            order = torch.randperm(1400, generator=torch.Generator().manual_seed(9))
            for part in order.split(90)[:8]:
                part = part[rank::world_size] if ddp else part
                loss = cross_entropy(wrapped(train_x[part]), train_y[part])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            if sync and ddp:  # takes long, and this net has no layer that it would change
                move_exported_model_to_eval(net)
            return convert_pt2e(copy.deepcopy(net))

        def zone(net):
            "How far each activation's range reaches, before rounding."
            return torch.tensor([value[0] for name, value in scales(net).items() if " " in name])

        together, single, apart = train(True), train(True, alone, ddp=False), train(False)
        print("=", torch.allclose(zone(together), zone(single), rtol=1e-4))
        print("=", torch.allclose(zone(apart), zone(single), rtol=1e-3))
        print("=", abs(right(together) - right(single)) <= 1, right(together) > 350)
        """,
    ) == ["True", "False", "True True"]


def test_neural_compressor(ranks: Kernel) -> None:
    if find_spec("neural_compressor") is None:
        pytest.skip("needs neural-compressor-pt, which wants Python 3.11")
    assert everywhere(
        ranks,
        """
        from neural_compressor.torch.export import export
        from neural_compressor.torch.quantization import (
            convert, get_default_static_config, prepare,
        )

        def compressed():
            dynamic = ({0: torch.export.Dim("batch")},)
            exported = export(model, (train_x[:2],), dynamic_shapes=dynamic)
            return prepare(exported, get_default_static_config())

        together, single = compressed(), compressed()
        calibrate(together, shown(train_x[:400]))
        calibrate(single, shown(train_x[:400], **ALONE), process_group=alone)
        together, single = convert(together), convert(single)
        print("=", scales(together) == scales(single), right(together) == right(single))
        print("=", abs(right(together) - right(model)) < 8)
        """,
    ) == ["True True", "True"]


@pytest.mark.horovod
def test_over_horovod(kernel: Kernel) -> None:
    preload_without_trial(kernel, "torch._dynamo", "torchao.quantization.pt2e")
    flags = "-np 2 --backend horovod --launcher engines"
    assert everywhere(
        kernel,
        """
        import torch
        from torch import nn
        from torchao.quantization.pt2e import (
            FusedMovingAvgObsFakeQuantize, HistogramObserver, PerChannelMinMaxObserver,
        )
        from nbdist.evaluation import ShardedBatchSampler
        from nbdist.quantization import calibrate, sync_fake_quantize

        def run(model, **options):
            for part in ShardedBatchSampler(data, 4, **options):
                model(data[part])

        data = torch.randn(18, 6, generator=torch.Generator().manual_seed(0))
        net = nn.Sequential(HistogramObserver(), PerChannelMinMaxObserver(ch_axis=1))
        calibrate(net, run)
        one = nn.Sequential(HistogramObserver(), PerChannelMinMaxObserver(ch_axis=1))
        one(data)
        print("=", all(torch.equal(one.state_dict()[n], v) for n, v in net.state_dict().items()))

        nets = [nn.Sequential(FusedMovingAvgObsFakeQuantize()) for _ in range(2)]
        sync_fake_quantize(nets[0])
        for part in data.split(6):
            nets[0](part[rank::2])
            nets[1](part)
        print("=", torch.equal(nets[0][0].scale, nets[1][0].scale))
        print("=", torch.equal(nets[0][0].zero_point, nets[1][0].zero_point))
        """,
        flags,
    ) == ["True", "True", "True"]
