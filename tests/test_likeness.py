"""What tells whether the notebook and a rank have equal values under one name."""

from __future__ import annotations

import array
import collections
import functools
import random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from nbdist.rank.looking.likeness import alike, likeness

if TYPE_CHECKING:
    from collections.abc import Callable


class Holder:
    """A user's class, as cells define it."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def method(self) -> Any:
        """Return what is held."""
        return self.held


class Rows(list):  # type: ignore[type-arg]
    """A list that is a user's class."""


class Slots:
    """A user's class without attributes of the usual kind."""

    __slots__ = ("held",)

    def __init__(self, held: Any) -> None:
        self.held = held


class Settings(dict):  # type: ignore[type-arg]
    """A dict that is a user's class."""


class AlsoAttributes(Slots):
    """A class whose objects have both kinds of attributes."""


for own in (Holder, Rows, Slots, Settings, AlsoAttributes):
    own.__module__ = "__main__"


def counting(number: int) -> Callable[[], None]:
    """Return a function of a cell, with an attribute."""

    def count() -> None:
        pass

    count.__module__, count.calls = "__main__", number  # type: ignore[attr-defined]
    return count


def closure(number: int) -> Callable[[], int]:
    """Return a function of a cell that holds a variable of another one."""

    def inner() -> int:
        return number

    inner.__module__ = "__main__"
    return inner


def with_settings(held: object) -> Any:
    """Return a model with an attribute."""
    model: Any = torch.nn.Identity()
    model.settings = held
    return model


def own_attributes(number: int) -> Settings:
    """Return a dict that is its own `__dict__`."""
    made = Settings(lr=number)
    made.__dict__ = made
    return made


MAKES: dict[str, Callable[[int], Any]] = {
    "partial": lambda n: functools.partial(print, {"lr": n}),
    "partial inside": lambda n: Holder(functools.partial(print, n)),
    "object": Holder,
    "list of a class": lambda n: Rows([n]),
    "slots": Slots,
    "slots and attributes": AlsoAttributes,
    "method": lambda n: Holder(n).method,
    "method of a list": lambda n: [n].append,
    "function with attributes": counting,
    "closure": closure,
    "namespace": lambda n: SimpleNamespace(lr=n),
    "default dict": lambda n: collections.defaultdict(list, {1: n}),
    "counter": lambda n: collections.Counter("a" * n),
    "deque": lambda n: collections.deque([n]),
    "array": lambda n: array.array("i", [n]),
    "bytearray": lambda n: bytearray([n]),
    "layer": lambda n: [torch.nn.ReLU, torch.nn.Tanh][n % 2](),
    "layers": lambda n: torch.nn.Sequential([torch.nn.ReLU, torch.nn.Tanh][n % 2]()),
    "layer inside": lambda n: {"act": [torch.nn.ReLU, torch.nn.Tanh][n % 2]()},
    "settings of a layer": torch.nn.AvgPool1d,
    "names of layers": lambda n: torch.nn.ModuleDict({str(n): torch.nn.ReLU()}),
    "settings of a model": lambda n: with_settings(Holder([n])),
    "decorated": lambda n: [torch.no_grad(), torch.enable_grad()][n % 2](closure(1)),
    "its own attributes": own_attributes,
    "generator of random numbers": random.Random,
    "NumPy array": lambda n: np.full(2, n),
    "NumPy number": np.float64,
    "size": lambda n: torch.Size([n]),
    "device": lambda n: torch.device("cuda", n),
    "tensor": lambda n: torch.ones(2) * n,
}


@pytest.mark.parametrize("compare", [likeness, alike])
@pytest.mark.parametrize("kind", MAKES)
def test_only_equal_values_are_alike(kind: str, compare: Callable[[Any], str]) -> None:
    one, same, other = (compare(MAKES[kind](number)) for number in (1, 1, 2))
    assert one == same != other
    assert one


@pytest.mark.parametrize("value", [iter([1]), Exception(1), Holder(iter([1]))])
def test_what_cannot_be_compared_is_not_decided(value: object) -> None:
    assert likeness(value) == alike(value) == ""
