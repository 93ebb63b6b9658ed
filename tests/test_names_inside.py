"""What values hold that are brought to ranks, or that cells make there: as in a plain kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.helpers.notebook import on_ranks, plain, printed_by

if TYPE_CHECKING:
    from pathlib import Path

    from tests.helpers.kernel import Kernel

MADE = """
import numpy as np, torch
from torch import nn
def line(value):
    made = nn.Linear(1, 1, bias=False)
    nn.init.constant_(made.weight, value)
    return made
class Holder:
    def __init__(self, *held, **named):
        self.held = held
        self.__dict__.update(named)
class Data(torch.utils.data.Dataset):
    def __init__(self, rows):
        self.rows = rows
    def __len__(self):
        return len(self.rows)
    def __getitem__(self, i):
        return self.rows[i]
def closing(net, conf):
    return lambda: (net.weight.item(), conf['lr'])
def fun():
    return fun.k
class Patched:
    def f(self):
        return 1
def fresh():
    global net, array, tensor, conf, rows
    net, array, tensor, conf, rows = line(1), np.zeros(2), torch.zeros(2), {'lr': 1}, [1]
    fun.k, Patched.f = 1, lambda self: 1
def default(net=None, conf=None):
    return net.weight.item(), conf['lr']
"""
CHANGE = """
nn.init.constant_(net.weight, 9)
array += 1; tensor += 1; conf['lr'] = 2; rows.append(2); fun.k = 2; Patched.f = lambda self: 2
"""
INSIDE = {
    "[net]": ("new[0].weight.item()", "9.0"),
    "net": ("new.weight.item()", "9.0"),
    "nn.Sequential(net)": ("new[0].weight.item()", "9.0"),
    "{'a': array, 't': tensor}": ("*new['a'], *new['t'].tolist()", "1.0 1.0 1.0 1.0"),
    "{'w': net.weight}": ("new['w'].item()", "9.0"),
    "conf": ("new['lr'], new is conf", "2 True"),
    "Holder(conf, rows)": ("*new.held, new.held[0] is conf", "{'lr': 2} [1, 2] True"),
    "closing(net, conf)": ("*new()", "9.0 2"),
    "types.FunctionType(default.__code__, globals(), 'default', (net, conf))": ("*new()", "9.0 2"),
    "functools.partial(default, net, conf)": ("*new()", "9.0 2"),
    "Data(tensor)": ("new[1].item()", "1.0"),
    "torch.utils.data.DataLoader(Data(array))": ("next(iter(new)).item()", "1.0"),
    "Holder(f=fun, p=Patched())": ("new.f(), new.p.f(), type(new.p) is Patched", "2 2 True"),
}  # fmt: skip
"""What is made of objects that the notebook has changed, and what it gives in a plain kernel."""


@pytest.fixture(scope="module", autouse=True)
def _made(notebook: Kernel) -> None:
    # Torch 2.9 makes a folder with a kernel's first optimizer, for the kernel's life.
    notebook.run("exec('import torch.distributed.nn.jit.instantiator', {})")
    notebook.run(f"import functools, types\n{MADE}")


@pytest.fixture(autouse=True)
def _there(notebook: Kernel) -> None:
    """Have the ranks new objects of the notebook, and nothing else."""
    notebook.run("%px %reset -f\nfresh()")
    on_ranks(notebook, "net, array, tensor, conf, rows, fun, Patched, torch, line")


@pytest.mark.parametrize("push", ["", "%dist push"])
def test_what_is_brought_holds_what_the_notebook_has(notebook: Kernel, push: str) -> None:
    names = [f"new{number}" for number in range(len(INSIDE))]
    made = "\n".join(f"{name} = {value}" for name, value in zip(names, INSIDE, strict=True))
    notebook.run(CHANGE + made)
    if push:
        notebook.run(f"{push} {' '.join(names)}")
    uses = [use.replace("new", name) for name, (use, _) in zip(names, INSIDE.values(), strict=True)]
    cell = on_ranks(notebook, "\n".join(f"print({use})" for use in uses))
    assert cell.stdout.splitlines() == [right for _, right in INSIDE.values()]
    assert printed_by(notebook, 1) == cell.stdout
    said = cell.text.replace(cell.stdout, "")
    assert "chang" not in said, "nothing needs to be said"


def test_what_has_not_changed_is_shared(notebook: Kernel) -> None:
    notebook.run("new, other = [net, conf], Holder(rows)")
    use = "print(new[0] is net, new[1] is conf, other.held[0] is rows)"
    assert on_ranks(notebook, use).stdout == "True True True\n"
    notebook.run("conf['lr'] = 3\nrows.append(3)")
    use = "print(new[1]['lr'], new[1] is conf, other.held[0] is rows, rows)"
    assert on_ranks(notebook, use).stdout == "3 True True [1, 3]\n"


def test_what_holds_an_object_is_not_taken_for_changed_by_cells(notebook: Kernel) -> None:
    notebook.run("new, alias = Holder(conf), conf")
    on_ranks(notebook, "new, alias")
    for value in (2, 3):
        notebook.run(f"conf['lr'] = {value}")
        assert on_ranks(notebook, "print(conf)").stdout == f"{{'lr': {value}}}\n"
        notebook.run(f"conf['lr'] += {value}")
        for use in ("new.held[0]", "alias", "new.held[0]"):
            cell = on_ranks(notebook, f"print({use}['lr'], {use} is conf)")
            assert cell.stdout == f"{2 * value} True\n"
            assert "was changed" not in cell.text


def test_a_change_of_a_model_inside_is_told(notebook: Kernel) -> None:
    notebook.run("new, other = [net], Holder(net=net)")
    use = "print(new[0].weight.item(), other.net.weight.item())"
    assert on_ranks(notebook, use).stdout == "1.0 1.0\n"
    notebook.run("nn.init.constant_(net.weight, 9)")
    told = on_ranks(notebook, use)
    assert told.stdout == "1.0 1.0\n"
    for name in ("new", "other"):
        assert f"`{name}` was changed in place in the notebook" in told.text
    assert on_ranks(notebook, use, "--bring new,other").stdout == "9.0 9.0\n"


def test_what_cells_have_changed_on_the_ranks_stays_apart(notebook: Kernel) -> None:
    on_ranks(
        notebook, "rows.append(rank)\nconf['lr'] = 5\ntorch.nn.init.constant_(net.weight, rank)"
    )
    notebook.run("conf['lr'] = 2\nnew, other = Holder(rows, conf), [net]")
    use = "print(new.held, other[0].weight.item())"
    cell = on_ranks(notebook, use)
    assert cell.stdout == "([1], {'lr': 2}) 1.0\n"
    assert printed_by(notebook, 1) == cell.stdout
    for name, inside in (("new", "rows"), ("new", "conf"), ("other", "net")):
        assert f"`{name}` was brought with the notebook's `{inside}`, but cells" in cell.text
    assert on_ranks(notebook, use).text == cell.stdout, "it is told once"
    assert on_ranks(notebook, "print(rows, net.weight.item())").stdout == "[1, 0] 0.0\n"


def test_what_both_ends_have_changed_to_the_same_is_shared(notebook: Kernel) -> None:
    on_ranks(
        notebook, "torch.nn.init.constant_(net.weight, 5); rows.append(5)", "--return net,rows"
    )
    notebook.run("new, other = [net], Holder(rows)")
    cell = on_ranks(notebook, "print(new[0] is net, other.held[0] is rows)")
    assert cell.stdout == "True True\n"
    assert "separate" not in cell.text
    notebook.run("net.eval(); last = [net]")
    assert on_ranks(notebook, "print(last[0].training)").stdout == "False\n"


def test_an_optimizer_trains_the_ranks_model(notebook: Kernel) -> None:
    use = "print(new.param_groups[0]['params'][0] is net.weight, net.weight.item())"
    on_ranks(notebook, "torch.nn.init.constant_(net.weight, 5)")
    notebook.run("new = torch.optim.SGD(net.parameters(), lr=1.0)")
    trained = on_ranks(notebook, use)
    assert trained.stdout == "True 5.0\n"
    assert "`net`" not in trained.text, "as in a plain kernel"
    notebook.run(
        "sched = torch.optim.lr_scheduler.StepLR(new, 1)\n"
        "both = Holder(net=net, by=torch.optim.SGD(net.parameters(), lr=1.0)); alone = [net]"
    )
    more = "print(sched.optimizer is new, both.net is net, alone[0] is net)"
    assert on_ranks(notebook, more).stdout == "True True True\n", "one model in all of a cell"
    notebook.run(
        "nn.init.constant_(net.weight, 9)\nnew = torch.optim.SGD(net.parameters(), lr=1.0)"
    )
    stale = on_ranks(notebook, use.replace("net.weight", "both.net.weight"))
    assert stale.stdout == "True 5.0\n"
    assert "`net` was changed in place in the notebook after it was brought" in stale.text
    assert on_ranks(notebook, use, "--bring net,new").stdout == "True 9.0\n"


def test_an_optimizer_gets_the_settings_that_the_notebook_has_changed(notebook: Kernel) -> None:
    notebook.run(
        "import torch.optim.lr_scheduler as lrs\nnew = torch.optim.SGD(net.parameters(), lr=1.0)"
    )
    use = "g = new.param_groups[0]\nprint(g['lr'], net.weight.item(), g['params'][0] is net.weight)"
    on_ranks(notebook, "torch.nn.init.constant_(net.weight, 5)")
    assert on_ranks(notebook, use).stdout == "1.0 5.0 True\n"
    notebook.run("cycle = lrs.OneCycleLR(new, 0.5, total_steps=10)")
    lr = "print(round(cycle.optimizer.param_groups[0]['lr'], 3), cycle.optimizer is new)"
    made = on_ranks(notebook, lr)
    assert made.stdout == "0.02 True\n"
    assert "`new`" not in made.text, "it follows"
    notebook.run("new.param_groups[0]['momentum'] = 0.5")
    on_ranks(notebook, "holder = Holder(new)")
    notebook.run("new.param_groups[0].update(lr=0.25, momentum=0)")
    held = on_ranks(notebook, "print(holder.held[0].param_groups[0]['lr'])")
    assert held.stdout == "0.25\n", "what cells have made of it follows, too"
    assert on_ranks(notebook, use).stdout == "0.25 5.0 True\n"
    on_ranks(notebook, "new.param_groups[0]['lr'] = 0.125")
    notebook.run("new.param_groups[0]['lr'] = 7.0")
    both = on_ranks(notebook, use)
    assert both.stdout == "0.125 5.0 True\n"
    assert "cells have also changed `new` on the ranks" in both.text
    notebook.run("last = torch.optim.SGD(net.parameters(), lr=1.0)")
    on_ranks(notebook, "last.param_groups")
    notebook.run("net(torch.ones(1)).backward(); last.param_groups[0]['lr'] = 7.0")
    later = on_ranks(notebook, "print(last.param_groups[0]['lr'])")
    assert later.stdout == "1.0\n"
    assert "`last` was changed in place in the notebook" in later.text, "its gradients, too"


def test_an_optimizer_of_a_model_that_the_ranks_have_replaced_says_so(notebook: Kernel) -> None:
    on_ranks(notebook, "net = line(5.0)")
    notebook.run("new = torch.optim.SGD(net.parameters(), lr=1.0)")
    cell = on_ranks(notebook, "new.param_groups")
    assert "the ranks have another `net`, which an optimizer in `new` does not train" in cell.text


BEHIND = {
    "Patched()": "made.f()",
    "Holder(conf)": "made.held[0]['lr']",
    "{'k': [Holder(conf)]}": "made['k'][0].held[0]['lr']",
    "build()": "(made.f() + made.conf['lr']) / 2",
    "locally()": "made.f()",
    "functools.partial(default, net, conf)": "made()[1]",
    "[Patched() for _ in range(2)]": "made[1].f()",
    "type('Sub', (Patched,), {})()": "made.f()",
}
"""What cells on the ranks make, and what gives 1, and 2 after the notebook's changes."""


