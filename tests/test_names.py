"""Names of the notebook on the ranks, and the ranks' in the notebook."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import IPython
import psutil
import pytest

from tests.helpers.faults import shown
from tests.helpers.notebook import on_ranks, plain, printed_by
from tests.helpers.processes import family

if TYPE_CHECKING:
    from tests.helpers.kernel import Kernel

SHARED = re.compile(r"/dev/shm/\S+$", re.MULTILINE)  # noqa: S108 - looked at, not used
"""A file of shared memory that is still there, in a process's map."""
MODEL = """
import torch
from torch import nn
class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = nn.Linear(width, width)
    def forward(self, x):
        return activate(self.layer(x))
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Block(4), Block(4))
    def forward(self, x):
        return self.blocks(x).sum(1)
def activate(x):
    return torch.relu(x) + OFFSET
OFFSET = 0.5
torch.manual_seed(3)
net = Net()
"""
DATA = """
import torch
from torch.utils.data import DataLoader, Dataset
FACTOR = 2
def scaled(x):
    return x * FACTOR
class Batch:
    def __init__(self, rows):
        self.x = torch.stack(rows)
class Numbers(Dataset):
    def __init__(self, n):
        self.x = torch.arange(float(n))
    def __len__(self):
        return len(self.x)
    def __getitem__(self, i):
        return scaled(self.x[i])
numbers = Numbers(20)
collate = lambda rows: Batch(rows)
"""


@pytest.fixture(scope="module", autouse=True)
def _folder_of_torchs_own(notebook: Kernel) -> None:
    """Have torch 2.9 make now what it makes with a kernel's first optimizer, for its whole life."""
    notebook.run("exec('import torch.distributed.nn.jit.instantiator', {})")


