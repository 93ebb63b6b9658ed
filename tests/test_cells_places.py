"""Places and company a notebook may have: odd folders, a second notebook, forks, no torch."""

from __future__ import annotations

import os
import subprocess
import sys
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from tests.helpers.notebook import on_ranks, plain, printed_by
from tests.helpers.waiting import allowed

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import KernelFactory
    from tests.helpers.kernel import Kernel

pytestmark = pytest.mark.repeats

ODD = "odd földer 'with' \"quotes\" 目录"
SUM = """
    import torch, torch.distributed as dist
    total = torch.ones(1)
    dist.all_reduce(total)
    print("sum", int(total))
"""


def test_folders_with_spaces_quotes_and_unicode(start_kernel: KernelFactory, scratch: Path) -> None:
    temp = scratch / "tmp" / ODD
    temp.mkdir()
    kernel = start_kernel(home=ODD, env={"TMPDIR": str(temp)}, cwd=temp)
    kernel.run("%load_ext nbdist")
    assert on_ranks(kernel, SUM, "-np 2").stdout == "sum 2\n"
    place = "import os, tempfile\nprint(os.getcwd(), tempfile.gettempdir(), sep='\\n')"
    assert on_ranks(kernel, place).stdout == f"{temp}\n{temp}\n"
    assert printed_by(kernel, 1) == f"{temp}\n{temp}\n"
    workers = """
        from torch.utils.data import DataLoader
        print([batch.tolist() for batch in DataLoader(range(4), batch_size=2, num_workers=2)])
    """
    assert on_ranks(kernel, workers).stdout == "[[0, 1], [2, 3]]\n"
    assert on_ranks(kernel, "rank", "--ranks 1").text == "1\n"
    kernel.run("%px sum_by_px = rank + 1")
    assert on_ranks(kernel, "sum_by_px").text == "1\n"
    kernel.shutdown()
    temp.rmdir()  # fails if anything is left in it