def test_what_cells_have_made_follows_the_notebook(notebook: Kernel) -> None:
    notebook.run(
        "class Built(Patched):\n    def __init__(self):\n        self.conf = conf\n"
        "def build():\n    return Built()"
    )
    names = {f"made{number}": value for number, value in enumerate(BEHIND)}
    on_ranks(
        notebook,
        "def locally():\n    return Patched()\n"
        + "\n".join(f"{name} = {value}" for name, value in names.items())
        + "\nlater = made0\nlisted, table = [], {}\nlisted.append(Patched())\n"
        "if rank >= 0:\n    table['t'] = Holder(conf)\nclass Sub(Patched):\n    pass\nsub = Sub()",
    )
    uses = [use.replace("made", name) for use, name in zip(BEHIND.values(), names, strict=True)]
    uses += ["later.f()", "listed[0].f()", "table['t'].held[0]['lr']", "sub.f()"]
    for number, use in enumerate(uses, 2):
        notebook.run(f"Patched.f = lambda self: {number}\nconf['lr'] = {number}")
        assert on_ranks(notebook, f"print(int({use}))").stdout == f"{number}\n", use
    assert on_ranks(notebook, f"print({uses[0]})").text == f"{number}\n", "nothing twice"


KEPT_THERE = {
    "own = Net(conf)": "own.c",
    "own, made = None, []\nfor _ in '12':\n    made.append(own)\n    own = Net(conf)": "made[1].c",
    "made = {}\ngroup = made.setdefault('a', [])\ngroup.append(Net(conf))": "made['a'][0].c",
    "made = {}\nmade.setdefault('a', []).append(Net(conf))": "made['a'][0].c",
    "def make(): return Net(conf)\n---\nmade = []\n---\nmade.append(make())": "made[0].c",
    "made = [Net(0), Net(0)]\n---\nfor one in made:\n    one.c = conf": "made[0].c",
    "box = Net(0)\nmade = Net(box)\n---\nbox.c = conf": "made.c.c",
    "made = []\n---\n[made.append(Net(conf)) for _ in range(2)]": "made[0].c",
    "match Net(conf):\n    case own: pass": "own.c",
    "class Own:\n    c = conf": "Own().c",
    "made = []\n---\nregister(made, Net, conf)": "made[0].c",
    "def make():\n    global own\n    own = Net(conf)\n---\nmake()": "own.c",
    "Net.default = conf": "Net(0).default",
    "get_ipython().run_cell_magic('capture', '', 'own = Net(conf)')": "own.c",
    "own = Net(0)\n---\nown.f = lambda: {'lr': rate}": "own.f()",
    "notes.f = lambda: {'lr': rate}": "notes.f()",
    "made = []\n---\nmade.append(lambda: {'lr': rate})": "made[0]()",
    "def f(): return {'lr': rate}\n---\nmade = {}\n---\nmade['f'] = f": "made['f']()",
    "import torch\nown = torch.nn.Identity()\n---\n"
    "own.register_forward_hook(lambda m, i, o: {'lr': rate})": "own(1)",
    "keep(conf)": "kept[0]",
    "Shelf.keep(conf)": "Shelf.kept[-1]",
}  # fmt: skip
"""Cells that keep what the notebook changes, in some way, and a use of it."""


