"""A script pasted into a cell finds what it would find under torchrun."""

from __future__ import annotations

import ast
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.helpers.kernel import free_port
from tests.helpers.notebook import complete, on_ranks, plain, printed_by
from tests.helpers.waiting import allowed

if TYPE_CHECKING:
    from tests.helpers.kernel import Kernel

pytestmark = pytest.mark.repeats

PARSE = """
import argparse, os, sys
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--name", default="none")
parser.add_argument("--needed", action="store_true")
args = parser.parse_args()
print(os.path.basename(sys.argv[0]), args.epochs, args.name)
"""
ARGUMENTS = """-- --epochs 3 --name "two words" """
NEEDS = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("data", help="where the data is")
print(parser.parse_args().data)
"""


ENGINES = "-np 2 --backend ddp --launcher engines"


@pytest.fixture(autouse=True)
def _on_engines(notebook: Kernel) -> None:
    """Have cells without flags run on ranks that stay: they are launched as the one before."""
    on_ranks(notebook, "import sys\nsys.argv = ['cell.py']", ENGINES)


def test_a_cell_finds_the_arguments_of_its_line_and_no_other_cells(notebook: Kernel) -> None:
    assert on_ranks(notebook, PARSE).stdout == "cell.py 1 none\n"
    assert on_ranks(notebook, PARSE, ARGUMENTS).stdout == "cell.py 3 two words\n"
    assert printed_by(notebook, 1) == "cell.py 3 two words\n"
    # A parser that takes words out must not leave the rest to the cell after it.
    on_ranks(notebook, "import sys\nsys.argv = sys.argv[:2]", ARGUMENTS)
    assert on_ranks(notebook, PARSE).stdout == "cell.py 1 none\n"
    # What cells put there themselves is theirs, as any change of a cell's is.
    on_ranks(notebook, "import sys\nsys.argv = ['mine.py', '--epochs', '7']")
    assert on_ranks(notebook, PARSE).stdout == "mine.py 7 none\n"
    assert on_ranks(notebook, PARSE, ARGUMENTS).stdout == "cell.py 3 two words\n"
    assert on_ranks(notebook, "import sys\nprint(sys.argv)").stdout == "['cell.py']\n"
    assert on_ranks(notebook, "print(sys.argv)", "-- -h --ranks 7").stdout == (
        "['cell.py', '-h', '--ranks', '7']\n"
    )


def test_arguments_that_do_not_fit_say_where_they_stand(notebook: Kernel) -> None:
    for flags in ("", "--launcher torchrun"):
        cell = on_ranks(notebook, NEEDS, flags, check=False)
        assert "SystemExit: 2: give the cell's arguments after ` -- ` in the line" in cell.error
        assert "error: the following arguments are required: data" in cell.stdout + cell.stderr
    cell = on_ranks(notebook, "import sys\nsys.exit(2)", "--launcher engines", check=False)
    assert "SystemExit: 2 (cell line 3)" in cell.error
    assert on_ranks(notebook, NEEDS, "-- there").stdout == "there\n"


@pytest.mark.parametrize("flags", ["--launcher torchrun", "--launcher engines"])
def test_a_program_that_says_it_has_done_its_work_has(notebook: Kernel, flags: str) -> None:
    for code in ("", "0", "None"):
        cell = on_ranks(notebook, f"import sys\nprint('done')\nsys.exit({code})", flags)
        assert cell.text == "done\n", "and nothing on how to leave IPython"
    helped = on_ranks(notebook, NEEDS, f"{flags} -- --help")
    assert "show this help message and exit" in helped.stdout
    failed = on_ranks(notebook, "import sys\nsys.exit('why')", flags, check=False)
    assert "SystemExit: why" in failed.error


def test_a_line_that_cannot_be_read_starts_nothing(notebook: Kernel) -> None:
    cell = on_ranks(notebook, "went_wrong = True", "-- --name 'open", check=False)
    assert "No closing quotation in -- --name 'open" in plain(cell.text)
    assert on_ranks(notebook, "'went_wrong' in globals()").text == "False\n"


def test_tab_offers_no_flags_of_ours_among_a_programs(notebook: Kernel) -> None:
    assert "--backend" not in complete(notebook, "%%distributed -- --b")
    assert complete(notebook, "%%distributed --b") == ["--backend", "--bring"]
    assert "--backend" not in complete(notebook, "%dist auto on -- --b")


def test_plain_cells_have_the_arguments_of_the_mode(notebook: Kernel) -> None:
    cell = notebook.run(f"%dist auto on {ARGUMENTS}")
    assert "with -- --epochs 3 --name 'two words'" in cell.stdout
    try:
        assert "cell.py 3 two words\n" in notebook.run(PARSE).stdout
    finally:
        notebook.run("%dist auto off")


def test_the_python_interface_takes_them(notebook: Kernel) -> None:
    code = "import sys; print(sys.argv)"
    cell = notebook.run(
        f"import nbdist\njob = nbdist.cluster().run({code!r}, args=['-a', 'b c'])\n"
        "print(job.output(1))"
    )
    assert cell.stdout.strip() == "['cell.py', '-a', 'b c']"


@pytest.mark.parametrize("flags", ["", "-np 1 --cold --backend none"])
def test_a_script_finds_them(notebook: Kernel, flags: str) -> None:
    line = f"--launcher torchrun {flags}"
    assert on_ranks(notebook, PARSE, f"{line} {ARGUMENTS}").stdout == "script.py 3 two words\n"
    assert on_ranks(notebook, PARSE, line).stdout == "script.py 1 none\n"


@pytest.mark.horovod
def test_a_script_of_horovods_finds_them(notebook: Kernel) -> None:
    line = f"--launcher horovodrun {ARGUMENTS}"
    assert on_ranks(notebook, PARSE, line).stdout == "script.py 3 two words\n"


def test_a_detached_job_finds_them(notebook: Kernel) -> None:
    on_ranks(notebook, PARSE, f"--detach {ARGUMENTS}")
    assert "script.py 3 two words\n" in notebook.run("%dist attach").stdout
    notebook.run("%dist jobs --clean")


def test_a_saved_script_says_how_to_call_it(notebook: Kernel, tmp_path: Path) -> None:
    path, name = tmp_path / "train.py", 'a "b" \\c """\''
    words = ["--epochs", "3", "--name", name]
    flags = f"--backend ddp --launcher engines --save {path} -- {shlex.join(words)}"
    said = on_ranks(notebook, PARSE, flags).stdout
    command = said.partition("To run it, also without nbdist:\n")[2]
    assert shlex.split(command) == ["torchrun", "--nproc-per-node", "2", str(path), *words]
    head = ast.get_docstring(ast.parse(path.read_text())) or ""
    told = dict(line.split(": ", 1) for line in head.splitlines() if ": " in line)
    assert shlex.split(told["On one host"])[-4:] == words
    # In the line for Slurm the command stands within the quotes of another.
    wrapped = shlex.split(head.partition("Under Slurm:")[2].partition("With horovodrun")[0])[-1]
    assert shlex.split(wrapped)[-4:] == words
    done = subprocess.run(
        [sys.executable, *shlex.split(told["As a single rank"])[1:]],
        cwd=tmp_path, check=True, capture_output=True, text=True, timeout=allowed(120),
    )  # fmt: skip
    assert done.stdout == f"train.py 3 {name}\n"
    on_ranks(notebook, PARSE, rf"--backend ddp --save {path} -- --name '\d+\'")
    assert r"train.py --name '\d+\'" in path.read_text(), "as it can be copied"


