"""The same program anywhere: a cell's values in the notebook, on ranks, in scripts.

Hundreds of small notebooks are drawn from a grammar (`tests/helpers/programs.py`), always the same
ones; `make programs N=2000` draws others. One that fails is printed as cells;
`tests/helpers/program_kept.py` has those that failed once.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings

from tests.helpers.program_draws import BY_HAND, DRAWN, bundles, made_there, notebooks, slips
from tests.helpers.program_kept import KEPT
from tests.helpers.programs import program
from tests.helpers.ways import KEEP, Ways

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.helpers.kernel import Kernel
    from tests.helpers.programs import Program

pytestmark = pytest.mark.repeats

SHARES = range(len(os.sched_getaffinity(0)) if BY_HAND else 1)
"""By hand, each core draws as many programs as the others."""
EACH = BY_HAND // len(SHARES)
REFUSED_AT_MOST = 0.15


@pytest.fixture(scope="module")
def ways(shared_kernel: Kernel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ways]:
    """Return the ways of one notebook."""
    found = Ways(shared_kernel, tmp_path_factory.mktemp("programs"))
    yield found
    found.close()


@pytest.mark.parametrize("about", KEPT)
def test_programs_that_once_failed(ways: Ways, about: str) -> None:
    wrong, text = KEPT[about]
    ways.check(program(text), about=wrong)


@pytest.mark.long
@pytest.mark.timeout(0 if BY_HAND else 600)
@pytest.mark.parametrize("share", SHARES)
def test_ranks_and_saved_scripts_see_what_the_notebook_sees(ways: Ways, share: int) -> None:
    @settings(DRAWN, max_examples=EACH or 200)
    @given(notebooks())
    def check(drawn: Program) -> None:
        ways.check(drawn)

    before = ways.counts.copy()
    check()
    counts = ways.counts - before
    for way in ("ranks", "script"):
        refused, ran = counts[f"{way}, refused"], counts[way]
        assert refused < REFUSED_AT_MOST * ran, ways.refusals.most_common()
    if BY_HAND:
        sys.stdout.write(f"{dict(ways.counts)}\n{ways.refusals.most_common()}\n")


@pytest.mark.timeout(0 if BY_HAND else 300)
def test_scripts_under_torchrun_see_what_the_notebook_sees(ways: Ways) -> None:
    @settings(DRAWN, max_examples=max(12, EACH // 10))
    @given(notebooks())
    def check(drawn: Program) -> None:
        ways.check(drawn, ["torchrun"])

    check()


@pytest.mark.timeout(0 if BY_HAND else 300)
@pytest.mark.parametrize("share", SHARES)
def test_a_cell_in_the_wrong_place_is_told(ways: Ways, kernel: Kernel, share: int) -> None:
    kernel.run(KEEP)

    @settings(DRAWN, max_examples=max(40, EACH // 5))
    @given(slips() | made_there())
    def check(drawn: Program) -> None:
        ways.slips(drawn, kernel)

    check()


@pytest.mark.timeout(0 if BY_HAND else 300)
@pytest.mark.parametrize("share", SHARES)
def test_what_is_brought_holds_what_the_notebook_has(ways: Ways, share: int) -> None:
    @settings(DRAWN, max_examples=max(30, EACH // 10))
    @given(bundles())
    def check(drawn: Program) -> None:
        ways.bundles(drawn)

    check()
