"""What is compared between ranks, and the ways to it: in this process alone."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from nbdist.backends.choice import check_torch
from nbdist.backends.horovod import engine_ranks
from nbdist.backends.models.equality import Comparing, digest, fold_words, leaves
from nbdist.backends.models.trained_objects import trained
from nbdist.backends.models.variable_paths import at, has
from nbdist.errors import LaunchError, UsageError
from nbdist.machine import sockets
from tests.helpers.waiting import within

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def coded(step: float = 0.1, value: float = 1.0) -> torch.Tensor:
    return torch.quantize_per_tensor(torch.full((3,), value), step, 0, torch.qint8)


def coded_by_row(step: float = 0.1, zero: int = 0) -> torch.Tensor:
    steps, zeros = torch.tensor([step, 0.2]), torch.tensor([zero, 0])
    return torch.quantize_per_channel(torch.zeros(2, 3), steps, zeros, 0, torch.qint8)


class Pair(torch.Tensor):
    """Consists of two, as quantized and distributed kinds do."""

    first: torch.Tensor
    second: torch.Tensor

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        """Name its parts."""
        return ["first", "second"], None


def pair(first: float, second: float) -> torch.Tensor:
    made = torch.zeros(2).as_subclass(Pair)
    made.first, made.second = torch.full((2,), first), torch.full((2,), second)
    return made


OTHERS: dict[str, tuple[Callable[[], torch.Tensor], list[Callable[[], torch.Tensor]]]] = {
    "quantized": (coded, [lambda: coded(0.2, 2.0), lambda: coded(0.1, 2.0)]),
    "quantized by row": (coded_by_row, [lambda: coded_by_row(0.3), lambda: coded_by_row(zero=1)]),
    "complex": (
        lambda: torch.tensor([1 + 2j]),
        [lambda: torch.tensor([1 + 3j]), lambda: torch.tensor([1 + 2j]).conj()],
    ),
    "negated": (
        lambda: torch.tensor([1 + 2j]).conj().imag,
        [lambda: torch.tensor([2.0]), lambda: torch.tensor([-3.0])],
    ),
    "of several": (
        lambda: pair(1, 0),
        [lambda: pair(1, 1), lambda: pair(0, 0)],
    ),
}


MIXED: dict[str, Callable[[], torch.Tensor]] = {
    "masks": lambda: 1.0 * (torch.randperm(800) < 400),
    "bools": lambda: torch.randperm(800) < 400,
    "signs": lambda: (torch.randperm(800) < 400).double() * 2 - 1,
    "numbers": lambda: torch.randperm(1001),
    "one-hot rows": lambda: torch.eye(61)[torch.randperm(61)],
    "rows": lambda: torch.arange(81920).view(10, 8192)[torch.randperm(10)],
    "halves": lambda: torch.arange(255).bfloat16()[torch.randperm(255)],
}


@pytest.mark.parametrize("kind", MIXED)
def test_the_same_values_in_another_order_are_another_tensor(kind: str) -> None:
    torch.manual_seed(0)
    made = [MIXED[kind]() for _ in range(20)]
    folds = [fold_words(one.contiguous().reshape(-1).view(torch.uint8)).tolist() for one in made]
    for found in [digest(one) for one in made], list(map(str, folds)):
        assert len(set(found)) == 20
    assert digest(made[0].clone()) == digest(made[0])
    # A part of a tensor may begin anywhere.
    octets = made[0].reshape(-1).view(torch.uint8)
    assert fold_words(torch.cat([octets[:3], octets])[3:]).tolist() == folds[0]


@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.filterwarnings("ignore:torch.quantize_per:UserWarning")
def test_tensors_of_odd_kinds_are_compared_by_all_that_is_in_them(kind: str) -> None:
    make, others = OTHERS[kind]
    told = [Comparing().digest(each()) for each in (make, make, *others)]
    assert [one.why for one in told] == [""] * len(told)
    assert told[0] == told[1]
    assert len({one.content for one in told}) == 1 + len(others)
    assert digest(make()) == digest(make()) != digest(others[0]())


def test_a_tensor_that_was_compared_can_be_resized() -> None:
    tensor = torch.ones(2)
    assert digest(tensor)
    assert len(tensor.resize_(100)) == 100


class Odd(torch.Tensor):
    """A kind that nobody knows."""


def given_back() -> torch.nn.Module:
    model = torch.nn.Linear(2, 2)
    model.weight.untyped_storage().resize_(0)
    return model


def sparse_by_rows() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # in beta
        return torch.eye(2).to_sparse_csr()


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: torch.ones(2).as_subclass(Odd), "tensors of type Odd cannot be compared"),
        (sparse_by_rows, "tensors with the layout torch.sparse_csr cannot be compared"),
        (given_back, "the memory of its parameters was freed"),
    ],
    ids=["kind", "layout", "memory"],
)
def test_what_may_not_be_read_is_told_with_its_reason(make: Callable[[], Any], why: str) -> None:
    assert Comparing().digest(make()).why == why
    assert digest(make()) is None


def test_of_an_optimizers_state_numbers_and_tensors_are_compared() -> None:
    state = {"lr": 0.1, "who": object(), "steps": [torch.ones(1), len]}
    found = leaves(SimpleNamespace(state_dict=lambda: state))
    assert [name for name, _ in found] == ["['lr']", "['steps'][0]"]


class Proxy:
    """Has another thing where attributes are looked for."""

    __dict__ = 5  # type: ignore[assignment]
    __slots__ = ()


class Closed(torch.Tensor):
    """Says nothing of itself."""

    @property
    def requires_grad(self) -> bool:  # type: ignore[override]
        """Fail."""
        raise RuntimeError


def test_what_is_trained_is_found_where_a_path_can_lead_and_nothing_else_fails() -> None:
    model, hidden = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    holder = SimpleNamespace(model=model, **{"not a name": hidden})
    found = trained({"a": Proxy(), "b": torch.ones(1).as_subclass(Closed), "c": holder})
    assert found == {"c.model": model}
    assert all(has({"c": holder}, path) for path in found)


@pytest.mark.parametrize("path", ["f()", "a + a", "a[f]", "a.b", "a[1]", "b", "a[", "[a]"])
def test_a_path_that_leads_nowhere_is_refused_and_runs_nothing(path: str) -> None:
    ran: list[int] = []
    namespace = {"f": lambda: ran.append(1), "a": [None]}
    assert not has(namespace, path)
    with pytest.raises(UsageError, match="there is no variable `"):
        at(namespace, path)
    assert not ran


def test_without_torch_what_else_there_is_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for parts, told in (([], False), (["torch"], False), (["tensorflow"], True)):
        monkeypatch.setattr(engine_ranks, "parts", lambda parts=parts: parts)
        with pytest.raises(LaunchError, match="needs PyTorch") as caught:
            check_torch("")
        assert ("Or use --backend horovod" in str(caught.value)) == told
    check_torch("2.9")


def test_what_horovod_lacks_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(engine_ranks.FRAMEWORK, raising=False)
    monkeypatch.setattr(engine_ranks, "MODULES", {"nothing": "Nothing", "torch": "Torch"})
    monkeypatch.setattr(engine_ranks, "parts", lambda: ["nothing"])
    why = "horovod.nothing: No module named 'nothing'; horovod.torch: Horovod was built without it"
    with pytest.raises(UsageError) as caught:
        engine_ranks.framework()
    assert f"cannot be imported here ({why})" in str(caught.value)
    monkeypatch.setenv(engine_ranks.FRAMEWORK, "mxnet")
    with pytest.raises(UsageError, match="NBDIST_HOROVOD=mxnet is none of nothing, torch"):
        engine_ranks.framework()


def test_an_address_of_another_machine_has_no_interface_here() -> None:
    assert sockets.interface_of(sockets.LOOPBACK)
    assert sockets.interface_of("192.0.2.1") == ""


def test_where_listeners_cannot_be_seen_nobody_waits_for_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sockets, "_TABLES", (tmp_path / "tcp",))
    with within(20), sockets.reserve() as nobody:
        sockets.until_listening(nobody.getsockname()[1], 600)