@pytest.mark.parametrize("cells", KEPT_THERE)
def test_what_cells_have_kept_in_any_way_follows_the_notebook(notebook: Kernel, cells: str) -> None:
    notebook.run("""
conf, rate, notes = {'lr': 1}, 1, types.SimpleNamespace()
class Net:
    def __init__(self, c):
        self.c = c
def register(nets, kind, *held):
    nets.append(kind(*held))
kept = []
def keep(c):
    kept.append(c)
class Base:
    kept = []
    @classmethod
    def keep(cls, c):
        cls.kept.append(c)
class Shelf(Base):
    pass
    """)
    for cell in cells.split("---\n"):
        on_ranks(notebook, cell)
    use = f"print({KEPT_THERE[cells]}['lr'])"
    assert on_ranks(notebook, use).stdout == "1\n"
    notebook.run("conf['lr'] = rate = 2")
    assert on_ranks(notebook, use).stdout == "2\n"


INNER = {
    "conf = {'opt': {'lr': 1}}": ("conf['opt']", "conf['opt']['lr'] = 2", "own.c['lr']"),
    "conf = [notes(k=1), notes(k=1)]": ("conf[0]", "conf[0].k = 2", "own.c.k"),
    "conf = [[1], [5]]": ("conf[0]", "conf.insert(0, [0]); conf[1][0] = 2", "own.c[0]"),
    "conf = {'a': [1]}": ("conf['a']", "conf['a'][0] = 2; gone = conf.pop('a')", "own.c[0]"),
    "class Conf(dict):\n    __getattr__ = dict.__getitem__\nconf = Conf(lr=1)": (
        "conf",
        "conf['lr'] = 2",
        "own.c.lr",
    ),
    "class Conf(list):\n    pass\nconf = Conf([1])": ("conf", "conf[0] = 2", "own.c[0]"),
    "class Conf:\n    __slots__ = ['lr', '_more']\n    __repr__ = lambda self: str(self.lr)\n"
    "conf = Conf(); conf.lr = 1": ("conf", "conf.lr = 2", "own.c.lr"),
    "conf = {'a': array.array('i', [1])}": ("conf", "conf['a'][0] = 2", "own.c['a'][0]"),
}
"""What the notebook has, what cells make from its inside, an edit, and a use: 1, then 2."""