def test_a_home_that_cannot_be_made_is_told(
    start_kernel: KernelFactory, without_torch: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    kernel = start_kernel(env=without_torch | {"NBDIST_HOME": str(tmp_path / "file" / "home")})
    assert kernel.run("%load_ext nbdist").ok
    for _ in range(2):
        cell = on_ranks(kernel, "1", "-np 1 --backend none", check=False)
        said = plain(cell.text)
        assert "NBDIST_HOME" in said, said
        assert str(tmp_path / "file") in said
        assert len(said.splitlines()) == 1
    kernel.run(f"import os\nos.environ['NBDIST_HOME'] = {str(kernel.home)!r}")
    assert on_ranks(kernel, "'works now'", "-np 1 --backend none").text == "'works now'\n"


def test_a_setting_that_cannot_be_is_told(
    start_kernel: KernelFactory, without_torch: dict[str, str]
) -> None:
    kernel = start_kernel(env=without_torch | {"NBDIST_HANG_SECONDS": "soon"})
    kernel.run("%load_ext nbdist")
    cell = on_ranks(kernel, "1", "-np 1 --backend none", check=False)
    assert plain(cell.text) == "UsageError: NBDIST_HANG_SECONDS='soon' is not a number\n"
    kernel.run(
        "import os\nos.environ['NBDIST_HANG_SECONDS'] = '5'\nos.environ['NBDIST_METRICS'] = 'html'"
    )
    cell = on_ranks(kernel, "1", "-np 1 --backend none", check=False)
    assert (
        plain(cell.text)
        == "UsageError: NBDIST_METRICS='html' is none of page, widget, picture, end\n"
    )
    kernel.run("del os.environ['NBDIST_METRICS']")
    assert on_ranks(kernel, "'works now'", "-np 1 --backend none").text == "'works now'\n"


def test_two_notebooks_at_once(notebook: Kernel, start_kernel: KernelFactory) -> None:
    kernels = [start_kernel(home=notebook.home.name), notebook]
    kernels[0].start("%load_ext nbdist")
    notebook.start("%dist restart")
    cells = [kernel.start(f"%%distributed -np 2\n{dedent(SUM)}") for kernel in kernels]
    for kernel, cell in zip(kernels, cells, strict=True):
        kernel.wait(60, cell)
        assert cell.stdout == "sum 2\n", cell.seen()
    pids = [on_ranks(kernel, "import os\nos.getpid()").text for kernel in kernels]
    assert pids[0] != pids[1]
    kernels[0].shutdown()
    assert on_ranks(kernels[1], SUM).stdout == "sum 2\n", "the other one's end is not its own"


FORKS = {
    "multiprocessing": """
        import multiprocessing
        child = multiprocessing.get_context("fork").Process(target=print)
        child.start(); child.join(60)
        print("exit code", child.exitcode)
    """,
    "fork": """
        import os
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        print("exit code", os.waitpid(pid, 0)[1])
    """,
    "command": """
        import subprocess, sys
        print("exit code", subprocess.run([sys.executable, "-c", "import nbdist"]).returncode)
    """,
}


@pytest.mark.parametrize("how", FORKS)
def test_a_child_of_the_kernel_that_ends_leaves_the_cluster_alone(
    notebook: Kernel, how: str
) -> None:
    on_ranks(notebook, "kept_over_fork = True")
    assert "exit code 0" in notebook.run(dedent(FORKS[how])).stdout
    assert on_ranks(notebook, "kept_over_fork").text == "True\n"
    assert on_ranks(notebook, SUM).stdout == "sum 2\n"


@pytest.mark.starts_processes
def test_a_fork_of_a_script_may_end_like_any_process(without_torch: dict[str, str]) -> None:
    script = """
        import os, sys, nbdist
        cluster = nbdist.Cluster(1, backend="none")
        pid = os.fork()
        if pid == 0:
            sys.exit(3)  # exit handlers run in the child too
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        print(cluster.run("print('alive')").output())
    """
    answer = subprocess.run(
        [sys.executable, "-c", dedent(script)],
        env=os.environ | without_torch,
        capture_output=True,
        text=True,
        timeout=allowed(60),
        check=True,
    )
    assert answer.stdout.split() == ["3", "alive"], answer.stderr


USES = [
    "nbdist.cluster().run('1')",
    "nbdist.cluster().submit('1')",
    "nbdist.cluster().restart()",
    "nbdist.cluster().stop()",
    "nbdist.Cluster(1, backend='none')",
    "get_ipython().run_cell_magic('distributed', '', 'print(1)')",
    "get_ipython().run_line_magic('dist', 'status')",
]


def test_a_fork_that_uses_the_cluster_is_told(notebook: Kernel) -> None:
    code = f"""
        import multiprocessing, nbdist
        fork = multiprocessing.get_context("fork")
        def use(call, answers):
            try:
                answers.put(repr(eval(call)))
            except Exception as err:
                answers.put(str(err))
        for call in {USES!r}:
            answers = fork.SimpleQueue()
            child = fork.Process(target=use, args=(call, answers))
            child.start(); child.join(30)
            print(child.exitcode, "hangs" if answers.empty() else answers.get())
            child.kill(); child.join()
    """
    lines = notebook.run(dedent(code), timeout=250).stdout.splitlines()
    assert len(lines) == len(USES)
    for line in lines:
        assert line.startswith("0 this process was forked from the notebook's kernel"), line
    assert on_ranks(notebook, SUM).stdout == "sum 2\n"


def test_without_torch_the_cell_says_what_to_install(
    start_kernel: KernelFactory, without_torch: dict[str, str]
) -> None:
    kernel = start_kernel(env=without_torch)
    kernel.run("%load_ext nbdist")
    for flags in ("-np 2 --backend ddp", "--backend ddp", ""):
        cell = on_ranks(kernel, "print(rank)", flags, check=False)
        said = plain(cell.text)
        assert 'pip install "nbdist[torch]"' in said, said
        assert len(said.splitlines()) == 1
    plainly = on_ranks(kernel, "print(rank, world_size, device)", "-np 2 --backend none")
    assert plainly.stdout == "0 2 cpu\n"


def test_loading_again_and_unloading(
    start_kernel: KernelFactory, without_torch: dict[str, str]
) -> None:
    kernel = start_kernel(env=without_torch)
    kernel.run("%load_ext nbdist\n%load_ext nbdist")
    on_ranks(kernel, "kept = 1", "-np 1 --backend none")
    kernel.run("%reload_ext nbdist")
    again = on_ranks(kernel, "rank", "-np 1 --backend none")
    assert again.text == "0\n"
    kernel.run("%unload_ext nbdist")
    for magic in ("%%distributed\n1", "%dist status", "%px 1"):
        assert "not found" in kernel.run(magic, check=False).stderr
    assert list((kernel.home / "clusters").iterdir()) == []
