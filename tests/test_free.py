"""What a failed cell, `_` and `Out` held on the ranks is let go; `%dist free` does the rest."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.helpers.notebook import ANSWERS_LATE, keep_last_values, on_ranks, plain, printed_by
from tests.helpers.waiting import until

if TYPE_CHECKING:
    from tests.helpers.kernel import Kernel

CHANGE = r"^(\d) +([\d.]+) MB -> ([\d.]+) MB$"
LARGE = """
import gc, sys, weakref, psutil
import torch
gc.disable()  # what goes must go by itself
alive = {}
def large(name):
    tensor = torch.ones(16_000_000)
    alive[name] = weakref.ref(tensor)
    return tensor
def living():
    return sorted(name for name, tensor in alive.items() if tensor() is not None)
def step(data):
    activations = large("activations")
    raise RuntimeError("out of memory")
class Trainer:
    def fit(self):
        batch = large("batch")
        try:
            step(batch)
        except RuntimeError as err:
            scratch = large("scratch")
            raise ValueError("the step failed") from err
"""


@pytest.fixture(scope="module")
def filled(notebook: Kernel) -> Kernel:
    """Return the notebook with what the tests need on its ranks."""
    on_ranks(notebook, LARGE)
    on_ranks(notebook, ANSWERS_LATE)
    return notebook


def test_to_free_costs_nothing(filled: Kernel) -> None:
    said, found = "", []

    def both() -> bool:  # a rank may still come to rest from the test before, and is left alone
        nonlocal said, found
        said = filled.run("%dist free").stdout
        found = re.findall(CHANGE, said, flags=re.MULTILINE)
        return len(found) == 2

    until(both, 60, told=lambda: said)
    assert [rank for rank, _, _ in found] == ["0", "1"], said
    # What the ranks share with the warm process stays shared.
    assert all(float(after) < float(before) + 5 for _, before, after in found), said


def test_a_failed_cells_locals_are_let_go(filled: Kernel) -> None:
    failed = on_ranks(filled, "Trainer().fit()", check=False)
    assert "the step failed" in failed.text
    assert on_ranks(filled, "print(living())").stdout == "[]\n"
    assert printed_by(filled, 1) == "[]\n"


def test_the_traceback_can_be_shown_in_the_next_cell(filled: Kernel) -> None:
    on_ranks(filled, "Trainer().fit()", check=False)
    shown = plain(on_ranks(filled, "%tb").text)
    assert "raise ValueError" in shown
    assert "out of memory" in shown


def test_what_the_exception_carries_is_let_go_after_the_next_cell(filled: Kernel) -> None:
    on_ranks(filled, "raise ValueError('bad', large('carried'))", check=False)
    on_ranks(filled, "pass")
    assert on_ranks(filled, "print(living(), hasattr(sys, 'last_value'))").stdout == "[] False\n"


def test_an_interrupted_and_a_stopped_rank_let_go_too(filled: Kernel) -> None:
    failed = on_ranks(
        filled,
        """
        import torch.distributed as dist
        def wait():
            held = large("held")
            if rank == 1:
                raise ValueError("boom")
            dist.barrier()
        wait()
        """,
        check=False,
    )
    assert "boom" in failed.text
    assert on_ranks(filled, "print(living())").stdout == "[]\n"
    assert printed_by(filled, 1) == "[]\n"


def test_the_last_value_is_there_for_the_cell_that_asks_for_it(filled: Kernel) -> None:
    keep_last_values(filled)
    assert on_ranks(filled, "large('value')[:1]").text
    assert on_ranks(filled, "print(_.shape, living())").stdout == "torch.Size([1]) ['value']\n"
    assert on_ranks(filled, "print(living())").stdout == "[]\n"
    assert on_ranks(filled, "2 + 3").text.strip() == "5"
    assert on_ranks(filled, "_ + 1").text.strip() == "6"
    on_ranks(filled, "pass")
    assert on_ranks(filled, "_ + 1").text.strip() == "7", "a number holds nothing"
    assert (
        on_ranks(filled, "print(Out, [name for name in globals() if name == '_5'])").text
        == "{} []\n"
    )


def test_a_users_own_underscore_stays(filled: Kernel) -> None:
    on_ranks(filled, "_ = 'mine'")
    on_ranks(filled, "1 + 1")
    assert on_ranks(filled, "print(_)").stdout == "mine\n"
    on_ranks(filled, "del _")
    assert on_ranks(filled, "1 + 1").text.strip() == "2"


def freed(kernel: Kernel, rank: int) -> tuple[float, float] | None:
    """Have a rank give back memory; return its MB before and after, None if it was busy."""
    found = re.search(CHANGE, kernel.run(f"%dist free --ranks {rank}").stdout, flags=re.MULTILINE)
    return (float(found[2]), float(found[3])) if found and found[1] == str(rank) else None


def test_free_gives_back_memory_and_says_how_much(filled: Kernel) -> None:
    on_ranks(
        filled,
        """
        def make():
            ring = [large("ring")]
            ring.append(ring)
        make()
        """,
    )
    for rank in (0, 1):  # one by one: who raises first stops the others, perhaps before they raise
        on_ranks(filled, "raise ValueError(large('carried'))", f"--ranks {rank}", check=False)
    for rank in (0, 1):
        # A rank that is slow to take the order is left alone, and told to be busy.
        before, after = until(lambda rank=rank: freed(filled, rank), 60)  # type: ignore[misc]
        assert before - after > 120, (rank, before, after)
    assert on_ranks(filled, "print(living(), hasattr(sys, 'last_value'))").stdout == "[] False\n"


def test_free_leaves_busy_ranks_alone(filled: Kernel) -> None:
    filled.run(
        "import nbdist\n"
        "code = 'import time\\nwhile True:\\n    time.sleep(0.05)'\n"
        "job = nbdist.cluster().submit(code, ranks=[1])"
    )
    alone = r"^rank 1 is busy \(running cell line \d\): left alone$"
    said = ""

    def is_told() -> bool:  # when it has got as far as a line, and answers soon enough
        nonlocal said
        said = filled.run("%dist free").stdout
        return bool(re.search(alone, said, re.MULTILINE))

    try:
        until(is_told, told=lambda: said)
    finally:
        filled.run("job.cancel()")
        until(lambda: filled.run("print(job.state)").stdout != "running\n", 60)
    assert re.search(r"^0 +[\d.]+ MB -> [\d.]+ MB$", said, flags=re.MULTILINE), said
    wrong = filled.run("%dist free --ranks 5", check=False)
    assert "there is no rank 5" in wrong.error