@pytest.mark.parametrize("given", INNER)
def test_what_is_inside_of_what_the_notebook_edits_stays_one_object(
    notebook: Kernel, given: str
) -> None:
    part, edit, use = INNER[given]
    notebook.run(
        "import array\nnotes = types.SimpleNamespace\nclass Net:\n    def __init__(self, c):\n"
        f"        self.c = c\n{given}"
    )
    on_ranks(notebook, f"own = Net({part})")
    assert on_ranks(notebook, f"print({use})").stdout == "1\n"
    notebook.run(edit)
    assert on_ranks(notebook, f"print({use})").stdout == "2\n"
    assert on_ranks(notebook, "print(conf)").stdout == notebook.run("print(conf)").stdout


def test_what_was_only_shown_together_does_not_follow(notebook: Kernel) -> None:
    notebook.run("shown, seen = {'lr': 1}, [1]")
    on_ranks(notebook, "print(shown, len(seen), rank)")
    notebook.run("shown['lr'] = 2")
    assert on_ranks(notebook, "print(seen)").text == "[1]\n"
    assert on_ranks(notebook, "both = [shown, seen]").text
    notebook.run("shown['lr'] = 3")
    assert "shown (dict)" in on_ranks(notebook, "print(both)").text


def test_a_change_of_a_model_is_told_although_something_else_holds_a_copy(
    notebook: Kernel,
) -> None:
    notebook.run("net = torch.nn.Linear(1, 1, bias=False)")
    on_ranks(notebook, "net")
    notebook.run(
        "net.weight.data.fill_(5)\nclass Held:\n    net = net\n"
        "    def value(self):\n        return self.net.weight.item()\nheld = Held()"
    )
    cell = on_ranks(notebook, "net.weight.data.fill_(9)\nprint(held.value())")
    assert cell.stdout == "5.0\n"
    assert "`net` was changed in place in the notebook" in cell.text


