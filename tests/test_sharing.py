"""What shares memory in the notebook shares it wherever it is brought; gradients travel."""

from __future__ import annotations

import gc
import io
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from numpy.lib.stride_tricks import sliding_window_view

from nbdist.backends.models.gradients import Gradients
from nbdist.cell.script.value_files import Packer
from nbdist.rank.values.parcels import Packing, unpack
from nbdist.rank.values.shared_parts import Parts
from nbdist.wire.shared_memory import Blocks

LARGE = np.arange(100_000.0)
RECORDS = np.zeros(3, dtype=[("x", "i4"), ("y", "f8")])
HELD = np.zeros(3, dtype=[("x", "f8"), ("held", "O")])
OBJECTS = np.array([1, [2], None, "a"], object)
TURNED = np.asfortranarray(np.array([[1, "b"], [2, "c"]], object))
TABLE = np.arange(12.0).reshape(3, 4)
MASK = np.array([True, False, False, True])
MASKED: Any = np.ma.array(TABLE[0], mask=MASK, copy=False)
FIXED = TABLE[:]
FIXED.flags.writeable = False
OCTETS = bytearray(16)
GROUPS: dict[str, list[Any]] = {
    "an array and its slices": [TABLE, TABLE[:2], TABLE[::-1, ::-2], TABLE.T, TABLE[1, 1, ...]],
    "a slice first": [TABLE[:2], TABLE],
    "slices without their array": [LARGE[10:30], LARGE[20:40]],
    "a large array": [LARGE, LARGE[10:20], LARGE[50_000:]],
    "columns": [TABLE[:, 0], TABLE[:, 1]],
    "rows": list(TABLE),
    "repeated rows": [np.broadcast_to(TABLE[0], (5, 4)), TABLE],
    "windows": [sliding_window_view(TABLE[0], 2), TABLE],
    "read-only views": [TABLE, FIXED, TABLE[1:]],
    "fields": [RECORDS, RECORDS["x"], RECORDS["y"]],
    "objects": [OBJECTS, OBJECTS[1:3], OBJECTS[::-1]],
    "fields of objects": [HELD, HELD["x"], HELD["held"]],
    "objects by columns": [TURNED, TURNED[0]],
    "matrices": [TABLE.view(np.matrix), TABLE],
    "records": [np.rec.array(RECORDS, copy=False), RECORDS],
    "masked arrays": [MASKED, TABLE[0], MASKED[1:], MASK],
    "arrays over one buffer": [np.frombuffer(OCTETS), np.frombuffer(OCTETS, offset=8), OCTETS],
    "dates": [dates := np.array(["2020-01-01"] * 3, "M8[D]"), dates[1:]],
    "nothing": [np.zeros((0, 3)), np.zeros((0, 3))[:]],
    "tensors and arrays": [torch.from_numpy(TABLE), TABLE, torch.from_numpy(TABLE[1:]).numpy()],
}


def brought(values: dict[str, Any]) -> dict[str, Any]:
    """Return values as another process would have them."""
    parts, blocks = Parts(), Blocks()
    for name, value in values.items():
        Packing(0, parts, trial=True).add(name, value)
    packing = Packing(0, parts)
    for name, value in values.items():
        packing.add(name, value)
    try:
        return dict(unpack(packing.close(blocks, {})))
    finally:
        blocks.close()


def memory_of(value: Any) -> Any:
    """Return an array over the memory of an array or a tensor."""
    return value.numpy() if isinstance(value, torch.Tensor) else np.asarray(value)


