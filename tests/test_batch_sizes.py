"""How many samples a batch has: as many as the sampler says, or nobody knows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

from nbdist.loops import transformers as transformers_loop
from nbdist.rank.metrics import progress
from nbdist.rank.metrics.batch_sizes import Pass, at

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

torch = pytest.importorskip("torch")
data = torch.utils.data
VECTORS = [torch.zeros(100)] * 80
UNKNOWN = None


class OfOwnSizes:
    """A batch sampler that draws when it is asked for its iterator, not later."""

    def __iter__(self) -> Iterator[list[int]]:
        drawn = torch.randint(0, 80, (6,)).tolist()
        return iter([drawn[:1], drawn[1:4], drawn[4:]])

    def __len__(self) -> int:
        return 3


class Stream(data.IterableDataset):  # type: ignore[name-defined]  # `data` is no module to mypy
    """Ten samples without indices."""

    def __iter__(self) -> Iterator[Any]:
        return iter([(torch.zeros(3), 1)] * 10)


def counted(batches: Iterable[Any]) -> list[int | None]:
    """Return the samples in each batch of one pass, None where they are unknown."""
    run = Pass(batches)
    found = [_told(run.samples(batch)) for batch in run.items]
    run.close()
    return found


def _told(samples: float) -> int | None:
    return None if math.isnan(samples) else int(samples)


def detection(samples: list[Any]) -> Any:
    """Collate as torchvision's references do: a tuple of pictures, a tuple of targets."""
    return tuple(zip(*samples, strict=True))


PICTURES = [(torch.zeros(3, 8, 5 + i), {"boxes": torch.zeros(5, 4)}) for i in range(5)]


@pytest.mark.parametrize(
    ("given", "samples"),
    [
        ({"dataset": VECTORS, "batch_size": 32, "collate_fn": list}, [32, 32, 16]),
        ({"dataset": VECTORS, "batch_size": 32, "drop_last": True}, [32, 32]),
        ({"dataset": PICTURES, "batch_size": 2, "collate_fn": detection}, [2, 2, 1]),
        ({"dataset": ["a", "bc", "d"], "batch_size": 2}, [2, 1]),
        ({"dataset": [1, 2, 3], "batch_size": 2, "collate_fn": sum}, [2, 1]),
        (
            {"dataset": VECTORS, "batch_size": 32, "sampler": data.SubsetRandomSampler(range(40))},
            [32, 8],
        ),
        (
            {
                "dataset": data.TensorDataset(torch.zeros(10, 3)), "batch_size": None,
                "sampler": data.BatchSampler(data.SequentialSampler(range(10)), 4, False),
            },
            [4, 4, 2],
        ),
        # The dataset makes its batches, or each item is a sample.
        (
            {"dataset": [(torch.zeros(4, 2), torch.zeros(4))] * 2, "batch_size": None},
            [4, 4],
        ),
        ({"dataset": VECTORS[:2], "batch_size": None}, [UNKNOWN, UNKNOWN]),
        # A stream's sampler only says how many samples are wanted.
        ({"dataset": Stream(), "batch_size": 4}, [4, 4, 2]),
        ({"dataset": Stream(), "batch_size": 4, "collate_fn": list}, [UNKNOWN] * 3),
        (
            {"dataset": Stream(), "batch_size": 4, "collate_fn": list, "drop_last": True},
            [4, 4],
        ),
    ],
)  # fmt: skip
def test_a_batch_has_as_many_samples_as_the_sampler_says(
    given: dict[str, Any], samples: list[int | None]
) -> None:
    loader = data.DataLoader(**given)
    assert counted(loader) == samples
    others = loader.batch_sampler is not None
    if others:  # a loop of a library is only told of its batches
        found = [_told(at(loader, place, batch)) for place, batch in enumerate(loader)]
        assert found == samples


@pytest.mark.starts_processes
@pytest.mark.parametrize("stay", [False, True])
def test_batches_that_workers_read_ahead_keep_their_sizes(*, stay: bool) -> None:
    loader = data.DataLoader(
        VECTORS, batch_sampler=OfOwnSizes(), collate_fn=list, num_workers=2,
        persistent_workers=stay,
    )  # fmt: skip
    own = loader.batch_sampler
    run = Pass(loader)
    assert run.samples(next(run.items)) == 1
    run.close()  # a loop that is left
    del run
    for _ in range(2):
        assert counted(loader) == [1, 3, 2]
        assert len(list(loader)) == 3
    assert loader.batch_sampler is own