def test_what_was_only_read_together_is_not_told(notebook: Kernel) -> None:
    notebook.run("viewed, watched = torch.ones(1), (torch.ones(1), [1])")
    on_ranks(notebook, "print([x.item() for x in viewed], [x.tolist() for x in watched[:1]])")
    notebook.run("watched[0].zero_()")
    assert on_ranks(notebook, "print(viewed)").text == "tensor([1.])\n"


def test_what_cannot_follow_into_what_cells_have_made_is_told_once(notebook: Kernel) -> None:
    notebook.run("class Net:\n    def __init__(self, c):\n        self.c = c")
    for given, edit in {
        "fixed = ([1], 2)": "fixed[0].append(3)",
        "fixed = {'t': torch.zeros(1)}": "fixed['t'] += 1",
    }.items():
        notebook.run(given)
        on_ranks(notebook, "own = Net(fixed)")
        notebook.run(edit)
        assert "`fixed` was changed in place in the notebook. What cells" in plain(
            on_ranks(notebook, "print(own.c)").text
        )
        assert "changed" not in on_ranks(notebook, "print(own.c)").text


def test_what_the_notebook_puts_in_the_place_of_something_inside_is_another_object(
    notebook: Kernel,
) -> None:
    notebook.run("conf = {'opt': {'lr': 1}, 'more': [1]}")
    on_ranks(notebook, "own, more = conf['opt'], conf['more']")
    notebook.run("conf['opt'], conf['two'] = {'lr': 2}, conf['more']; conf['two'].append(2)")
    use = "print(own, more, conf, conf['two'] is conf['more'] is more)"
    for last in (2, 3):
        right = f"{{'opt': {{'lr': {last}}}, 'more': [1, 2], 'two': [1, 2]}}"
        assert on_ranks(notebook, use).stdout == f"{{'lr': 1}} [1, 2] {right} True\n"
        notebook.run("conf['opt']['lr'] = 3")