RPC = """
import torch, torch.distributed as dist, torch.distributed.rpc as rpc
rpc.init_rpc(f"worker{rank}", rank=rank, world_size=world_size)
if rank == 1:
    MIDDLE
if rank == 0:
    print(rpc.rpc_sync("worker1", torch.add, args=(torch.ones(2), 3)).tolist())
rpc.shutdown()
"""


def test_rpc_begins_from_the_environment_again_and_again(notebook: Kernel) -> None:
    well = RPC.replace("MIDDLE", "pass")
    for middle in ("", "raise ValueError('in the middle')"):
        if middle:
            cell = on_ranks(notebook, RPC.replace("MIDDLE", middle), check=False)
            assert "Rank 1 " in cell.error
        for _ in range(2):
            assert "[4.0, 4.0]" in on_ranks(notebook, well).stdout
    body = "store, *_ = next(dist.rendezvous('env://', rank, world_size))\nstore.set('a', 'b')"
    on_ranks(notebook, body)
    assert on_ranks(notebook, "store.get('a')").text == "b'b'\n"


STARTED = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1) * dist.get_rank()
dist.all_reduce(total)
print("rank", dist.get_rank(), "total", total.item())
dist.destroy_process_group()
"""


AGAIN = """
import os, runpy, sys, torch
for _ in range(2):
    pid = os.fork()  # a process of its own each time, but one import of torch
    if pid == 0:
        runpy.run_path(sys.argv[1], run_name="__main__")
        break
    assert os.waitpid(pid, 0)[1] == 0
