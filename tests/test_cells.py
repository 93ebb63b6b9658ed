"""A cell on the ranks: never lost, kept variables, the torchrun world, the notebook followed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.helpers.faults import shown
from tests.helpers.notebook import distributed, on_ranks, plain, printed_by
from tests.helpers.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import KernelFactory
    from tests.helpers.kernel import Kernel

pytestmark = pytest.mark.repeats

SLOW_TORCH = """
import pathlib, time
folder = pathlib.Path(__file__).parent
(folder / "asked").touch()
while not (folder / "go").exists():
    time.sleep(0.05)
(folder / "imported").touch()
raise ModuleNotFoundError("No module named 'torch'", name="torch")
"""


def test_loading_waits_for_nothing(start_kernel: KernelFactory, tmp_path: Path) -> None:
    torch = tmp_path / "torch"
    torch.mkdir()
    (torch / "__init__.py").write_text(SLOW_TORCH)
    kernel = start_kernel(env={"PYTHONPATH": str(tmp_path)})
    assert kernel.run("%load_ext nbdist").ok
    assert not (torch / "imported").exists()
    there = f"__import__('os').path.exists({str(torch / 'imported')!r})"
    first = kernel.start(distributed(f"print('rank', rank, {there})", "-np 2 --backend none"))
    until((torch / "asked").exists)
    (torch / "go").touch()
    assert kernel.wait().ok, first.seen()
    assert first.stdout == "rank 0 True\n", "the warm process had to import this torch first"


def test_cells_sent_early_are_not_lost_and_the_first_tells_what_the_start_has_to(
    kernel: Kernel,
) -> None:
    """That ranks share a GPU, say; there is none here, so a stand-in tells something."""
    kernel.run(
        """if True:
        from nbdist.hub.link import forming
        async def sharing(hub):
            hub.sharing = "gloo"
            return ["2 ranks share 1 GPU."]
        forming._sharing = sharing"""
    )
    cells = [
        kernel.start("%load_ext nbdist"),
        kernel.start("%%distributed -np 2 --backend ddp\nx = [rank]\nprint('first')"),
        kernel.start("%%distributed\nx.append(world_size)\nx"),
        kernel.start("'in the notebook'"),
    ]
    kernel.wait(60, cells[-1])
    assert all(cell.ok for cell in cells), [cell.seen() for cell in cells]
    assert cells[1].stdout == "first\n"
    assert "2 ranks share 1 GPU." in shown(cells[1])
    assert cells[2].text == "[0, 2]\n", "it is told once"
    assert cells[3].text == "'in the notebook'\n"
    crash = "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)"
    crashed = on_ranks(kernel, crash, check=False)
    assert "torch crashes there under gloo" in shown(crashed)


def test_variables_stay_and_are_each_ranks_own(notebook: Kernel) -> None:
    on_ranks(notebook, "kept = {'rank': rank}")
    on_ranks(notebook, "kept['again'] = True")
    assert on_ranks(notebook, "print(kept)").stdout == "{'rank': 0, 'again': True}\n"
    assert printed_by(notebook, 1) == "{'rank': 1, 'again': True}\n"
    assert notebook.run("'kept' in globals()").text == "False\n"


def test_every_rank_knows_its_place(notebook: Kernel) -> None:
    code = """
        import os, torch.distributed as dist
        names = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE MASTER_ADDR".split()
        print(rank, local_rank, world_size, device)
        print(*[os.environ[name] for name in names])
        print(int(os.environ["MASTER_PORT"]) > 0, dist.get_rank(), dist.get_world_size())
    """
    here = on_ranks(notebook, code).stdout.splitlines()
    there = printed_by(notebook, 1).splitlines()
    assert here[0].startswith("0 0 2 ")
    assert there[0].startswith("1 1 2 ")
    assert here[1:] == ["0 0 2 2 127.0.0.1", "True 0 2"]
    assert there[1:] == ["1 1 2 2 127.0.0.1", "True 1 2"]


def test_the_users_own_group_is_the_one_that_is_formed(notebook: Kernel) -> None:
    code = """
        import torch, torch.distributed as dist
        before = dist.group.WORLD
        dist.init_process_group("gloo", init_method="env://", rank=rank, world_size=world_size)
        total = torch.ones(1)
        dist.all_reduce(total)
        print(dist.group.WORLD is before, int(total))
    """
    assert on_ranks(notebook, code).stdout == "True 2\n"


def test_a_destroyed_group_is_there_again(notebook: Kernel) -> None:
    in_one_cell = """
        import torch, torch.distributed as dist
        dist.destroy_process_group()
        dist.init_process_group("gloo")
        total = torch.ones(1)
        dist.all_reduce(total)
        print(int(total))
        dist.destroy_process_group()
        print(dist.is_initialized())
    """
    assert on_ranks(notebook, in_one_cell).stdout == "2\nFalse\n"
    next_cell = "total = torch.ones(1); dist.all_reduce(total); print(int(total))"
    assert on_ranks(notebook, next_cell).stdout == "2\n"


def test_the_working_directory_is_followed(notebook: Kernel, tmp_path: Path) -> None:
    notebook.run(f"import os\nbefore = os.getcwd()\nos.chdir({str(tmp_path)!r})")
    show = "import os\nprint(os.getcwd())"
    assert on_ranks(notebook, show).stdout == f"{tmp_path}\n"
    assert printed_by(notebook, 1) == f"{tmp_path}\n"
    on_ranks(notebook, "%cd -q /")
    assert on_ranks(notebook, show).stdout == "/\n", "a rank's own change stays"
    notebook.run("os.chdir(before)")
    back = notebook.run("print(os.getcwd())").stdout
    assert on_ranks(notebook, show).stdout == back


def test_a_working_directory_that_is_gone_stops_no_cell(notebook: Kernel, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    notebook.run(f"import os\nbefore = os.getcwd()\nos.chdir({str(gone)!r})")
    gone.rmdir()
    try:
        assert on_ranks(notebook, "print('runs')").stdout == "runs\n"
    finally:
        notebook.run("os.chdir(before)")


def test_the_import_path_is_followed(notebook: Kernel, tmp_path: Path) -> None:
    (tmp_path / "only_here.py").write_text("value = 'found'")
    notebook.run(f"import sys\nsys.path.insert(0, {str(tmp_path)!r})")
    try:
        assert on_ranks(notebook, "import only_here\nonly_here.value").text == "'found'\n"
    finally:
        notebook.run(f"sys.path.remove({str(tmp_path)!r})")
    gone = f"import sys\nprint({str(tmp_path)!r} in sys.path)"
    assert on_ranks(notebook, gone).stdout == "False\n"
    on_ranks(notebook, "sys.path.append('/of/the/ranks')")
    own = "print('/of/the/ranks' in sys.path)"
    assert on_ranks(notebook, own).stdout == "True\n", "a rank's own change stays"


def test_changed_variables_of_the_environment_are_followed(notebook: Kernel) -> None:
    show = "import os\nprint(os.environ.get('CELL_A'), os.environ.get('CELL_B'))"
    notebook.run("import os\nos.environ['CELL_A'] = 'one'")
    assert on_ranks(notebook, show).stdout == "one None\n"
    assert printed_by(notebook, 1) == "one None\n"
    on_ranks(notebook, "os.environ.update(CELL_A='theirs', CELL_B='theirs')")
    assert on_ranks(notebook, show).stdout == "theirs theirs\n", "a rank's own change stays"
    notebook.run("os.environ['CELL_A'] = 'two'")
    assert on_ranks(notebook, show).stdout == "two theirs\n"
    notebook.run("del os.environ['CELL_A']")
    assert on_ranks(notebook, show).stdout == "None theirs\n"


def test_a_changed_folder_for_temporary_files_is_followed(notebook: Kernel, tmp_path: Path) -> None:
    show = "import tempfile\nprint(tempfile.gettempdir())"
    before = on_ranks(notebook, show).stdout
    notebook.run(
        f"import os\ntemp = os.environ['TMPDIR']\nos.environ['TMPDIR'] = {str(tmp_path)!r}"
    )
    try:
        assert on_ranks(notebook, show).stdout == f"{tmp_path}\n"
    finally:
        notebook.run("os.environ['TMPDIR'] = temp")
    assert on_ranks(notebook, show).stdout == before != f"{tmp_path}\n"


def test_a_rank_keeps_its_number_whatever_the_notebook_sets(notebook: Kernel) -> None:
    notebook.run("import os\nos.environ.update(RANK='7', WORLD_SIZE='9', MASTER_PORT='1')")
    try:
        code = "import os\nprint(os.environ['RANK'], os.environ['WORLD_SIZE'])"
        assert on_ranks(notebook, code).stdout == "0 2\n"
        assert printed_by(notebook, 1) == "1 2\n"
    finally:
        notebook.run("for name in ('RANK', 'WORLD_SIZE', 'MASTER_PORT'): del os.environ[name]")


def test_autoreload_holds_on_the_ranks(
    start_kernel: KernelFactory, without_torch: dict[str, str]
) -> None:
    kernel = start_kernel(env=without_torch)
    module = kernel.home / "edited.py"
    module.write_text("def answer(): return 1\n")
    kernel.run("%load_ext nbdist")
    kernel.run("%load_ext autoreload\n%autoreload 2")
    on_ranks(kernel, "import edited\nfrom edited import answer", "-np 2 --backend none")
    assert on_ranks(kernel, "print(edited.answer(), answer())").stdout == "1 1\n"
    module.write_text("def answer(): return 2  # edited\n")
    later = module.stat().st_mtime + 10  # it must differ, however coarse the disk's clock is
    os.utime(module, (later, later))
    assert on_ranks(kernel, "print(edited.answer(), answer())").stdout == "2 2\n"
    assert printed_by(kernel, 1) == "2 2\n"
    kernel.run("%autoreload 0")
    module.write_text("def answer(): return 3  # edited again\n")
    os.utime(module, (later + 10, later + 10))
    assert on_ranks(kernel, "print(edited.answer())").stdout == "2\n"


def test_another_number_of_ranks_says_what_was_lost(
    start_kernel: KernelFactory, without_torch: dict[str, str]
) -> None:
    kernel = start_kernel(env=without_torch)
    kernel.run("%load_ext nbdist")
    on_ranks(kernel, "weights, history = [1.0], []", "-np 2 --backend none")
    kernel.run("import nbdist; hub = nbdist.cluster().hub")
    kernel.run("hub.uncompared, hub.broken_off = True, {1: ['all_reduce']}")
    more = on_ranks(kernel, "print(world_size)", "-np 3")
    notice = plain(more.text)
    assert "-np 3" in notice
    assert "history, weights" in notice
    told = kernel.run("print(hub is nbdist.cluster().hub, hub.uncompared, hub.broken_off)").stdout
    assert told == "True False {}\n", "what may have parted were the old ranks"
    assert more.stdout == "3\n"
    gone = on_ranks(kernel, "print(weights)", check=False)
    assert "NameError: name 'weights' is not defined" in gone.error