def test_what_a_method_reads_that_was_put_into_a_class_later_follows(notebook: Kernel) -> None:
    notebook.run("first, second = 1, 2\nclass Net:\n    def value(self):\n        return first")
    on_ranks(notebook, "own = Net()")
    notebook.run("Net.value = lambda self: second")
    assert on_ranks(notebook, "print(own.value())").stdout == "2\n"
    notebook.run("second = 7")
    assert on_ranks(notebook, "print(own.value())").stdout == "7\n"


def test_what_the_notebook_binds_anew_is_not_in_what_cells_have_made(notebook: Kernel) -> None:
    # Names of this test alone: cells of others have put `conf` together with much else.
    notebook.run("class Alone:\n    def f(self):\n        return 1\napart = {'lr': 1}")
    on_ranks(notebook, "lone, aside = Alone(), Holder(apart)")
    notebook.run("class Alone:\n    def f(self):\n        return 7\napart = {'lr': 7}")
    cell = on_ranks(notebook, "print(lone.f(), aside.held[0])")
    assert cell.text == "1 {'lr': 1}\n"


def test_modules_that_the_notebook_reloads_are_reloaded_on_the_ranks(
    notebook: Kernel, tmp_path: Path
) -> None:
    notebook.run(f"""
import importlib, sys
sys.path.insert(0, {str(tmp_path)!r})
sys.dont_write_bytecode = True
def write(inner, outer):
    with open({str(tmp_path / "inner_part.py")!r}, "w") as file:
        file.write(f"def g(): return {{inner}}")
    with open({str(tmp_path / "outer_part.py")!r}, "w") as file:
        file.write(
            "import inner_part\\nfrom inner_part import g\\n"
            f"SET = {{outer}}\\ndef f(): return {{outer}}, SET, g(), inner_part.g()\\n"
            f"class Net:\\n    def f(self): return {{outer}}, SET\\n"
        )
write(1, 1)
import inner_part, outer_part
from outer_part import Net, f
""")
    on_ranks(notebook, "old = Net()")
    changes = [
        "write(22, 22); importlib.reload(inner_part)",
        "importlib.reload(outer_part); Net, f = outer_part.Net, outer_part.f",
        "write(22, 333); importlib.reload(outer_part)",
        "write(4444, 4444); importlib.reload(inner_part)",
        "write(4444, 55555); importlib.reload(outer_part)",
        "f = outer_part.f; last = outer_part.Net()",
        "if True:\n    %load_ext autoreload\n    %autoreload 2\nwrite(4444, 666666)",
    ]
    use = "print(f(), outer_part.f(), Net().f())"
    assert on_ranks(notebook, use).stdout == notebook.run(use).stdout
    for change in changes:
        notebook.run(change)
        right = notebook.run(use).stdout
        assert on_ranks(notebook, use).stdout == right, change
        assert on_ranks(notebook, use).text == right, "nothing is brought twice"
    assert on_ranks(notebook, "print(old.f(), last.f()[1])").stdout == "(1, 666666) 666666\n"
    notebook.run("%autoreload 0\n%unload_ext autoreload\nsys.path.pop(0)")


def test_objects_of_the_users_own_modules_follow(notebook: Kernel, tmp_path: Path) -> None:
    (tmp_path / "of_the_user.py").write_text(
        "class Conf:\n    k = 1\nclass Box:\n    def __init__(self, held):\n"
        "        self.held = held\n"
    )
    notebook.run(
        f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nfrom of_the_user import Box, Conf\n"
        "boxed = Box(Conf())"
    )
    use = "print(boxed.held.k)"
    assert on_ranks(notebook, use).stdout == "1\n"
    notebook.run("boxed.held.k = 5\nsys.path.pop(0)")
    assert on_ranks(notebook, use).stdout == "5\n"


TRAINER = """
import numpy as np, torch
from torch import nn
class Trainer:
    def __init__(self, net):
        self.net, self.log, self.conf = net, [], {'sgd': {'lr': 0.5}, 'n': [1]}
        self.opt = torch.optim.SGD(net.parameters(), lr=0.5)
    def fit(self):
        self.net(torch.ones(1, 1)).sum().backward()
        self.opt.step()
        self.log.append(1)
"""


