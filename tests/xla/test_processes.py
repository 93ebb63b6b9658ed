"""One process a device, under torchrun."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.helpers.faults import shown
from tests.helpers.notebook import on_ranks

if TYPE_CHECKING:
    from pathlib import Path

    from tests.helpers.kernel import Kernel

TRAIN = """
import nbdist, torch, torch_xla
print(rank, world_size, device, torch.distributed.get_backend())
for step in nbdist.progress(range(3), "steps"):
    total = torch.full((2,), float(step), device=device)
    torch.distributed.all_reduce(total)
    nbdist.log(total=total.sum())
    torch_xla.sync()

def launched(index, what):
    print("launched", index, what)

torch_xla.launch(launched, args=("here",))
"""
DOUBLED = """
import nbdist, torch, torch_xla
def doubled(x):
    return float(torch.tensor(x * 2.0, device=torch_xla.device()))
"""


def test_a_process_a_device(kernel: Kernel) -> None:
    kernel.run("%load_ext nbdist")
    flags = "--backend xla --launcher torchrun"
    cell = on_ranks(kernel, "print('ran')", f"-np 3 {flags}", check=False)
    assert (
        "-np 3: XLA needs one process for each device, and this machine has 1 CPU device"
        in cell.error
    )
    assert "`%%distributed -np 3 --backend xla --launcher kernel`" in cell.error
    cell = on_ranks(kernel, TRAIN, f"{flags} --return total", timeout=120)
    assert cell.stdout == "0 1 xla:0 xla\nlaunched 0 here\n"
    assert "total: 4 (min 0, max 4, 3 points)" in shown(cell)
    assert kernel.run("print(total)").stdout == "tensor([2., 2.])\n"  # on the CPU
    kernel.run(DOUBLED)
    told = kernel.run("print(nbdist.launch(doubled, 4, backend='xla'))", 120)
    assert told.stdout == "[8.0]\n"
    cell = kernel.run("nbdist.scale(doubled, 4, np=(1, 2), backend='xla')", 120, check=False)
    assert "-np 2: XLA needs one process for each device" in cell.error
    assert kernel.run("print(len(nbdist.jobs()))").stdout == "2\n"  # and none for np=1
    # The kernel's own runtime has not started, so that any number of devices can be had.
    cell = on_ranks(kernel, "print(dict(mesh.shape()))", "-np 3 --launcher kernel", timeout=120)
    assert cell.stdout == "{'data': 3}\n"


def test_a_saved_script_runs_by_itself(kernel: Kernel, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    kernel.run("%load_ext nbdist")
    on_ranks(
        kernel, "print(rank, world_size, device)",
        f"--backend xla --launcher torchrun --save {path}",
    )  # fmt: skip
    ran = subprocess.run(
        [sys.executable, path], check=True, capture_output=True, text=True,
        env=os.environ | {"PJRT_DEVICE": "CPU", "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert ran.stdout == "0 1 xla:0\n"
