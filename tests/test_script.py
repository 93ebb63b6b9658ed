"""Cells as scripts of their own: what `--save` writes, real torchrun runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest
from IPython.core.interactiveshell import InteractiveShell

from nbdist.cell.script.make_script import Script, ScriptOptions, make_script
from nbdist.cell.script.translate import Around, expanded, translate
from nbdist.errors import UsageError
from nbdist.magics.distributed import check_syntax
from nbdist.rank.script_program import Program
from nbdist.wire.channel import Keys
from tests.helpers.notebook import distributed, on_ranks, plain, printed_by
from tests.helpers.plain_process import PlainProcess
from tests.helpers.waiting import allowed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.helpers.kernel import Kernel

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
DATA = """
import asyncio
import numpy as np
import torch
from dataclasses import dataclass
from torch import nn
import torch.nn.functional as F
OFFSET = 0.5
options = {"lr": 0.1, "names": ["a", "b"]}
rows = torch.arange(12.0).reshape(4, 3)
grid = np.arange(4)
"""
CLASSES = '''
# What all models have in common.
class Base(nn.Module):
    """A base.

    With a doc string of several lines.
    """

    def scaled(self, x):
        return activate(x) * options["lr"]

@dataclass
class Point:
    x: int
    y: float = OFFSET

class Net(Base):
    def __init__(self, width=3):
        super().__init__()
        self.layer = nn.Linear(width, 1)
    def forward(self, x):
        return self.scaled(self.layer(x))

def activate(x):
    return F.relu(x) + OFFSET

@torch.no_grad()
def total(net):
    return round(float(net(rows).sum()), 4)

def listing(word):
    found = !echo {word} $word
    return list(found)

async def later(value):
    await asyncio.sleep(0.01)
    return value

double = lambda x: 2 * x
table = {"half": lambda x: x / 2 + OFFSET}
point = Point(3)
'''
STATE = """
torch.manual_seed(2)  # others give no gradient
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=options["lr"])
weights = [net.layer.weight]
"""
CELL = '''
    import torch.distributed as dist
    text = """of
      several lines"""
    words = !echo got {rank} \\
        from $OFFSET
    %time doubled = double(point.x)
    net.zero_grad()
    net(rows[rank::world_size]).sum().backward()
    for parameter in net.parameters():
        dist.all_reduce(parameter.grad)
    params, (group,) = [*net.parameters()], optimizer.param_groups
    with torch.no_grad():
        stepped = [torch.add(p, p.grad, alpha=-group["lr"]) for p in params]
    if world_size == 1:  # not on every rank, where the first step imports much of torch
        optimizer.step()
    else:
        with torch.no_grad():
            [p.copy_(new) for p, new in zip(group["params"], stepped)]
    moved = all(map(torch.equal, params, stepped))
    for n in range(world_size):
        if n == rank:
            print([rank, world_size, str(device), repr(text), list(words), doubled, total(net),
                   table["half"](point.y), int(grid.sum()), listing("w"), isinstance(point, Point),
                   weights[0] is net.layer.weight, await later(rank), moved], flush=True)
        dist.barrier()
'''
"""Prints one line a rank, in their order."""


def run(command: list[str], script: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a script without nbdist on the path, from another folder."""
    environ = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "NBDIST_HOME")}
    environ["TMPDIR"] = str(cwd)  # torchrun leaves a folder there
    return subprocess.run(
        [*command, str(script)], cwd=cwd, env=environ, capture_output=True, text=True, check=False,
        timeout=allowed(100),
    )  # fmt: skip


@pytest.fixture(scope="module")
def filled(shared_kernel: Kernel) -> Kernel:
    """Return the shared kernel with nbdist and a notebook's worth of names, and no cluster."""
    shared_kernel.run("%load_ext nbdist")
    for cell in (DATA, CLASSES, STATE):
        shared_kernel.run(cell)
    return shared_kernel


def test_a_saved_cell_that_uses_our_libraries_does_not_say_it_runs_without(
    filled: Kernel, tmp_path: Path
) -> None:
    told = {}
    for name, line in (("plain", "pass"), ("ours", "from nbdist import evaluation")):
        path = tmp_path / f"{name}.py"
        said = on_ranks(filled, f"import pickle\n{line}", f"--save {path}").stdout
        told[name] = ["without nbdist" in text for text in (said, path.read_text())]
    assert told == {"plain": [True, True], "ours": [False, False]}