def test_names_of_what_was_brought_inside_of_something_are_the_same_there(notebook: Kernel) -> None:
    notebook.run(f"{TRAINER}\nnet = line(1)\ntrainer = Trainer(net)\nsgd = trainer.conf['sgd']")
    told = on_ranks(notebook, "trainer.fit()").text
    assert "trainer" in told
    assert "net" not in told, "the cell has not named it"
    use = "print(net is trainer.net, net.weight.item(), sgd is trainer.conf['sgd'])"
    assert on_ranks(notebook, use).text == "True 0.5 True\n"
    assert printed_by(notebook, 1) == "True 0.5 True\n"
    notebook.run("%dist pull net\nnet = line(2)\ntrainer = Trainer(net)")
    on_ranks(notebook, "trainer.fit()")
    assert on_ranks(notebook, use).text == "True 1.5 False\n", "as in a plain kernel"
    on_ranks(notebook, "net = None")
    notebook.run("trainer = Trainer(net)")
    on_ranks(notebook, "trainer")
    assert on_ranks(notebook, "print(net)").stdout == "None\n", "a cell has bound it"


LATER = {
    "held = {(0, 1): [1]}": "held[0, 1]",
    "class Split(enum.Enum):\n    A = 1\nheld = {Split.A: [1]}": "held[Split.A]",
    "class Conf(dict):\n    __getattr__ = dict.__getitem__\nheld = Conf(a=[1])": "held.a",
    "class Conf(list):\n    pass\nheld = Conf([[1]])": "held[0]",
    "class held:\n    made = {'a': [1]}": "held.made['a']",
    "class Conf:\n    __slots__ = ['a']\nheld = Conf(); held.a = [1]": "held.a",
    "held = ([1], 2)": "held[0]",
    "class Conf(typing.NamedTuple):\n    a: list\nheld = Conf([1])": "held.a",
    "held = {notes(a=[1]): 1}": "[*held][0].a",
    "held = types.SimpleNamespace(data=DataLoader(Subset([1], [0])))": "held.data.dataset.dataset",
}
"""What is brought, and a part of it that gets a name only then."""


@pytest.mark.parametrize("given", LATER)
def test_a_part_that_gets_a_name_later_is_the_same_object(notebook: Kernel, given: str) -> None:
    notebook.run(
        "import enum, typing\nclass notes:\n    def __init__(self, a):\n        self.a = a"
    )
    notebook.run(f"from torch.utils.data import DataLoader, Subset\n{given}")
    on_ranks(notebook, "held")
    notebook.run(f"part = {LATER[given]}")
    assert on_ranks(notebook, f"part.append(2)\nprint({LATER[given]})").stdout == "[1, 2]\n"


CONFIGURED = """
class Conf:
    def __init__(self):
        self.k = 1
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.conf, self.heads = torch.nn.Linear(1, 1), Conf(), [torch.nn.ReLU()]
net = Net()
"""


def test_an_attribute_of_a_model_that_gets_a_name_later_is_the_same_object(
    notebook: Kernel,
) -> None:
    notebook.run(CONFIGURED)
    on_ranks(notebook, "with torch.no_grad():\n    net.layer.weight += 1")
    notebook.run("conf, head = net.conf, net.heads[0]")
    use = "print(conf is net.conf, head is net.heads[0], net.conf.k)"
    assert on_ranks(notebook, use).stdout == "True True 1\n"
    notebook.run("conf.k = 5")
    assert on_ranks(notebook, "print(net.conf.k)").text.endswith("\n5\n")


def test_what_a_model_holds_follows_under_its_own_name(notebook: Kernel) -> None:
    notebook.run(f"{CONFIGURED}\nsettings = {{'k': 1}}")
    on_ranks(notebook, "settings")
    notebook.run("net.settings, net.conf = settings, None")
    use = "print(net.settings['k'])"
    assert on_ranks(notebook, use).stdout == "1\n"
    notebook.run("settings['k'] = 5")
    cell = on_ranks(notebook, use)
    assert cell.stdout == "5\n"
    assert "was changed in place" not in cell.text