def test_a_loader_draws_the_same_random_numbers() -> None:
    drawn = []
    for way in (iter, lambda loader: Pass(loader).items):
        torch.manual_seed(5)
        loader = data.DataLoader(range(80), batch_sampler=OfOwnSizes())
        batches = [batch.tolist() for batch in way(loader)]
        drawn.append((batches, torch.rand(1).item()))
    assert drawn[0] == drawn[1]


def test_two_passes_over_one_loader_at_once() -> None:
    loader = data.DataLoader(VECTORS[:5], batch_size=2, collate_fn=list)
    ahead, behind = Pass(loader), Pass(loader)
    next(ahead.items)
    assert ahead.samples(None) == 2
    both = [(_told(ahead.samples(next(ahead.items))), behind.samples(next(behind.items)))]
    both.append((_told(ahead.samples(next(ahead.items))), behind.samples(next(behind.items))))
    assert both == [(2, 2), (1, 2)]


class Odd:
    """What some tensors of torch's do when they are asked for what they lack."""

    @property
    def shape(self) -> Any:
        """Raise."""
        raise RuntimeError("shape is not defined for this layout")


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        ((torch.zeros(5, 3, 8, 8), torch.zeros(5)), 5),
        ({"x": torch.zeros(6, 2), "y": torch.zeros(6, 2), "id": list("abcdef")}, 6),
        ({"id": ["a", "b"], "x": torch.zeros(6, 2)}, UNKNOWN),
        ([torch.zeros(3, 8, 9), torch.zeros(3, 9, 8)], UNKNOWN),  # two pictures
        ([torch.zeros(7)] * 2, UNKNOWN),
        (detection(PICTURES), UNKNOWN),
        (torch.zeros(100), UNKNOWN),
        ((torch.zeros(3, 8, 8), 1), UNKNOWN),  # a sample and its label
        ({"ids": torch.zeros(128), "mask": torch.zeros(128)}, UNKNOWN),  # a text
        ((torch.zeros(5, 2), torch.zeros(5), torch.tensor(1.0)), UNKNOWN),
        ((torch.zeros(5, 2), torch.zeros(4)), UNKNOWN),
        ((3, (torch.zeros(4, 2), torch.zeros(4))), UNKNOWN),
        (Odd(), UNKNOWN),
        ("text", UNKNOWN),
        ([], UNKNOWN),
    ],
)
def test_batches_of_other_iterables_are_counted_only_if_they_are_clear(
    batch: Any, samples: int | None
) -> None:
    assert counted([batch]) == [samples]
    assert counted(enumerate([batch])) == [samples]


def test_one_unknown_batch_makes_the_samples_of_a_loop_unknown() -> None:
    progress.end()
    clear = torch.zeros(5, 2), torch.zeros(5)
    for _ in progress.progress([clear] * 3 + [detection(PICTURES)]):
        pass
    (bar,) = progress.end()
    assert bar.rate is not None
    assert bar.samples is None


def test_a_loop_that_is_left_counts_the_samples_of_its_steps() -> None:
    progress.end()
    for place, _ in enumerate(progress.progress(data.DataLoader(VECTORS, 8, collate_fn=list))):
        if place == 2:
            break
    (bar,) = progress.end()
    assert (bar.done, bar.over) == (2, True)
    assert bar.rate is not None
    assert bar.samples == pytest.approx(8 * bar.rate)


def test_loaders_of_accelerate() -> None:
    accelerate = pytest.importorskip("accelerate.data_loader")
    whole = data.DataLoader(VECTORS[:10], batch_size=3, collate_fn=list)
    alone = accelerate.prepare_data_loader(whole, num_processes=1, process_index=0)
    assert counted(alone) == [3, 3, 3, 1]
    assert [at(alone, place) for place in range(4)] == [3, 3, 3, 1]
    second = accelerate.prepare_data_loader(whole, num_processes=2, process_index=1)
    assert counted(second) == [3, 3] == [at(second, place) for place in range(2)]
    uneven = accelerate.prepare_data_loader(
        whole, num_processes=2, process_index=1, even_batches=False
    )
    assert counted(uneven) == [3, 1]
    assert math.isnan(at(uneven, 0))


def test_a_step_of_several_batches_ends_with_the_epoch() -> None:
    pytest.importorskip("transformers")
    loader = data.DataLoader(VECTORS[:10], batch_size=3, collate_fn=list)
    found = [transformers_loop._samples(loader, step, 3) for step in (1, 2, 3, 4)]
    assert found == [9, 1, 9, 1]
    assert math.isnan(transformers_loop._samples(iter([]), 1, 3))