def test_a_saved_cell_does_under_torchrun_what_it_does_on_ranks(
    filled: Kernel, tmp_path: Path
) -> None:
    path = tmp_path / "there" / "train.py"
    path.parent.mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    said = filled.run(distributed(CELL, f"--save {path} -np 2"))
    assert str(path) in said.stdout
    assert f"torchrun --nproc-per-node 2 {path}" in said.stdout
    assert "there is no cluster" in filled.run("%dist status", check=False).text
    assert sorted(os.listdir(path.parent)) == ["train.py", "train_data"]

    alone = run([sys.executable], path, elsewhere)
    assert alone.returncode == 0, alone.stderr
    assert alone.stdout.startswith("[0, 1, 'cpu', \"'of\\\\n  several lines'\"")
    assert alone.stdout.endswith(", True]\n"), "the optimizer steps with the net's parameters"
    saved = run(TORCHRUN, path, elsewhere)
    assert saved.returncode == 0, saved.stderr

    filled.run(distributed(CELL, "-np 2"))
    here = [line for rank in (0, 1) for line in printed_by(filled, rank).splitlines()]
    assert saved.stdout.splitlines() == [line for line in here if line.startswith("[")]


def test_what_is_saved_is_readable(filled: Kernel, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    filled.run(distributed("print(total(net), options, table, double)", f"--save {path} -np 4"))
    text = path.read_text()
    assert "import nbdist" not in text
    for line in (
        "torchrun --nproc-per-node 4 train.py",
        "srun torchrun",
        "horovodrun",
        "import torch.nn.functional as F",
        "from torch import nn",
        "OFFSET = 0.5",
        "options = {'lr': 0.1, 'names': ['a', 'b']}",
        "double = lambda x: 2 * x",
        "@torch.no_grad()\ndef total(net):",
        "# What all models have in common.\nclass Base(nn.Module):",
        "    print(total(net), options, table, double)",
    ):
        assert line in text, text
    assert text.index("class Base") < text.index("class Net") < text.index("torch.load")
    assert "There is no complete source for table" in text
    compile(text, "train.py", "exec")


def test_a_traceback_names_the_cells_lines(filled: Kernel, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    cell = distributed("x = 1\n%matplotlib inline\n!true \\\n  x\nawait later(1)\nx / 0", "--save")
    filled.run(cell.replace("--save", f"--save {path} --backend none"))
    failed = run([sys.executable], path, tmp_path)
    assert failed.returncode == 1
    number = int(failed.stderr.split(f'"{path}", line ')[-1].partition(",")[0])
    lines = path.read_text().splitlines()
    assert lines[number - 1].strip() == "x / 0"
    top = next(n for n, line in enumerate(lines, 1) if "# %%distributed, In [" in line)
    assert number - top == 6, "it is the sixth line below %%distributed"
    assert "ZeroDivisionError" in failed.stderr


def test_workers_that_are_spawned_find_what_they_need(filled: Kernel, tmp_path: Path) -> None:
    filled.run("""
        class Rows(torch.utils.data.Dataset):
            def __len__(self): return 4
            def __getitem__(self, i): return scaled_row(i)
        def scaled_row(i): return rows[i] * OFFSET
        dataset = Rows()
    """)
    path = tmp_path / "train.py"
    body = """
        from torch.utils.data import DataLoader
        ways = {"num_workers": 1, "multiprocessing_context": "spawn"}
        print(torch.cat(list(DataLoader(dataset, batch_size=2, **ways))).sum().item())
    """
    filled.run(distributed(body, f"--save {path} --backend none"))
    ran = run([sys.executable], path, tmp_path)
    assert (ran.stdout, ran.returncode) == ("33.0\n", 0), ran.stderr


REFUSED = {
    "generator": ("list(numbers)", "`numbers` cannot be put into a script: it is or holds a gen"),
    "lock": ("with_lock()", "`lock`, which `with_lock` uses, cannot be put into a script"),
    "on the ranks": ("print(elsewhere)", "`elsewhere` has no value in the notebook"),
    "a magic": ("x = 1\n%lsmagic", "line 3 of the cell: `%lsmagic` has no counterpart"),
    "a cell magic": ("%%bash\nls", "`%%bash` has no counterpart"),
    "IPython": ("shell = get_ipython()", "line 2 of the cell uses get_ipython()"),
}


def test_what_cannot_be_saved_is_an_error_and_leaves_nothing(
    filled: Kernel, tmp_path: Path
) -> None:
    filled.run("import threading\nnumbers = (n for n in range(3))\nlock = threading.Lock()")
    filled.run("def with_lock():\n    return lock")
    for body, message in REFUSED.values():
        cell = filled.run(f"%%distributed --save {tmp_path}/train.py\n{body}", check=False)
        assert message in plain(cell.text), cell.seen()
    cell = filled.run(f"%%distributed --save {tmp_path}/train.txt\npass", check=False)
    assert ".py" in cell.error
    cell = filled.run(f"%%distributed --save {tmp_path}/train.py --return x\nx = 1", check=False)
    assert "--return is for a cell that is run" in cell.error
    cell = filled.run(f"%%distributed --save {tmp_path}/none/train.py\npass", check=False)
    assert "No such file or directory" in cell.error
    full = "%%distributed --save /dev/full/train.py\npass"
    assert "could not be written" in filled.run(full, check=False).error
    assert os.listdir(tmp_path) == []


# -- without a kernel ------------------------------------------------------------------------------


@pytest.fixture
def shell(becomes_main: None) -> InteractiveShell:
    """Return a notebook's shell in this process, with nothing in it."""
    found = InteractiveShell.instance()
    found.reset()
    sys.modules["__main__"] = found.user_module
    return found


def script(shell: InteractiveShell, cell: str, **options: object) -> Script:
    """Return a cell as a script."""
    chosen: dict[str, object] = {"backend": "none", "np": 2, "name": "train.py", "saved": True}
    asked = ScriptOptions(**{**chosen, **options})  # type: ignore[arg-type]
    return make_script(shell, check_syntax(shell, cell), cell, asked)


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlainProcess]:
    """Return a process for the scripts of a module's tests."""
    runs = PlainProcess(tmp_path_factory.mktemp("scripts"))
    yield runs
    runs.close()


def outcome(
    shell: InteractiveShell, process: PlainProcess, cell: str, folder: Path, *before: str
) -> str:
    """Return what a script prints: that of a cell that was run in a notebook after others."""
    for each in before:
        shell.run_cell(dedent(each), store_history=True).raise_error()
    path = folder / "train.py"
    script(shell, dedent(cell)).write(path)
    ran = process.run(path)
    assert ran.code == 0, path.read_text() + ran.stderr
    return ran.stdout


NOTEBOOKS = {
    "arrays that share memory": (
        """
        import numpy as np
        a = np.zeros(4)
        v, turned, fixed = a[:2], a[::-1], a[1:]
        fixed.flags.writeable = False
        masked = np.ma.array(np.zeros(3), mask=[0, 1, 0])
        part = masked[1:]
        def first(of=v): return of[0]
        """,
        """
        v[0], part[1] = 9, 8
        print(a, turned[3], first(), fixed.flags.writeable, masked)
        """,
        "[9. 0. 0. 0.] 9.0 9.0 False [0.0 -- 8.0]\n",
    ),
    "a registry of classes, filled by a decorator": (
        """
        REGISTRY = {}
        def register(cls):
            REGISTRY[cls.__name__] = cls
            return cls
        @register
        class A: ...
        @register
        class B(A): ...
        """,
        """
        print(list(REGISTRY), REGISTRY['A'] is A, B.__mro__[1] is A)
        """,
        "['A', 'B'] True True\n",
    ),
    "a list that a decorator appends to": (
        """
        NAMES = []
        def named(f):
            NAMES.append(f.__name__)
            return f
        @named
        def f(): ...
        """,
        """
        f()
        print(NAMES)
        """,
        "['f']\n",
    ),
    "a decorator's object, which holds the function": (
        """
        class Keeper:
            kept = []
            def keep(self, f):
                self.kept = [f]
                return f
        keeper = Keeper()
        @keeper.keep
        def f(x): return x + ONE
        ONE = 1
        """,
        """
        ONE = 10
        print(f(1), keeper.kept[0] is f)
        """,
        "11 True\n",
    ),
    "a closure, and a global it uses": (
        """
        def outer(n):
            def inner(x): return x + n + ONE
            return inner
        add = outer(3)
        ONE = 1
        """,
        """
        ONE = 10
        print(add(1))
        """,
        "14\n",
    ),
    "names in an order of their own": (
        """
        def first(): return second() + LIMIT
        LIMIT = 2
        def second(): return third(1)
        def third(x, y=LIMIT): return x + y
        """,
        "print(first())",
        "5\n",
    ),
    "a class that was changed since": (
        """
        class A:
            n = 1
            def f(self): return 1
        A.n = 5
        A.f = lambda self: 2
        """,
        "print(A.n, A().f())",
        "5 2\n",
    ),
    "a class defined anew, and an object of the old one": (
        """
        class A:
            def f(self): return 'old'
        a = A()
        class A:
            def f(self): return 'new'
        """,
        "print(a.f(), A().f(), isinstance(a, A))",
        "old new False\n",
    ),
    "one list under two names": (
        """
        a = [1]
        b = a
        c = (a,)
        """,
        "print(a is b, c[0] is a)",
        "True True\n",
    ),
    "an object that holds a list that has a name": (
        """
        class A: ...
        a = A()
        a.items = items = [1]
        other = items
        """,
        "print(a.items is items, other is items)",
        "True True\n",
    ),
    "a default that was bound anew": (
        """
        N = 1
        def f(n=N): return n
        N = 2
        """,
        "print(f(), N)",
        "1 2\n",
    ),
    "awaiting, with annotations": (
        "import asyncio",
        """
        x: int = 3
        async def f():
            await asyncio.sleep(0)
            return x
        class A:
            y: int = x
        task = asyncio.create_task(f())
        print(await task, A.y, A.__qualname__)
        """,
        "3 3 A\n",
    ),
    "display": (
        "x = 1",
        "display(x)",
        "1\n",
    ),
    "a star": (
        "x = 1",
        """
        from math import *
        print(round(pi), x)
        """,
        "3 1\n",
    ),
    "a future": (
        "x = 1",
        """
        from __future__ import annotations
        def f(a: nowhere): ...
        print(x)
        """,
        "1\n",
    ),
    "under %%time": (
        """
        %%time
        def f(): return 7
        """,
        """
        %%time
        print(f())
        """,
        "7\n",
    ),
    "an enumeration and a named tuple": (
        """
        import enum
        from typing import NamedTuple
        class E(enum.Enum):
            A = 1
        class P(NamedTuple):
            x: int
        p = P(2)
        e = E.A
        """,
        "print(p, e is E.A, isinstance(p, P))",
        "P(x=2) True True\n",
    ),
    "properties and class methods": (
        """
        class A:
            @property
            def p(self): return self._p
            @p.setter
            def p(self, v): self._p = v
            @classmethod
            def make(cls): return cls()
            @staticmethod
            def s(): return 4
        """,
        """
        a = A.make()
        a.p = 3
        print(a.p, A.s())
        """,
        "3 4\n",
    ),
}
"""A cell of a notebook, a distributed cell after it, and what that prints."""


@pytest.mark.parametrize(("before", "cell", "printed"), NOTEBOOKS.values(), ids=NOTEBOOKS)
def test_what_a_notebook_has_means_the_same_in_a_script(
    shell: InteractiveShell,
    process: PlainProcess,
    tmp_path: Path,
    before: str,
    cell: str,
    printed: str,
) -> None:
    assert outcome(shell, process, cell, tmp_path, before) == printed


def line_in_notebook(made: Script, cell: str, line: int, above: int = 1) -> int | None:
    """Return the line of the notebook's cell, as a rank that runs the script finds it."""
    keys = Keys(*[b""] * 4)
    program = Program(
        job="1", url="", keys=keys, path=made.name, cell_line=made.cell_line,
        cell_lines=cell.count("\n") + 1, lines=above, shows_last=made.shows_last, label="",
        launcher="torchrun", shown=0, returning=[], returns=[], arguments=[], cwd="", sys_path=[],
        temp="", loopback=True, began=0.0,
    )  # fmt: skip
    return program.line_of(made.name, line)


def test_each_line_of_the_cell_is_one_of_the_script(shell: InteractiveShell) -> None:
    cell = '\n\nx = """\na\n  b"""\n!echo a \\\n  b\n%cd /\nif x:\n    %env A=b\n'
    made = script(shell, cell)
    lines = made.text.splitlines()
    assert line_in_notebook(made, cell, made.cell_line) == 2
    assert line_in_notebook(made, cell, made.cell_line - 1) is None
    assert line_in_notebook(made, cell, made.cell_line + cell.count("\n") + 1) is None
    expected = ["", "", 'x = """', "a", '  b"""', "subprocess.run(", "", "os.chdir('/')", "if x:",
                "    os.environ['A'] = 'b'"]  # fmt: skip
    for line, start in zip(lines[made.cell_line - 1 :], expected, strict=False):
        assert line.strip().startswith(start.strip()), made.text


def test_a_cell_without_a_magics_line_counts_from_its_own_first(shell: InteractiveShell) -> None:
    cell = "\n\nx = 1\n"
    options = ScriptOptions(name="train.py", saved=False, backend="none", np=2, lines=0)
    made = make_script(shell, check_syntax(shell, cell, 0), cell, options)
    where = made.text.splitlines().index("    x = 1") + 1
    assert line_in_notebook(made, cell, where, above=0) == 3


SYNTAX = {
    "!ls {n}": "subprocess.run(f'ls {n}', shell=True, check=False)",
    "!awk '{print $1}'": "subprocess.run(\"awk '{print $1}'\", shell=True, check=False)",
    "!echo $n $$HOME": "subprocess.run(f'echo {n} $HOME', shell=True, check=False)",
    "!echo {n['a']}": "subprocess.run('echo {}'.format(n['a']), shell=True, check=False)",
    "%env A=$n": "os.environ['A'] = f'{n}'",
    "%cd ~/x": "os.chdir(os.path.expanduser('~/x'))",
    "%time y = n": "y = n  # %time",
    "n?": "pass  # %pinfo n: nothing to do in a script",
    "%autoreload 2": "pass  # %autoreload 2: nothing to do in a script",
    "x = '!ls'": "x = '!ls'",
}


@pytest.mark.parametrize(("line", "expected"), SYNTAX.items())
def test_ipython_syntax_becomes_python(shell: InteractiveShell, line: str, expected: str) -> None:
    around = Around({"n"}, shell.transform_cell, str)
    assert translate(shell.transform_cell(line), around).text.strip() == expected


def test_variables_in_commands_are_those_ipython_would_find(shell: InteractiveShell) -> None:
    shell.user_ns.update(n=3, name="x y", table={"a": 1})
    for text in (
        "{n}", "$n $$n", "{n} $HOME", "{n:>2}", "{n!r}", "${n}", "{{n}}", "{table['a']}", "{",
        "$name.upper", "{missing} {n}", "a{n + 1}b{name}",
    ):  # fmt: skip
        made = eval(expanded(text, shell.user_ns), {**shell.user_ns})  # noqa: S307
        assert made == shell.var_expand(text), text


def test_nothing_is_overwritten_that_is_not_ours(shell: InteractiveShell, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    shell.user_ns["values"] = list(range(1000))
    made = script(shell, "print(values[0])")
    made.write(path)
    made.write(path)
    saved = path.read_text()
    path.write_text(f"{saved}print('mine')\n")
    with pytest.raises(UsageError, match="or was extended since"):
        made.write(path)
    path.write_text(saved.replace("values[0]", "values[1]"))
    with pytest.raises(UsageError, match="was edited since"):
        made.write(path)
    path.write_text("mine")
    with pytest.raises(UsageError, match=r"train\.py exists, and was not saved by nbdist"):
        made.write(path)
    path.unlink()
    with pytest.raises(UsageError, match=r"values\.pkl exists, and was not saved by nbdist"):
        made.write(path)
    (tmp_path / "train_data" / "values.pkl").unlink()
    made.write(path)
    (tmp_path / "train_data" / "mine").touch()
    with pytest.raises(UsageError, match="mine exists"):
        made.write(path)


def test_a_write_that_fails_leaves_all_as_it_was(
    shell: InteractiveShell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "train.py"
    shell.user_ns["values"] = list(range(1000))
    made = script(shell, "print(values[0])")
    made.write(path)
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    shell.user_ns["values"] = [0] * 2000
    other = script(shell, "print(values[1])")

    def full(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UsageError, match="No space left on device; nothing was left behind"):
        other.write(path)
    after = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    assert after == before
    assert sorted(os.listdir(tmp_path)) == ["train.py", "train_data"]


def test_what_a_script_itself_uses_leaves_the_notebooks_names_alone(
    shell: InteractiveShell, tmp_path: Path
) -> None:
    shell.run_cell("from time import time\nimport math as _time").raise_error()
    path = tmp_path / "train.py"
    script(shell, "print(time() > 0, _time.floor(1.5), rank)", backend="ddp").write(path)
    ran = run([sys.executable], path, tmp_path)
    assert (ran.stdout, ran.returncode) == ("True 1 0\n", 0), ran.stderr


def test_a_jobs_script_is_private(shell: InteractiveShell, tmp_path: Path) -> None:
    shell.user_ns["values"] = list(range(1000))
    script(shell, "values", saved=False).write(tmp_path / "train.py")
    modes = {file.name: oct(file.stat().st_mode & 0o777) for file in tmp_path.rglob("*")}
    assert modes == {"train.py": "0o600", "train_data": "0o700", "values.pkl": "0o600"}