def test_a_holder_is_told_of_a_change_that_only_a_copy_gets(notebook: Kernel) -> None:
    notebook.run(CONFIGURED)
    on_ranks(notebook, "net")
    notebook.run("net.conf.k = 5\nconf = net.conf")
    assert on_ranks(notebook, "print(conf.k)").stdout == "5\n"
    cell = on_ranks(notebook, "print(net.conf.k)")
    assert cell.stdout == "1\n"
    assert "`net` was changed in place in the notebook" in cell.text


def test_what_the_ranks_do_not_have_alike_is_copied_from_what_holds_it(notebook: Kernel) -> None:
    notebook.run(f"{TRAINER}\ntrainer = Trainer(line(1))\ntrained = Trainer(line(1))")
    notebook.run("data = torch.utils.data.TensorDataset(torch.zeros(2))")
    on_ranks(notebook, "trainer, data\ntrained.fit()")
    notebook.run(
        "made, opt, sgd = trainer.net, trainer.opt, trainer.conf['sgd']\n"
        "rows = {'x': data.tensors[0]}\n"
        "steps, old = torch.optim.lr_scheduler.StepLR(trained.opt, 1), [trained.conf['n']]"
    )
    cell = on_ranks(
        notebook,
        "made.weight.data.fill_(5)\nprint(trainer.net.weight.item(), opt is trainer.opt)\n"
        "print(sgd is trainer.conf['sgd'], opt.param_groups[0]['params'][0] is made.weight)\n"
        "rows['x'] += 1\nprint(data[0][0].item(), steps.optimizer is trained.opt, old)",
    )
    assert cell.stdout == "5.0 True\nTrue True\n1.0 False [[1]]\n"
    assert "`steps` was brought with the notebook's `trained`, but cells have changed" in cell.text
    assert "`old` was brought" not in cell.text, "its value is right"
    notebook.run("trainer.conf['n'].append(2)\nn = trainer.conf['n']")
    assert on_ranks(notebook, "print(n)").stdout == "[1, 2]\n", "the ranks' trainer has no such one"


def test_each_change_of_what_is_brought_once_is_told(notebook: Kernel) -> None:
    notebook.run("held = Holder(net, conf); use = lambda: held.best\nheld.best = 0")
    code = "print(held.best, held.held[1]['lr'])"
    on_ranks(notebook, code)
    told = "`held` was changed in place in the notebook after it was brought"
    notebook.run("held.best = 1")
    cell = on_ranks(notebook, code)
    assert cell.stdout == "0 1\n"
    assert told in cell.text
    assert told not in on_ranks(notebook, code).text
    notebook.run("held.best = 2")
    assert told in on_ranks(notebook, code).text, "another change"
    notebook.run("held.best = 3")
    assert told in on_ranks(notebook, "print(use())").text, "which a function reads"


def test_what_holds_settings_is_not_said_to_be_changed_by_cells(notebook: Kernel) -> None:
    notebook.run("held = Holder(net, conf)")
    on_ranks(notebook, "print(held.held[1], conf)")
    notebook.run("conf['lr'] = 2")
    assert on_ranks(notebook, "print(held.held[1]['lr'], conf['lr'])").stdout == "2 2\n"
    assert "cells have changed it" not in notebook.run("held.held[1]").text


def test_a_scheduler_that_is_brought_knows_of_its_optimizers_steps(notebook: Kernel) -> None:
    notebook.run(
        "net = torch.nn.Linear(1, 1)\nopt = torch.optim.SGD(net.parameters(), lr=1.0)\n"
        "sched = torch.optim.lr_scheduler.StepLR(opt, 1)"
    )
    cell = on_ranks(notebook, "opt.step()\nsched.step()\nprint(opt.param_groups[0]['lr'])")
    assert cell.stdout == "0.1\n"
    assert "overridden" not in cell.text


def test_a_name_that_a_function_binds_on_the_ranks_is_told(notebook: Kernel) -> None:
    notebook.run("count = 0\ndef step():\n    global count\n    count += 1")
    assert on_ranks(notebook, "step()\nprint(count)").stdout == "1\n"
    notebook.run("count = 0")
    told = "`count` got the value 0 in the notebook after a cell had assigned 1 on the ranks."
    assert told in on_ranks(notebook, "print(count)").text
