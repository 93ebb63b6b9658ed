"""Messages with what msgpack has no form for: each travels, nothing behind it is lost."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from nbdist.wire.encoding import decode_to_hub, encode_to_hub
from nbdist.wire.messages import Display
from tests.helpers.faults import shown
from tests.helpers.notebook import on_ranks

if TYPE_CHECKING:
    from tests.helpers.kernel import Kernel

pytestmark = pytest.mark.repeats

BOTH = pytest.mark.parametrize("launcher", ["engines", "torchrun"])


@pytest.fixture(scope="module")
def ranks(shared_kernel: Kernel) -> Kernel:
    """Return a kernel with nbdist loaded."""
    shared_kernel.run("%load_ext nbdist")
    return shared_kernel


class Unsayable:
    """Its repr raises what ends a program."""

    def __repr__(self) -> str:
        raise SystemExit


class NoClass:
    """What it says of its class raises, as some proxies do."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        raise AttributeError

    def __repr__(self) -> str:
        return "nothing"


def looped() -> list[Any]:
    loop: list[Any] = [1]
    loop += [loop, loop]
    return loop


@pytest.mark.parametrize(
    ("odd", "sent"),
    [
        (2**70, "1180591620717411303424"),
        ("lone \ud800", "lone \\ud800"),
        (looped(), [1, "[1, [...], [...]]", "[1, [...], [...]]"]),
        (10**5000, "<int, whose repr raises ValueError>"),
        (Fraction(10**400), repr(Fraction(10**400))),
        (np.int32(3), 3),
        (Unsayable(), "<Unsayable, whose repr raises SystemExit>"),
        (NoClass(), "nothing"),
        ({1j: {"b": 2**64 - 1}}, {"1j": {"b": 2**64 - 1}}),
    ],
    ids=["large", "surrogate", "loop", "huge", "fraction", "numpy", "raises", "classless", "keys"],
)
def test_odd_values_travel(odd: object, sent: object) -> None:
    display = Display("1", 0, "display_data", {"data": odd, "fine": 1.5})
    assert decode_to_hub(encode_to_hub(display)) == Display(
        "1", 0, "display_data", {"data": sent, "fine": 1.5}
    )


@BOTH
def test_an_error_that_is_no_unicode_is_told(ranks: Kernel, launcher: str) -> None:
    cell = on_ranks(
        ranks,
        "if rank == 1:\n    raise ValueError('name \\udcff')",
        f"-np 2 --backend ddp --launcher {launcher} --timeout 300",
        check=False,
    )
    assert cell.error.startswith(
        "CellFailed: Rank 1 failed: ValueError: name \\udcff (cell line 3)"
    )


@BOTH
def test_a_display_that_cannot_be_encoded_loses_nothing(ranks: Kernel, launcher: str) -> None:
    body = """
        from IPython.display import JSON, display
        if rank == 0:
            display(JSON({"large": 2**70}))
        display({"text/plain": "shown"}, raw=True)
        kept = rank + 7
        class Kind:
            def __reduce__(self):
                raise RuntimeError("no \\udcff")
        odd = Kind()
    """
    flags = f"-np 2 --backend ddp --launcher {launcher} --timeout 300"
    cell = on_ranks(ranks, body, f"{flags} --return kept")
    assert "shown" in shown(cell)
    assert ranks.run("kept").text == "7\n"
    refused = on_ranks(ranks, body, f"{flags} --return odd", check=False)
    assert "`odd` cannot be returned" in refused.error
