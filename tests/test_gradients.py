"""Gradients that are sent by themselves, for the parameters inside of a value."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from nbdist.rank.values.gradients import Gradients


def test_they_are_put_only_into_as_many_parameters() -> None:
    here: dict[str, Any] = {"net": nn.Linear(2, 1), "rate": torch.ones(1, requires_grad=True)}
    here["rate"].grad = torch.full((1,), 3.0)
    found = Gradients.of(here)
    assert not found.fits({"net": nn.Linear(2, 1, bias=False), "rate": here["rate"]})
    there: dict[str, Any] = {"net": nn.Linear(2, 1), "rate": torch.ones(1, requires_grad=True)}
    assert found.fits(there)
    found.give_to(there)
    assert torch.equal(there["rate"].grad, torch.full((1,), 3.0))
    assert there["net"].weight.grad is None