def open_in(notebook: Kernel) -> list[str]:
    """Return what the kernel's descriptors are."""
    found = []
    for path in Path(f"/proc/{notebook.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            found.append(str(path.readlink()))
    return found


def shared_by(notebook: Kernel) -> set[str]:
    """Return the files of shared memory that the kernel and its ranks have mapped."""
    found: set[str] = set()
    for process in (psutil.Process(notebook.pid), *family(notebook)):
        with suppress(FileNotFoundError, ProcessLookupError):  # ended meanwhile
            found |= set(SHARED.findall(Path(f"/proc/{process.pid}/maps").read_text()))
    return found


@pytest.fixture(autouse=True)
def _ranks_without_names(notebook: Kernel) -> None:
    """Take from the ranks what other tests have left there, which is the ranks' own."""
    notebook.run("%px %reset -f")


def test_what_a_cell_uses_is_there(notebook: Kernel) -> None:
    notebook.run(
        "import os.path, math as m\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass Conf:\n    lr: float = 0.1\n"
        "def outer(n):\n    def inner(x):\n        return x * n + base\n    return inner\n"
        "base = 100\nclosure = outer(3)\nanon = lambda v: v + rank\nconf = Conf(0.5)"
    )
    cell = on_ranks(notebook, "print(closure(2), anon(1), conf, m.pi > 3, os.path.sep)")
    assert cell.stdout == "106 1 Conf(lr=0.5) True /\n"
    assert printed_by(notebook, 1) == "106 2 Conf(lr=0.5) True /\n"
    assert "Brought to 2 ranks: closure (function), base (int), anon (function)" in cell.text
    again = on_ranks(notebook, "print(closure(2), type(conf) is Conf)")
    assert again.text == "106 True\n", "nothing is brought twice, nor told"


def test_the_notebooks_changes_arrive_and_the_ranks_own_stay(notebook: Kernel) -> None:
    notebook.run("def step():\n    return 'old', speed\nspeed = 1")
    assert on_ranks(notebook, "print(*step())").stdout == "old 1\n"
    notebook.run("speed = 2")
    assert on_ranks(notebook, "print(*step())").stdout == "old 2\n"
    notebook.run("def step():\n    return 'new', speed")
    assert on_ranks(notebook, "print(*step())").stdout == "new 2\n"
    notebook.run("step.__code__ = (lambda: ('edited in place', speed)).__code__")
    assert on_ranks(notebook, "print(*step())").stdout == "edited in place 2\n"
    on_ranks(notebook, "speed = 70 + rank")
    assert on_ranks(notebook, "print(*step())").text == "edited in place 70\n"
    notebook.run("speed = 3")
    cell = on_ranks(notebook, "print(*step())")
    assert cell.stdout == "edited in place 70\n"
    assert "`--bring speed` brings the notebook's" in cell.text
    assert on_ranks(notebook, "print(*step())").text == "edited in place 70\n", "it is told once"
    assert on_ranks(notebook, "print(*step())", "--bring speed").stdout == "edited in place 3\n"
    on_ranks(notebook, "del speed")
    assert on_ranks(notebook, "print(*step())").stdout == "edited in place 3\n"


def test_a_trained_model_is_not_overwritten(notebook: Kernel) -> None:
    notebook.run(MODEL)
    notebook.run("optimizer = torch.optim.SGD(net.parameters(), lr=0.1)")
    on_ranks(notebook, "start = [p.detach().clone() for p in net.parameters()]")
    train = """
        from torch.nn.parallel import DistributedDataParallel
        ddp = DistributedDataParallel(net)
        ddp(torch.ones(2, 4) * (rank + 1)).mean().backward()
        optimizer.step()
        print(not all(map(torch.equal, net.parameters(), start)))
    """
    cell = on_ranks(notebook, train)
    assert cell.stdout == "True\n", "the optimizer moves the parameters of the model on the ranks"
    notebook.run("net.eval()")
    check = "print(net.training, all(map(torch.equal, net.parameters(), start)))"
    told = on_ranks(notebook, check)
    assert told.stdout == "True False\n"
    assert "`net` was changed in place in the notebook" in told.text
    assert on_ranks(notebook, check).text == "True False\n", "it is told once"

    returned = on_ranks(notebook, "weights = net.blocks[0].layer.weight", "--return net,weights")
    assert "Returned from rank 0: net (" in returned.text
    here = notebook.run(
        "print(type(net) is Net, net.blocks[0].layer.weight is weights, "
        "net(torch.ones(1, 4)).shape)"
    )
    assert here.text == "True True torch.Size([1])\n"
    assert on_ranks(notebook, check).text == "True False\n", "what was returned is not sent again"
    edited = on_ranks(notebook, "print(net(torch.ones(1, 4)).shape)")
    assert edited.text == "torch.Size([1])\n"


def mapped_by(kernel: Kernel) -> float:
    """Return the MB that a kernel has mapped of what ranks have packed for it."""
    lines = Path(f"/proc/{kernel.pid}/maps").read_text().splitlines()
    spans = [line.split()[0].split("-") for line in lines if "memfd:nbdist" in line]
    return sum(int(end, 16) - int(start, 16) for start, end in spans) / 1e6


def test_what_was_returned_lives_no_longer_than_the_values(notebook: Kernel) -> None:
    make = "import torch\nlarge = torch.full((1_250_000,), float(rank), dtype=torch.float64)"
    for _ in range(4):
        on_ranks(notebook, make, "--return large")
        assert 10 <= mapped_by(notebook) < 10.1
    notebook.run("part = large[:5]; del large")
    on_ranks(notebook, "import threading\nlock = threading.Lock()", "--return lock", check=False)
    assert 10 <= mapped_by(notebook) < 10.1, "a part of it lives"
    notebook.run("del part")
    assert mapped_by(notebook) == 0
    notebook.run("import nbdist")
    on_ranks(notebook, make, "--return large --async")
    notebook.run("jobs = nbdist.jobs(); jobs[-1].until_end(30)")  # bound before the next cell
    assert 10 <= mapped_by(notebook) < 10.1, "nobody has taken it yet"
    notebook.run("assert len(large) == 1_250_000 and all(not job.returned for job in jobs)")
    notebook.run("del large")
    assert mapped_by(notebook) == 0
    on_ranks(notebook, f"{make}\nlarge = {{'x': large}}", "--return large")  # no weak reference
    notebook.run("large = 1")
    on_ranks(notebook, "pass")
    assert mapped_by(notebook) == 0
    notebook.run("del large, jobs")
    on_ranks(notebook, "del large, lock")


def test_a_ddp_model_and_a_generator_are_not_returned(notebook: Kernel) -> None:
    cell = on_ranks(
        notebook,
        """
        import torch
        from torch.nn.parallel import DistributedDataParallel
        wrapped = DistributedDataParallel(torch.nn.Linear(1, 1))
        count, stream = 7, (i for i in range(3))
        if count > 7:
            missing = 8
        print("ran")
        """,
        "--return count,wrapped,stream,missing",
        check=False,
    )
    assert not cell.ok
    assert cell.stdout == "ran\n"
    text = plain(cell.text)
    assert "`wrapped` cannot be returned from rank 0" in text
    assert "`wrapped.module` can be returned" in text
    assert "`stream` cannot be returned from rank 0: it is or holds a generator" in text
    assert "`missing` cannot be returned from rank 0: it is not defined there" in text
    assert notebook.run("count").text == "7\n"


def test_classes_of_the_ranks_work_in_the_notebook(notebook: Kernel) -> None:
    body = """
        class Made:
            def show(self):
                return helper_there(self.x)
        def helper_there(x):
            return f"<{x}>"
        made = Made()
        made.x = 3
    """
    on_ranks(notebook, body, "--return made")
    assert notebook.run("print(made.show())").text == "<3>\n"


def test_loader_workers_know_what_was_brought(notebook: Kernel) -> None:
    notebook.run(DATA)
    cell = on_ranks(
        notebook,
        """
        def again(rows):
            return collate(rows)
        for chosen, workers in ((collate, 2), (again, 1)):
            loader = DataLoader(
                numbers, batch_size=5, num_workers=workers, collate_fn=chosen,
                multiprocessing_context="fork",
            )
            batches = list(loader)
            print(sum(int(b.x.sum()) for b in batches), type(batches[0]) is Batch)
        """,
    )
    assert cell.stdout == "380 True\n380 True\n", cell.seen()


@pytest.mark.timeout(240)
def test_loader_workers_that_are_no_forks_know_what_was_brought(notebook: Kernel) -> None:
    """Each of them imports torch, so that each rank has only one."""
    notebook.run(DATA)
    cell = on_ranks(
        notebook,
        """
        from functools import partial
        def again(rows):
            return collate(rows)
        def same_of(functions, rows):
            first, second = (each(rows) for each in functions)
            assert torch.equal(first.x, second.x)
            return second
        method = "spawn" if rank else "forkserver"
        loader = DataLoader(
            numbers, batch_size=5, num_workers=1, multiprocessing_context=method,
            collate_fn=partial(same_of, (again, collate)),
        )
        batches = list(loader)
        print(method, sum(int(b.x.sum()) for b in batches), type(batches[0]) is Batch)
        """,
        timeout=200,
    )
    assert cell.stdout == "forkserver 380 True\n", cell.seen()
    assert printed_by(notebook, 1) == "spawn 380 True\n"


def test_what_cannot_travel_is_named_before_anything_starts(notebook: Kernel) -> None:
    notebook.run(
        "import socket, threading, torch\nfrom torch.utils.data import DataLoader\n"
        "numbers_left = (i for i in range(3))\nguard = threading.Lock()\n"
        "log = open('/dev/null')\nline = socket.socket()\nrunning = iter(DataLoader([1, 2]))\n"
        "deep = {'a': [guard]}\ndef uses():\n    return deep\nfine = 5"
    )
    code = "print('started', fine, numbers_left, guard, log, line, running, uses())"
    cell = on_ranks(notebook, code, check=False)
    assert not cell.ok
    text = plain(cell.text)
    assert "`numbers_left` cannot be brought to the ranks: it is or holds a generator" in text
    assert "make a list of it" in text
    assert "`guard` cannot be brought to the ranks: it is or holds a _thread.lock" in text
    assert "`log` cannot be brought to the ranks: it is or holds an open file ('/dev/null')" in text
    assert "`line` cannot be brought to the ranks: it is or holds a socket" in text
    assert "`running` cannot be brought to the ranks: it is or holds a running iterator" in text
    assert "`deep`, which `uses` uses, cannot be brought" in text
    assert "started" not in cell.stdout
    assert on_ranks(notebook, "print('fine' in globals())").stdout == "False\n"
    bound = on_ranks(notebook, "for guard in [1]: pass\nprint(guard)")
    assert bound.stdout == "1\n", "a name that is only perhaps read does not stop the cell"
    left_out = on_ranks(notebook, "print('log' in globals()); log", "--no-bring", check=False)
    assert "NameError" in plain(left_out.text)
    notebook.run("line.close(); log.close()")


REFUSED = "`guard` cannot be brought to the ranks"


@pytest.mark.parametrize(
    ("change", "use", "said"),
    [
        ("shift[0] = 5", "int(shift.sum())", "`shift` was changed in place in the notebook"),
        ("steps.append(3)", "len(steps)", "`steps` was changed in the notebook, but cells have"),
        ("del steps", "len(steps)", "`steps` was deleted in the notebook"),
        ("rate = 9", "rate", "`rate` got the value 9 in the notebook after a cell had"),
    ],
)
def test_what_a_refused_cell_would_have_told_the_next_one_tells(
    notebook: Kernel, change: str, use: str, said: str
) -> None:
    notebook.run("import threading, torch\nshift, steps, rate = torch.zeros(2), [1], 2")
    on_ranks(notebook, "steps.append(2)\nrate += 1\nbefore = int(shift.sum())")
    notebook.run(f"guard = threading.Lock()\n{change}")
    refused = on_ranks(notebook, f"print(guard, {use})", check=False)
    assert REFUSED in plain(refused.text)
    assert said not in plain(refused.text)
    assert said in plain(on_ranks(notebook, f"print({use})").text)
    assert said not in plain(on_ranks(notebook, f"print({use})").text), "once is enough"


def test_what_a_cell_would_have_told_that_is_stopped_before_its_turn_it_tells(
    notebook: Kernel,
) -> None:
    notebook.run("import nbdist, time, torch\nshift = torch.zeros(2)")
    on_ranks(notebook, "print(shift.sum())")
    notebook.run("shift[0] = 5")
    on_ranks(notebook, "import time\ntime.sleep(60)", "--async")
    on_ranks(notebook, "print(shift.sum())", "--async")
    stopped = notebook.run(
        "last, first = nbdist.cluster().jobs()[:-3:-1]\n"
        "for job in (last, first):\n    job.cancel()\n"
        "while not (first.done and last.done):\n    time.sleep(0.05)\nprint(*last.told_of)"
    )
    assert "`shift` was changed in place in the notebook" in stopped.stdout
    assert on_ranks(notebook, "print(shift.sum())").stdout == "tensor(0.)\n"


def test_what_a_cell_tells_does_not_depend_on_names_that_it_may_do_without(
    notebook: Kernel,
) -> None:
    notebook.run("import threading, torch\nshift = torch.zeros(2)\nguard = threading.Lock()")
    on_ranks(notebook, "print(shift.sum())")
    notebook.run("shift[0] = 5")
    code = "if shift.sum() > 9:\n    guard = 1\nif shift.sum() > 9:\n    print(guard)"
    assert "`shift` was changed in place" in plain(on_ranks(notebook, code).text)


def test_a_function_that_a_cell_defines_again_needs_no_more_what_it_needed(
    notebook: Kernel,
) -> None:
    notebook.run("import threading\nguard = 3")
    assert on_ranks(notebook, "def check():\n    return guard\nprint(check())").stdout == "3\n"
    notebook.run("guard = threading.Lock()")
    assert REFUSED in plain(on_ranks(notebook, "print(check())", check=False).text)
    code = "def check():\n    return guard is None\nprint(guard, check())"
    assert REFUSED in plain(on_ranks(notebook, code, check=False).text)
    assert on_ranks(notebook, "def check():\n    return 4\nprint(check())").stdout == "4\n"
    assert on_ranks(notebook, "print(check())").stdout == "4\n"


def test_what_cannot_follow_to_what_cells_have_made_is_told_once(notebook: Kernel) -> None:
    notebook.run("""
scale = 5
class Scaled:
    def value(self):
        return type(scale).__name__
    """)
    on_ranks(notebook, "own = Scaled()")
    notebook.run("import threading\nscale = threading.Lock()")
    told = shown(on_ranks(notebook, "print(own.value())"))
    assert "`scale` was changed in the notebook, but cannot be brought" in told
    assert told.endswith("int\n"), told
    assert on_ranks(notebook, "print(own.value())").stdout == "int\n"


def test_large_data_is_each_ranks_own(notebook: Kernel) -> None:
    shared = shared_by(notebook)
    notebook.run(
        "import numpy as np, torch\nbig = torch.zeros(4_000_000)\nhalf = big[2_000_000:]\n"
        "array = np.ones(1_000_000)"
    )
    cell = on_ranks(
        notebook,
        """
        import torch.distributed as dist
        big += rank + 1
        array *= rank + 5
        dist.barrier()
        print(float(big.sum()), float(half[0]), float(array.sum()))
        """,
    )
    assert "big (16 MB)" in cell.text
    assert "array (8 MB)" in cell.text
    assert cell.stdout == "4000000.0 1.0 5000000.0\n"
    assert printed_by(notebook, 1) == "8000000.0 2.0 6000000.0\n"
    assert notebook.run("print(float(big.sum()), array.sum())").stdout == "0.0 1000000.0\n"
    assert shared_by(notebook) <= shared
    opened = open_in(notebook)
    assert not [path for path in opened if "memfd:nbdist" in path]


def test_a_rank_short_of_memory_says_so_and_nothing_is_bound(notebook: Kernel) -> None:
    notebook.run("import torch\nbig = torch.zeros(150_000_000)")
    limit = """
        import resource
        usual = resource.getrlimit(resource.RLIMIT_AS)
        if rank == 1:
            used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, usual[1]))
    """
    on_ranks(notebook, limit)
    cell = on_ranks(notebook, "print(big.shape)", check=False)
    notebook.run("del big")
    assert "rank 1: there is not enough memory for big (600 MB)" in plain(cell.text)
    assert "Nothing was brought or started" in plain(cell.text)
    after = "print('big' in globals())\nresource.setrlimit(resource.RLIMIT_AS, usual)"
    assert on_ranks(notebook, after).stdout == "False\n"


def test_a_replaced_rank_gets_what_it_lacks(notebook: Kernel) -> None:
    notebook.run("def f():\n    return 'from the notebook'")
    on_ranks(notebook, "f(); own = 1")
    notebook.run("%dist restart 1")
    cell = on_ranks(notebook, "print(f())")
    assert "Brought to rank 1: f (function)." in cell.text
    notebook.run("%dist restart 1 --like 0")
    assert on_ranks(notebook, "print(f())").text == "from the notebook\n"
    notebook.run("def f():\n    return 'edited'")
    assert "Brought to 2 ranks: f (function)." in on_ranks(notebook, "print(f())").text
    assert printed_by(notebook, 1) == "edited\n"


def test_push_and_pull(notebook: Kernel) -> None:
    notebook.run("pushed = [1, 2]")
    on_ranks(notebook, "pushed = 'the ranks own'\nplace = {'rank': rank}")
    assert notebook.run("%dist push pushed").stdout == "Brought to 2 ranks: pushed (list).\n"
    assert on_ranks(notebook, "print(pushed)").text == "[1, 2]\n"
    notebook.run("pushed = 'new'")
    notebook.run("%dist push pushed --ranks 1")
    on_ranks(notebook, "print(pushed)", "--no-bring")
    assert printed_by(notebook, 1) == "new\n"
    notebook.run("%dist pull place")
    assert notebook.run("place").text == "{'rank': 0}\n"
    notebook.run("%dist pull place --ranks 0-1")
    assert notebook.run("place").text == "{0: {'rank': 0}, 1: {'rank': 1}}\n"
    assert "it is not defined there" in plain(notebook.run("%dist pull nowhere", check=False).text)
    assert "no variable `nowhere`" in plain(notebook.run("%dist push nowhere", check=False).text)
    code = """
import nbdist
cluster = nbdist.cluster()
cluster.push(given=5, twice=lambda x: 2 * x)
print(cluster.run("print(twice(given) + rank)").output(1), cluster.pull("given"))
print(cluster.pull("place", ranks=[0, 1]))
"""
    assert notebook.run(code).stdout == "11\n 5\n{0: {'rank': 0}, 1: {'rank': 1}}\n"


def test_names_of_ours_and_of_ipython_stay_where_they_are(notebook: Kernel) -> None:
    notebook.run("rank = 'the notebook has one too'\n_ = 5\n7")
    cell = on_ranks(notebook, "print(rank, world_size, len(In) > 0, get_ipython() is not None)")
    assert cell.text == "0 2 True True\n"
    notebook.run("del rank")


def test_many_small_names(notebook: Kernel) -> None:
    notebook.run("for i in range(300):\n    globals()[f'small{i}'] = i")
    code = "print(sum([\n" + "\n".join(f"small{i}," for i in range(300)) + "\n]))"
    cell = on_ranks(notebook, code)
    assert cell.stdout == "44850\n"
    assert "small11 (int), and 288 more (" in cell.text


def test_the_source_of_what_travels_goes_along(notebook: Kernel) -> None:
    defined = notebook.run(
        "def stumbles(x):\n    return x / 0  # here\n"
        "class Kind:\n    def method(self):\n        return 'kept'\n"
        "print(len(In) - 1)"
    )
    body = """
        import inspect
        print(inspect.getsource(stumbles) + inspect.getsource(Kind.method), end="")
        def made_there():
            return "on a rank"
    """
    cell = on_ranks(notebook, body, "--return made_there")
    assert cell.stdout == (
        "def stumbles(x):\n    return x / 0  # here\n    def method(self):\n        return 'kept'\n"
    )
    failed = plain(on_ranks(notebook, "stumbles(1)", check=False).text)
    assert f"Cell In[{defined.stdout.strip()}], line 2" in failed
    comment = "  # here" if IPython.version_info >= (9,) else ""  # older ones leave it out
    assert f"return x / 0{comment}" in failed
    here = notebook.run("import inspect\nprint(inspect.getsource(made_there), end='')")
    assert here.stdout == 'def made_there():\n    return "on a rank"\n'


def test_what_px_deletes_is_brought_again_and_what_it_binds_stays(notebook: Kernel) -> None:
    notebook.run("kept_here = [1]\ndef twice(x):\n    return 2 * x")
    code = "print(twice(3), kept_here)"
    assert on_ranks(notebook, code).stdout == "6 [1]\n"
    notebook.run("%px kept_here = 'of px'")
    assert on_ranks(notebook, code).text == "6 of px\n"
    notebook.run("kept_here = [2]")
    assert "`--bring kept_here` brings the notebook's" in on_ranks(notebook, code).text
    notebook.run("%px %reset -f")
    again = on_ranks(notebook, code)
    assert again.stdout == "6 [2]\n"
    assert "Brought to 2 ranks: twice (function), kept_here (list)." in again.text
    assert on_ranks(notebook, "print(rank, world_size)").stdout == "0 2\n"


SLOW = """
import nbdist, torch
def slowly(marks):
    import os, pathlib, time
    pathlib.Path(marks, f"{os.getpid()}").touch()
    while not pathlib.Path(f"{marks}.go").exists():
        time.sleep(0.02)
    return "there"
class SlowThere:
    def __reduce__(self):
        return slowly, (marks,)
class SlowHere:
    def __reduce__(self):
        return str, (slowly(marks),)
large = torch.ones(10_000_000)
"""


def test_what_is_put_together_finds_the_names_it_uses(notebook: Kernel) -> None:
    notebook.run(
        "import math\ndef offset():\n    return math.floor(SHIFTS['x'])\nSHIFTS = {'x': 10.5}\n"
        "class Row:\n    def __init__(self, x):\n        self.x = x\n"
        "    def __reduce__(self):\n        return Row.again, (self.x,)\n"
        "    @classmethod\n    def again(cls, x):\n        assert cls is Row\n"
        "        return cls(x + offset())\n"
        "class Holder:\n    pass\n"
        "row, rows, holder = Row(1), {'a': [Row(2)]}, Holder()\nholder.row = Row(3)"
    )
    code = "print(row.x, rows['a'][0].x, holder.row.x, type(row) is Row)"
    assert on_ranks(notebook, code).stdout == "11 12 13 True\n"
    assert on_ranks(notebook, code).text == "11 12 13 True\n", "and each is known afterwards"


@pytest.mark.parametrize(("where", "markers"), [("SlowThere", 2), ("SlowHere", 1)])
def test_an_interrupt_while_names_are_brought(
    notebook: Kernel, tmp_path: Path, where: str, markers: int
) -> None:
    shared, marks = shared_by(notebook), tmp_path / "marks"
    marks.mkdir()
    notebook.run(f"{SLOW}marks, slow = {str(marks)!r}, {where}()")
    cell = notebook.start("%%distributed\nprint('ran', len(large), slow)")
    notebook.until(lambda: len(os.listdir(marks)) >= markers, 20, cell)
    notebook.interrupt()
    notebook.wait(20)
    marks.with_suffix(".go").touch()
    assert not cell.ok
    assert "ran" not in cell.stdout
    assert on_ranks(notebook, "print('large' in globals())", "--no-bring").stdout == "False\n"
    assert shared_by(notebook) <= shared
    pids = notebook.run("print(*[rank.pid for rank in nbdist.cluster().ranks])").stdout.split()
    for pid in pids:
        assert "memfd:nbdist" not in Path(f"/proc/{pid}/maps").read_text()
    opened = open_in(notebook)
    assert not [path for path in opened if "memfd:nbdist" in path]
    notebook.run("slow = 'quick now'")
    again = on_ranks(notebook, "print('ran', len(large), slow)\ndel large, slow")
    assert again.stdout == "ran 10000000 quick now\n"


def test_slow_pickles_are_told(notebook: Kernel) -> None:
    notebook.run("class Row:\n    pass\nrows = [Row() for _ in range(40_000)]")
    notebook.run("import nbdist.cell.names.bringing as bring\nlimit = bring.SLOW_SECONDS")
    notebook.run("bring.SLOW_SECONDS = 0.005  # some machine is fast")
    cell = on_ranks(notebook, "print(len(rows))")
    notebook.run("bring.SLOW_SECONDS = limit\ndel bring, limit")
    assert cell.stdout == "40000\n"
    assert "to pickle object by object" in cell.text
    on_ranks(notebook, "del rows")


CODE_BEHIND = {
    "loader": ("loader = DataLoader(DS())", "[int(one) for one in loader]", "[{0}, {0}]"),
    "model": ("net = nn.Sequential(Block())", "net(1)", "{0}"),
    "partial": ("some = functools.partial(lambda a: a * AUG, 1)", "some()", "{0}"),
    "dicts": ("tree = {'a': [{'b': lambda: AUG}]}", "tree['a'][0]['b']()", "{0}"),
    "slots": ("slotted = Slotted()\nslotted.f = lambda: AUG", "slotted.f()", "{0}"),
    "bound": ("bound = {'m': Slotted().method}", "bound['m']()", "{0}"),
    "module": ("made = types.ModuleType('made')\nmade.f = lambda: AUG", "made.f()", "{0}"),
    "chain": ("first = lambda: then[0]()\nthen = [lambda: AUG]", "first()", "{0}"),
    "cache": (
        "@functools.lru_cache(maxsize=7)\ndef cached(x):\n    return AUG",
        "cached(AUG)",
        "{0}",
    ),
    "property": ("remembers = Remembers()", "Remembers().once", "{0}"),
    "many": ("many = [0] * 500 + [Slotted()]", "many[-1].method()", "{0}"),
}
"""What is made in the notebook, how ranks use it, and what that gives for a value of `AUG`."""


def test_globals_of_code_behind_objects_are_brought_again(notebook: Kernel) -> None:
    notebook.run(
        "import functools, types\nfrom torch import nn\n"
        "from torch.utils.data import DataLoader, Dataset\nAUG = 1\n"
        "class DS(Dataset):\n    def __len__(self):\n        return 2\n"
        "    def __getitem__(self, i):\n        return AUG\n"
        "class Block(nn.Module):\n    def forward(self, x):\n        return x * AUG\n"
        "class Slotted:\n    __slots__ = ('f',)\n    def method(self):\n        return AUG\n"
        "class Remembers:\n    @functools.cached_property\n"
        "    def once(self):\n        return AUG\n"
        + "\n".join(made for made, _, _ in CODE_BEHIND.values())
    )
    together = "print(" + ", ".join(use for _, use, _ in CODE_BEHIND.values()) + ", sep='\\n')"
    said = "".join(f"{gives}\n" for _, _, gives in CODE_BEHIND.values())
    assert on_ranks(notebook, together).stdout == said.format(1)
    for aug, (_, use, gives) in enumerate(CODE_BEHIND.values(), 2):
        notebook.run(f"AUG = {aug}")
        cell = on_ranks(notebook, f"print({use})")
        assert cell.stdout == gives.format(aug) + "\n", use
    assert on_ranks(notebook, "print(cached.cache_info().maxsize)").stdout == "7\n"


def test_globals_of_functions_that_cells_define_on_the_ranks_are_brought_again(
    notebook: Kernel,
) -> None:
    notebook.run("GAIN = 1")
    on_ranks(notebook, "def gained():\n    return GAIN")
    on_ranks(notebook, "table = {'f': gained}")
    notebook.run("GAIN = 2")
    assert on_ranks(notebook, "print(gained())").stdout == "2\n"
    notebook.run("GAIN = 3")
    assert on_ranks(notebook, "print(table['f']())").stdout == "3\n"
    notebook.run("def late():\n    return LATE")
    assert on_ranks(notebook, "print(callable(late))").stdout == "True\n"
    notebook.run("LATE = 4")
    assert on_ranks(notebook, "print(late())").stdout == "4\n"


def test_settings_that_the_notebook_changes_in_place_are_brought_again(notebook: Kernel) -> None:
    notebook.run(
        "from argparse import Namespace\ncfg, args = {'lr': 1, 'b': [1]}, Namespace(lr=1)\n"
        "class Conf:\n    lr = 1\n    def show(self):\n        return self.lr, self.own\n"
        "conf = Conf()\nconf.own = {'x': 1}\nlog = [0]\n"
        "def closing(over):\n    return lambda: over['lr']\nstep = closing(cfg)"
    )
    on_ranks(notebook, "mine = [cfg]")
    code = "print(cfg, args.lr, conf.show(), step(), mine[0] is cfg)"
    assert on_ranks(notebook, code).stdout == "{'lr': 1, 'b': [1]} 1 (1, {'x': 1}) 1 True\n"
    assert on_ranks(notebook, code).text == "{'lr': 1, 'b': [1]} 1 (1, {'x': 1}) 1 True\n"
    notebook.run("cfg['lr'] = 2; cfg['b'].append(2); args.lr = 2; Conf.lr = 2; conf.own['x'] = 2")
    cell = on_ranks(notebook, code)
    assert cell.stdout == "{'lr': 2, 'b': [1, 2]} 2 (2, {'x': 2}) 2 True\n", cell.seen()
    assert printed_by(notebook, 1) == cell.stdout
    assert on_ranks(notebook, code).text == cell.stdout, "nothing is brought twice"

    on_ranks(notebook, "log.append(rank)")
    assert on_ranks(notebook, "print(log)").text == "[0, 0]\n", "of the ranks' changes nobody asks"
    notebook.run("log.append('here')")
    both = on_ranks(notebook, "print(log)")
    assert both.stdout == "[0, 0]\n"
    assert (
        "`log` was changed in the notebook, but cells have also changed `log` on the ranks"
        in both.text
    )
    assert on_ranks(notebook, "print(log)").text == "[0, 0]\n", "it is told once"
    assert on_ranks(notebook, "print(log)", "--bring log").stdout == "[0, 'here']\n"
    notebook.run("log.append('again')")
    assert on_ranks(notebook, "print(log)").stdout == "[0, 'here', 'again']\n"


def test_ranks_that_were_left_out_of_a_change_keep_the_object_that_others_hold(
    notebook: Kernel,
) -> None:
    notebook.run(
        "from array import array as rates_of\nplan, rates = {'a': 1}, rates_of('d', [1.0])"
    )
    on_ranks(notebook, "holds = [plan]\nrates")
    notebook.run("plan['a'] = 2\nrates[0] = 2.0")
    on_ranks(notebook, "plan", "--ranks 0")
    code = "print(plan, holds[0] is plan, rates[0])"
    assert on_ranks(notebook, code).stdout == "{'a': 2} True 2.0\n"
    assert printed_by(notebook, 1) == "{'a': 2} True 2.0\n"
    on_ranks(notebook, "if rank == 1: plan['b'] = 1")
    notebook.run("plan['a'] = 3")
    on_ranks(notebook, "plan", "--ranks 0")
    cell = on_ranks(notebook, code)
    assert cell.stdout == "{'a': 3} True 2.0\n"
    assert (
        "`plan` was changed in the notebook, but cells have also changed `plan` on the ranks"
        in cell.text
    )
    assert printed_by(notebook, 1) == "{'a': 2, 'b': 1} True 2.0\n"


def test_of_what_is_brought_once_changes_in_place_are_told(notebook: Kernel) -> None:
    notebook.run(
        "import numpy as np, torch\nvector, array = torch.zeros(2), np.zeros(2)\n"
        "layer = torch.nn.Linear(1, 1)\nlong = list(range(2_000_000))\n"
        "held = {'layer': torch.nn.Linear(1, 1), 'best': 0}\n"
        "frozen, replaced = torch.nn.Linear(1, 1), torch.nn.Sequential(torch.nn.Dropout(0.5))"
    )
    code = (
        "print(vector.sum().item(), array.sum(), layer.bias.item() == 5, len(long), held['best'], "
        "frozen.bias.requires_grad, replaced[0].p)"
    )
    before = on_ranks(notebook, code).stdout
    assert before == "0.0 0.0 False 2000000 0 True 0.5\n"
    notebook.run(
        "vector += 1; array += 1; long.append(1); held['best'] = 1\n"
        "layer.load_state_dict({'weight': torch.ones(1, 1), 'bias': torch.full((1,), 5.)})\n"
        "frozen.requires_grad_(False); replaced[0] = torch.nn.Dropout(0.1)"
    )
    told = on_ranks(notebook, code)
    assert told.stdout == before
    names = ["vector", "array", "layer", "long", "held", "frozen", "replaced"]
    for name in names:
        assert f"`--bring {name}` replaces it by the notebook's present value" in told.text
    assert on_ranks(notebook, code).text == before, "it is told once"
    again = on_ranks(notebook, code, f"--bring {','.join(names)}")
    assert again.stdout == "2.0 2.0 True 2000001 1 False 0.1\n"
    notebook.run("vector += 1")
    assert "`--bring vector`" in on_ranks(notebook, code).text


def test_what_follows_by_itself_is_not_told_of_what_holds_it(notebook: Kernel) -> None:
    notebook.run(
        "import torch\nclass Own:\n    def __init__(self): self.k = 1\n"
        "    def __len__(self): return 1\n    def __getitem__(self, i): return self.k\n"
        "own, part = Own(), Own()\nloader = torch.utils.data.DataLoader(own)\n"
        "net = torch.nn.Linear(1, 1); net.part = part\nholder = Own()\n"
        "holder.opt = opt = torch.optim.SGD(net.parameters(), lr=0.5)"
    )
    use = "print(int(*loader), net.part.k, holder.opt.param_groups[0]['lr']"
    assert on_ranks(notebook, f"own, part, opt; {use})").stdout == "1 1 0.5\n"
    notebook.run("own.k = part.k = 2; opt.param_groups[0]['lr'] = 0.25")
    seen = on_ranks(notebook, f"own, part, opt; {use})")
    assert seen.stdout == "2 2 0.25\n"
    assert "in place" not in seen.text
    assert "separate" not in seen.text
    notebook.run("own.k = 3")
    seen = on_ranks(notebook, f"{use})")
    assert seen.stdout == "3 2 0.25\n", "also in a cell that does not name it"
    assert "in place" not in seen.text
    notebook.run("del own, part, loader, net, holder, opt, Own")


UNCOUNTED = {
    "fused": "fused = torch.optim.SGD(fused_net.parameters(), lr=1.0, momentum=0.9, fused=True)",
    "fused_net": "fused_net = torch.nn.Linear(2, 2)",
    "huge": "huge = torch.nn.Linear(2000, 2000, bias=False)",
    "by_data": "by_data = torch.nn.Linear(2, 2)",
    "norm": "norm = torch.nn.BatchNorm1d(2); norm.num_batches_tracked = None",
    "by_numpy": "by_numpy = torch.zeros(3)",
    "by_dlpack": "by_dlpack = [torch.zeros(3)]",
    "turned": "turned = torch.zeros(3, 2, dtype=torch.bfloat16).t()",
    "many": "many = {n: torch.zeros(3) for n in range(400)}",
    "signs": "signs = np.ones(2)",
    "mapped": "mapped = np.memmap(tempfile.TemporaryFile(), float, 'w+', shape=4)",
    "masked": "masked = np.ma.array([1, 2], mask=[False, False])",
    "octets": "octets = bytearray(2_000_000)",
}
"""What the notebook changes without a move of torch's count, and how it is made."""


def test_changes_that_torch_does_not_count_are_told(notebook: Kernel) -> None:
    made = "\n".join(UNCOUNTED[name] for name in sorted(UNCOUNTED, reverse=True))
    notebook.run(f"import numpy as np, tempfile, torch\n{made}")
    notebook.run(
        "def step(by):\n    for net in (fused_net, huge):\n"
        "        net(torch.ones(1, net.in_features)).sum().backward()\n"
        "    by.step(); by.zero_grad()\n"
        "others = torch.optim.SGD(huge.parameters(), lr=1.0, fused=True)\nstep(fused)"
    )
    code = f"print(len([{', '.join(UNCOUNTED)}]))"
    assert "Brought to 2 ranks" in on_ranks(notebook, code).text
    assert on_ranks(notebook, code).text == f"{len(UNCOUNTED)}\n", "nothing has changed"
    notebook.run(
        "tensors = [fused_net.weight, huge.weight, by_data.weight, by_numpy, by_dlpack[0], turned, "
        "many[399]]\ncounts = [each._version for each in tensors]\n"
        "step(fused); others.step(); by_data.weight.data.add_(1); norm(torch.randn(4, 2))\n"
        "by_numpy.numpy()[0] = 5; np.from_dlpack(by_dlpack[0])[1] = 5; turned.data[1, 2] = 1\n"
        "many[399].data += 1; signs *= -1; mapped[2] = 1; masked[1] = np.ma.masked; octets[7] = 1\n"
        "print(counts == [each._version for each in tensors])"
    )
    told = on_ranks(notebook, code).text
    lacking = [name for name in UNCOUNTED if f"`--bring {name}` replaces it" not in told]
    assert not lacking
    value = "print(int(by_numpy[0]), int(many[399][0]), octets[7], turned[1, 2].item())"
    assert on_ranks(notebook, value, "--bring by_numpy,many,octets,turned").stdout == "5 1 1 1.0\n"
    notebook.run(f"del tensors, others, {', '.join(UNCOUNTED)}")


def test_names_that_are_none_or_deleted(notebook: Kernel) -> None:
    notebook.run("class Thing:\n    pass\nthing = Thing()")
    assert on_ranks(notebook, "print(thing is None)").stdout == "False\n"
    notebook.run("thing = None")
    assert on_ranks(notebook, "print(thing)").stdout == "None\n", "not taken for the dead one"
    notebook.run("thing = Thing()")
    assert on_ranks(notebook, "print(thing is None)").stdout == "False\n"
    on_ranks(notebook, "thing = None")
    notebook.run("thing = Thing()")
    own = on_ranks(notebook, "print(thing)")
    assert own.stdout == "None\n", "the ranks' own, not the notebook's that died"
    assert "`--bring thing` brings the notebook's" in own.text

    notebook.run("SEED = 3\ndef seeded():\n    return SEED")
    assert on_ranks(notebook, "print(seeded())").stdout == "3\n"
    notebook.run("del SEED")
    gone = on_ranks(notebook, "print(seeded())")
    assert gone.stdout == "3\n"
    assert "`SEED` was deleted in the notebook" in gone.text
    assert on_ranks(notebook, "print(seeded())").text == "3\n", "it is told once"
    on_ranks(notebook, "del SEED")
    assert "NameError" in plain(on_ranks(notebook, "seeded()", check=False).text)


def test_lists_and_dicts_that_names_share_are_one_on_the_ranks_whenever_they_come(
    notebook: Kernel,
) -> None:
    notebook.run("config, rows, seen = {'lr': 1}, [1, 2], {3}")
    on_ranks(notebook, "print(config, rows, seen)")
    notebook.run("""
class Holder:
    def __init__(self, *held):
        self.held = held
    def lr(self):
        return self.held[0]['lr']
holder, nested = Holder(config, rows, seen), {'a': [rows, {'b': config}]}
""")
    check = """
        print(holder.held[0] is config, holder.held[1] is rows, holder.held[2] is seen,
              nested['a'][0] is rows, nested['a'][1]['b'] is config, holder.lr())
    """
    assert on_ranks(notebook, check).stdout.split() == ["True"] * 5 + ["1"]
    notebook.run("config['lr'] = 5")
    assert on_ranks(notebook, check).stdout.split() == ["True"] * 5 + ["5"]
    notebook.run("holder.held[0]['lr'] = 6\nlater = [config]")
    assert on_ranks(notebook, "print(later[0] is config, later[0]['lr'])").stdout == "True 6\n"
    on_ranks(notebook, "config['lr'] = 7\nassert holder.lr() == 7")


def test_what_code_reads_when_an_object_is_put_together_is_there_first(notebook: Kernel) -> None:
    on_ranks(notebook, "def own():\n    return things")
    notebook.run("""
things = [1, 2]
class Counting:
    def __getstate__(self):
        return {}
    def __setstate__(self, state):
        self.total = sum(things)
counting = Counting()
""")
    assert on_ranks(notebook, "print(counting.total, own())").stdout == "3 [1, 2]\n"


def test_dataclasses_can_be_derived_from_those_that_were_brought(notebook: Kernel) -> None:
    notebook.run("""
from dataclasses import dataclass, field
@dataclass
class Base:
    a: int = 1
    b: list = field(default_factory=list)
""")
    derive = """
        @dataclass
        class Derived(Base):
            c: int = 2
        print(Derived())
    """
    assert on_ranks(notebook, derive).stdout == "Derived(a=1, b=[], c=2)\n"


def test_gradients_of_the_notebook_reach_ranks_that_have_not_trained(notebook: Kernel) -> None:
    notebook.run("""
import torch
net = torch.nn.Linear(2, 1, bias=False)
torch.nn.init.zeros_(net.weight)
opt = torch.optim.SGD(net.parameters(), lr=0.5)
""")
    on_ranks(notebook, "net, opt; pass")
    notebook.run("net(torch.ones(2)).sum().backward()")
    assert "Brought" not in on_ranks(notebook, "pass").text
    assert on_ranks(notebook, "opt.step(); print(net.weight.tolist())").stdout == "[[-0.5, -0.5]]\n"
    notebook.run("net.zero_grad()\n(5 * net(torch.ones(2))).sum().backward()")
    own = on_ranks(notebook, "print(net.weight.grad.tolist(), len(opt.param_groups))")
    assert own.stdout == "[[1.0, 1.0]] 1\n", "ranks that have trained keep their own"
    told = "`net` has got other gradients in the notebook, but cells have trained it on the ranks"
    assert told in own.text
    assert own.text.count("gradients") == 1
    assert told not in on_ranks(notebook, "print(net.weight)").text, "it is told once"
    on_ranks(notebook, "print(net, opt)", "--bring net,opt")
    notebook.run("net.zero_grad()")
    assert on_ranks(notebook, "print(net.weight.grad)").stdout == "None\n"


def test_what_shares_memory_shares_it_on_the_ranks_whenever_it_comes(notebook: Kernel) -> None:
    notebook.run("""
import numpy as np, torch
a = np.arange(6.); v = a[:2]; turned = a[::-1]; made = torch.from_numpy(a)
t = torch.zeros(4); part = t[1:3]; array = t.numpy()
large = np.zeros(100_000); some = large[10:20]
objects = np.array([[1], None], dtype=object); first = objects[:1]
net = torch.nn.Linear(2, 1, bias=False); weight = net.weight.detach(); row = weight.numpy()[0]
masked = np.ma.array(np.arange(3.), mask=[0, 1, 0]); rest = masked[1:]
small = np.arange(5.)[2:]; whole = small.base
net(torch.ones(2)).sum().backward()
""")
    on_ranks(notebook, "a, t, large, objects, net, masked, small; pass")
    use = """
        v[0], part[0], some[0], weight[0, 0], row[1], rest[1], small[0] = 9, 8, 7, 6, 5, 4, 3
        first[0].append(2)
        print(a[0], turned[5], made[0].item(), t[1].item(), array[1], large[10], objects[0])
        print(net.weight.tolist(), masked, whole, net.weight.grad.tolist())
    """
    right = (
        "9.0 9.0 9.0 8.0 8.0 7.0 [1, 2]\n[[6.0, 5.0]] [0.0 -- 4.0] [0. 1. 3. 3. 4.] [[1.0, 1.0]]\n"
    )
    assert on_ranks(notebook, use, "--return a,v,net").stdout == right
    notebook.run("v[1] = 77\nassert (a[0], a[1], net.weight.grad.sum()) == (9, 77, 2)")
    assert "nothing is missing" in notebook.run("%dist restart 1 --like 0").stdout
    again = "v[0] = part[0] = 1\nassert (a[0], made[0], t[1], array[1]) == (1, 1, 1, 1)"
    on_ranks(notebook, f"{again}\nassert net.weight.grad.tolist() == [[1, 1]]")
