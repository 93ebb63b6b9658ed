"""Lines of ours below a cell: information looks otherwise than a warning, and some go again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nbdist.errors import NbdistError
from nbdist.hub.link.forming import restarted
from nbdist.job.events import Notice
from nbdist.job.job import Job
from nbdist.machine.quoted_code import plain
from nbdist.magics.showing.job_output import INFORMATION, WARNING, bundle, pass_on
from tests.helpers.notebook import distributed

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from tests.helpers.kernel import Kernel

pytestmark = pytest.mark.repeats


class Seen:
    """An area that keeps what it is given."""

    def __init__(self) -> None:
        self.html: list[str] = []

    def notice(self, key: str, text: str, *, warns: bool = False) -> None:
        """See `nbdist.magics.showing.job_output.Area`."""
        del key
        self.html.append(bundle(text, warns=warns)["text/html"])


def test_information_is_no_warning() -> None:
    area: Any = Seen()
    pass_on(Notice("queue", "It waited 3 s."), area)
    pass_on(Notice("hang", "Possible hang: rank 0 has waited.", warns=True), area)
    pass_on(Notice("starting", ""), area)
    calm, warning, gone = area.html
    assert INFORMATION in calm
    assert WARNING not in calm
    assert WARNING in warning
    assert gone == ""


def test_code_is_set_as_code_and_told_as_it_is_in_plain_text() -> None:
    shown = bundle("Stop it with `%dist cancel <3>`; a lone ` stays.")
    assert "Stop it with <code>%dist cancel &lt;3&gt;</code>; a lone ` stays." in shown["text/html"]
    assert shown["text/plain"] == "Stop it with `%dist cancel <3>`; a lone ` stays."


def test_a_cell_that_waits_for_its_ranks_says_so_until_they_are_there(kernel: Kernel) -> None:
    kernel.run(
        "%load_ext nbdist\n"
        "from nbdist.magics.showing import starting\nstarting.START_PATIENCE = 0.01"
    )
    cell = kernel.run(distributed("print('ran')", "-np 2"), timeout=120)
    told = [out.text for out in cell.events if out.kind in ("display", "update")]
    assert told == ["Waits for ranks 0-1, which start.", ""]
    kernel.run("starting.START_PATIENCE = 0.5")  # less than a start takes
    again = kernel.run(distributed("print('ran')"))
    assert not [out for out in again.events if "Waits" in out.text], "they were there"


def test_a_cell_that_waits_for_a_replaced_rank_says_so(kernel: Kernel) -> None:
    kernel.run(
        "%load_ext nbdist\nimport nbdist.hub.running.cell_turn as turn\nturn.START_PATIENCE = 0.05"
    )
    kernel.run(
        distributed("import os\nif rank == 1: os._exit(3)", "-np 2"), timeout=120, check=False
    )
    cell = kernel.run(distributed("print('ran')"), timeout=120)
    told = [out.text for out in cell.events if out.kind in ("display", "update")]
    assert "Waits for rank 1, which starts." in told
    assert told[told.index("Waits for rank 1, which starts.") + 1 :].count("") == 1


def test_what_its_state_tells_is_not_told_again(tmp_path: Path) -> None:
    job = Job(id="7", code="", ranks=(0,), folder=tmp_path, number=1, state="interrupted")
    assert job.told() == ""
    job.error = NbdistError("The cell was interrupted.\nRank 0 was stopped at cell line 4.")
    assert job.told() == "Rank 0 was stopped at cell line 4."
    job.state, job.error = "failed", NbdistError("Rank 0 failed: ValueError: `x`\nmore")
    assert job.told() == "Rank 0 failed: ValueError: `x`"
    assert plain(job.told()) == "Rank 0 failed: ValueError: x"


def test_a_rank_that_was_restarted_says_what_is_missing() -> None:
    assert restarted(1, []) == "Rank 1 restarted, nothing is missing."
    assert restarted(1, ["b", "a"]) == (
        "Rank 1 restarted, missing: a, b (re-run the cells that define them)."
    )
