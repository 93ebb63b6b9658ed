"""`nbdist.launch`: a function's values from every rank, from a plain script and a notebook."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.helpers.faults import shown
from tests.helpers.notebook import plain
from tests.helpers.waiting import allowed

if TYPE_CHECKING:
    from pathlib import Path

    from tests.helpers.kernel import Kernel

pytestmark = pytest.mark.starts_processes

PROGRAM = """
import nbdist

class OddError(Exception):
    pass

def total(x):
    import os, torch, torch.distributed as dist
    value = torch.tensor([x + dist.get_rank()])
    dist.all_reduce(value)
    if dist.get_rank() == 0:
        print("rank zero speaks")
    return int(os.environ["RANK"]), value

def fail():
    import torch.distributed as dist
    if dist.get_rank() == 1:
        raise OddError("from rank one")
    dist.barrier()

if __name__ == "__main__":
    for launcher in ("torchrun", "engines"):
        print(nbdist.launch(total, 10.0, np=2, launcher=launcher))
        try:
            nbdist.launch(fail, np=2, launcher=launcher)
        except OddError as error:
            print("caught", repr(error), type(error.__cause__).__name__)
"""


def test_from_a_plain_script(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(path)],
        capture_output=True,
        text=True,
        timeout=allowed(120),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 6
    for spoken, values, caught in (lines[:3], lines[3:]):  # of torchrun, of engines
        assert spoken == "rank zero speaks"
        assert values == "[(0, tensor([21.])), (1, tensor([21.]))]"
        assert caught == "caught OddError('from rank one') CellFailed"


def test_from_a_notebook(shared_kernel: Kernel) -> None:
    kernel = shared_kernel
    kernel.run("import nbdist\ndef who():\n    import os\n    return os.environ['RANK']")
    assert kernel.run("print(nbdist.launch(who, np=2, backend='none'))").stdout == "['0', '1']\n"
    failed = kernel.run(
        "def boom():\n    raise KeyError('gone')\nnbdist.launch(boom, np=2, backend='none')",
        check=False,
    )
    assert "KeyError: 'gone'" in plain(shown(failed))
    unknown = kernel.run("nbdist.launch(who, np=2, launcher='pigeon')", check=False)
    assert "unknown launcher 'pigeon'; there are engines, torchrun, horovodrun" in shown(unknown)
    stuck = kernel.run("nbdist.launch(who, (i for i in ()), np=2)", check=False)
    assert "cannot be sent" in shown(stuck)


def test_an_error_of_a_life_before_a_restart_is_not_raised(shared_kernel: Kernel) -> None:
    shared_kernel.run(
        "import nbdist\ndef fails():\n    import os, sys\n"
        "    if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n        raise KeyError('first')\n"
        "    sys.exit(3)"
    )
    again = shared_kernel.run("nbdist.launch(fails, np=2, max_restarts=1)", check=False)
    assert again.error.startswith("CellFailed: Ranks 0-1 failed: SystemExit: 3"), again.error
