"""Checksums by which changes of tensors are noticed that torch does not count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from nbdist.rank.values import checksums
from nbdist.rank.values.checksums import Checksums
from nbdist.rank.values.contents import contents

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(params=["whole", "sampled"])
def extent(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "sampled":
        monkeypatch.setattr(checksums, "MOST_SUMMED", 0)


MAKE: dict[str, Callable[[], torch.Tensor]] = {
    "flat": lambda: torch.ones(6),
    "one number": lambda: torch.tensor(1.0),
    "turned": lambda: torch.ones(3, 2).t(),
    "stripes": lambda: torch.ones(6, 4)[::2, 1:3],
    "expanded": lambda: torch.ones(2, 1).expand(2, 3),
    "channels last": lambda: torch.ones(1, 2, 2, 2).to(memory_format=torch.channels_last),
    "bfloat16": lambda: torch.ones(3, dtype=torch.bfloat16),
    "complex": lambda: torch.ones(3, dtype=torch.complex64).conj(),
    "bool": lambda: torch.zeros(3, dtype=torch.bool),
    "parameter": lambda: torch.nn.Parameter(torch.ones(3)),
    "inference": lambda: torch.inference_mode()(torch.ones)(3),
}


@pytest.mark.usefixtures("extent")
@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
def test_each_element_of_each_kind_counts(make: Callable[[], torch.Tensor]) -> None:
    tensor = make()
    before = Checksums().of_tensor(tensor)
    assert before == Checksums().of_tensor(tensor) != 0
    with torch.inference_mode():
        last = tensor.detach()[(-1,) * tensor.dim()]
        last.copy_(last.logical_not() if tensor.dtype is torch.bool else -last)
    assert Checksums().of_tensor(tensor) != before


def test_what_is_beside_a_view_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksums, "MOST_SUMMED", 0)
    whole = torch.zeros(4, 4)
    before = Checksums().of_tensor(whole[:, :2])
    whole[:, 2:] = 1
    assert Checksums().of_tensor(whole[:, :2]) == before


def test_tensors_without_memory_are_left_alone() -> None:
    freed = torch.ones(4)
    freed.untyped_storage().resize_(0)
    nothing: list[Any] = [
        freed, torch.ones(2, device="meta"), torch.ones(0), torch.eye(2).to_sparse(),
        torch.nn.parameter.UninitializedParameter(),
    ]  # fmt: skip
    assert [Checksums().of_tensor(each) for each in nothing] == [0] * len(nothing)


def test_a_tensor_that_was_read_can_be_resized() -> None:
    tensor = torch.ones(4)
    assert Checksums().of_tensor(tensor)
    assert len(tensor.resize_(100)) == 100


def test_no_more_is_read_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checksums, "MOST_SUMMED", 16_000)
    monkeypatch.setattr(checksums, "SAMPLES", 10)
    values = [np.zeros(1500), np.zeros(1500)]
    seen = contents(values)
    assert seen is not None
    values[1][0] = values[1][1] = 1  # of the second array a sample is read, with the first element
    assert not seen.same(values)
    values[1][0] = 0
    assert seen.same(values), "the guide says so"
    values[0][1] = 1
    assert not seen.same(values)