"""


def test_programs_that_ranks_start_meet_as_under_torchrun(notebook: Kernel, tmp_path: Path) -> None:
    program, again = tmp_path / "program.py", tmp_path / "again.py"
    program.write_text(STARTED)
    again.write_text(AGAIN)
    run = f"subprocess.run([sys.executable, {str(again)!r}, {str(program)!r}], check=True)"
    start = f"import subprocess, sys\n{run}"
    # Nothing of the first program is in the way of the second.
    assert on_ranks(notebook, start).stdout.count("rank 0 total 1.0\n") == 2
    # torchrun leaves the folder of its logs behind.
    torchrun = f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node 1"
    own = f"!TMPDIR={tmp_path} {torchrun} {program}"
    assert "rank 0 total 0.0" in on_ranks(notebook, own, "--ranks 0").stdout


@pytest.mark.parametrize(
    ("flags", "spawning"),
    [(ENGINES, 1), ("-np 2 --launcher torchrun", 0)],
    ids=["engines", "torchrun"],
)
def test_a_tutorials_spawned_processes_meet_at_a_port_of_their_own(
    notebook: Kernel, flags: str, spawning: int
) -> None:
    (notebook.home / "tutorial.py").write_text("""
import os, torch, torch.distributed as dist
def work(i, n, port):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", str(port)
    dist.init_process_group("gloo", rank=i, world_size=n)
    total = torch.ones(1)
    dist.all_reduce(total)
    print(f"spawned {total.item()}", flush=True)  # both write to one pipe, so in one piece
    dist.destroy_process_group()
""")
    cell = on_ranks(
        notebook,
        f"""
        import os, torch.multiprocessing as mp, tutorial
        if rank == {spawning}:  # on one rank only, as each process that is spawned imports torch
            mp.spawn(tutorial.work, args=(2, {free_port()}), nprocs=2)
        names = ("GROUP_", "TORCHELASTIC_")
        print(*(name for name in os.environ if name.startswith(names)))
        """,
        f"{flags} --output all",
    )
    assert cell.stdout.count("spawned 2.0") == 2
    for name in ("GROUP_WORLD_SIZE", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_USE_AGENT_STORE"):
        assert cell.stdout.count(name) == 2


def test_ranks_without_a_backend_meet_where_the_environment_says(kernel: Kernel) -> None:
    kernel.run("%load_ext nbdist")
    assert on_ranks(kernel, STARTED, "-np 2 --backend none").stdout == "rank 0 total 1.0\n"