@pytest.mark.parametrize("group", GROUPS.values(), ids=GROUPS)
def test_arrays_that_share_memory_share_it_elsewhere(group: list[Any]) -> None:
    found = brought({str(number): value for number, value in enumerate(group)})
    pairs = list(zip(group, found.values(), strict=True))
    for mine, there in pairs:
        assert type(there) is type(mine)
        assert repr(there) == repr(mine)
        if isinstance(mine, np.ndarray):
            assert there.dtype == mine.dtype
            assert there.flags.writeable == mine.flags.writeable
            assert not np.shares_memory(mine, there)
        for other, other_there in pairs:
            shared = np.shares_memory(memory_of(mine), memory_of(other))
            if type(other) is not bytearray is not type(mine):
                assert np.shares_memory(memory_of(there), memory_of(other_there)) == shared
    if isinstance(group[0], np.ma.MaskedArray):
        found["2"].mask[0] = True
        assert found["0"].mask.tolist() == [True, True, False, True], "also the mask"


def test_a_small_view_does_not_bring_a_large_array() -> None:
    found = brought({"part": LARGE[10:20], "most": TABLE[1:]})
    assert found["part"].base.nbytes == 80
    assert found["most"].base.nbytes >= TABLE.nbytes, "others may come later"
    names = Packing(0)
    names.add("objects", np.array([None] * 10_000, object)[:3])
    assert names.items["objects"].size < 1000


def with_gradients() -> dict[str, Any]:
    """Return parameters and tensors with gradients of several kinds."""
    layer, sparse = torch.nn.Linear(2, 1), torch.nn.Embedding(3, 2, sparse=True)
    (layer(torch.ones(2)) + sparse(torch.tensor([1])).sum()).sum().backward()
    leaf = torch.zeros(3, requires_grad=True)
    tagged: Any = torch.nn.Parameter(torch.zeros(2))
    leaf.sum().backward()
    tagged.grad, tagged.tag = torch.ones(1).expand(2), "kept"
    frozen = torch.nn.Parameter(torch.zeros(1))
    frozen.grad = torch.ones(1)
    frozen.requires_grad_(False)
    return {
        "layer": layer, "same": layer.weight.grad, "sparse": sparse, "leaf": leaf, "tagged": tagged,
        "frozen": frozen, "none": torch.nn.Parameter(torch.zeros(1)),
    }  # fmt: skip


def saved(values: dict[str, Any]) -> Any:
    """Return values as a script loads them."""
    ending, content = Packer(lambda _: "", {}).dump(values)
    assert ending == "pt"
    return torch.load(io.BytesIO(content), weights_only=False)


@pytest.mark.parametrize("travel", [brought, saved])
def test_gradients_travel(travel: Any) -> None:
    found = travel(with_gradients())
    assert found["layer"].weight.grad.tolist() == [[1, 1]]
    assert found["same"] is found["layer"].weight.grad
    assert found["sparse"].weight.grad.to_dense().tolist() == [[0, 0], [1, 1], [0, 0]]
    assert found["leaf"].grad.tolist() == [1, 1, 1]
    assert (found["tagged"].grad.stride(), found["tagged"].tag) == ((0,), "kept")
    assert (found["frozen"].grad.tolist(), found["frozen"].requires_grad) == ([1], False)
    assert found["none"].grad is None


@pytest.mark.parametrize("trial", [True, False])
def test_what_was_packed_is_let_go_at_once(*, trial: bool) -> None:
    gc.collect()
    gc.disable()
    try:
        model: Any = torch.nn.Linear(300, 300)
        model(torch.ones(300)).sum().backward()
        held: list[weakref.ref[Any]] = [weakref.ref(model), weakref.ref(model.weight.grad)]
        packing, blocks = Packing(trial=trial), Blocks()
        packing.add("model", model)
        if not trial:
            packing.close(blocks, {})
            blocks.close()
        del model, packing
        assert [ref() for ref in held] == [None, None]
    finally:
        gc.enable()


def test_other_gradients_are_known_while_the_old_ones_live() -> None:
    model: Any = torch.nn.Linear(3, 3)
    model.find_unused_parameters = model.static_graph = False
    model(torch.ones(3)).sum().backward()
    gradients = Gradients()
    gradients.begin([model])
    assert gradients.kept() == {model}
    old = model.weight.grad
    model.weight.grad = old.clone()
    assert gradients.kept() == set()
