"""What one types without `%%distributed`, or does not bring: cells say whose value they use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.helpers.notebook import new_ranks, on_ranks

if TYPE_CHECKING:
    from pathlib import Path

    from tests.helpers.kernel import Kernel

NEWER = (
    "`lr` got the value {} in the notebook after a cell had assigned {} on the ranks. This cell "
    "uses the ranks' value; `--bring lr` brings the notebook's."
)

ANSWERS_LATE = (
    "import nbdist.magics.own_values as one, nbdist.notebook.names_both_ways as two\n"
    "one.LOOK_SECONDS = two.LOOK_SECONDS = 20\ndel one, two"
)
"""Run in the notebook: nothing is left unsaid because a rank gets no core for a while."""


@pytest.fixture(autouse=True)
def _names_of_no_other_test(notebook: Kernel) -> None:
    notebook.run(ANSWERS_LATE)
    notebook.run("%px %reset -f")
    notebook.run(
        "_kept = {'nbdist', 'In', 'Out', 'get_ipython', 'exit', 'quit', 'open'}\n"
        "[globals().pop(n) for n in [*globals()] if n[0] != '_' and n not in _kept] and None"
    )


def test_a_plain_assignment_after_that_of_the_ranks_is_told_the_first_time(
    notebook: Kernel,
) -> None:
    on_ranks(notebook, "lr = 0.1\ndef train():\n    return lr * 2")
    notebook.run("lr = 0.5")
    assert on_ranks(notebook, "print(lr)").text == f"{NEWER.format(0.5, 0.1)}\n0.1\n"
    assert on_ranks(notebook, "print(lr)").text == "0.1\n", "it is told once"
    notebook.run("lr = 0.6")
    on_ranks(notebook, "other = 1")
    told = on_ranks(notebook, "print(train())")
    assert told.text == f"{NEWER.format(0.6, 0.1)}\n0.2\n", "functions of the ranks read it, too"
    notebook.run("lr = 0.7")
    assert on_ranks(notebook, "%%time\nx = lr").text.startswith(NEWER.format(0.7, 0.1))
    assert on_ranks(notebook, "print(lr)", "--bring lr").stdout == "0.7\n"
    assert notebook.run("print(lr)").text == "0.7\n", "both ends are equal"


def test_what_ranks_have_assigned_last_is_used_without_a_word(notebook: Kernel) -> None:
    notebook.run("lr = 1")
    assert on_ranks(notebook, "print(lr)").stdout == "1\n"
    notebook.run("lr = 2")
    on_ranks(notebook, "lr = 3")
    assert on_ranks(notebook, "print(lr)").text == "3\n"
    notebook.run("lr = 3")
    assert on_ranks(notebook, "print(lr)").text == "3\n", "the values are equal"
    on_ranks(notebook, "for i in range(2): pass")
    notebook.run("for i in range(3): pass")
    assert on_ranks(notebook, "for i in range(2): pass\nprint(i)").text == "1\n"
    on_ranks(notebook, "lr = 4", "--return lr")
    assert notebook.run("print(lr)").text == "4\n"
    assert on_ranks(notebook, "lr += 1\nprint(lr)").text == "5\n"
    on_ranks(notebook, "lr = 6 + rank")
    notebook.run("%dist pull lr --ranks 0,1")
    assert on_ranks(notebook, "print(lr)").text == "6\n"
    on_ranks(notebook, "import math as m\nfrom json import dumps")
    notebook.run("import math as m\nfrom json import dumps")
    assert on_ranks(notebook, "print(m.floor(1.5), dumps(1))").text == "1 1\n"
    on_ranks(notebook, "def step(): global count; count = 7\ncount = 6")
    notebook.run("count = 5")
    on_ranks(notebook, "count = 6\nstep()")
    assert on_ranks(notebook, "print(count)").text == "7\n"
    notebook.run("lr = 8")
    new_ranks(notebook)
    told = on_ranks(notebook, "print(lr)").text
    assert told == "Brought to 2 ranks: lr (int).\n8\n", "new ranks have no value of their own"


def test_a_definition_that_was_edited_in_a_plain_cell_is_told(notebook: Kernel) -> None:
    net = """
        from dataclasses import dataclass
        @dataclass
        class Conf:
            lr: float = 0.1
        def outer(n, *, by=2):
            def inner(x):
                return [x * each for each in range(n)] + [by, {'a', 'b'} and ...]
            return inner
        made = outer(3)
        class Net:
            WIDTH = 4
            def go(self):
                return f'{self.WIDTH} old'
            @property
            def wide(self):
                return lambda: self.WIDTH
    """
    on_ranks(notebook, net)
    shown = "print(Net().go(), len(made(1)), outer(1)(2)[0], Conf())"
    plain = on_ranks(notebook, shown).stdout
    notebook.run("\n".join(line[8:] for line in net.split("\n")))
    assert on_ranks(notebook, shown).text == plain, "the same text at both ends is no change"
    notebook.run("class Net:\n    WIDTH = 4\n    def go(self): return f'{self.WIDTH} new'")
    cell = on_ranks(notebook, shown)
    assert cell.stdout == plain
    assert "`Net` was defined again in the notebook after a cell had defined it" in cell.text
    assert "`--bring Net` brings the notebook's" in cell.text
    assert on_ranks(notebook, "print(Net().go())", "--bring Net").stdout == "4 new\n"


def test_a_plain_cell_says_that_ranks_have_changed_what_it_reads(notebook: Kernel) -> None:
    notebook.run(
        "import torch\nresults, acc, same = [], 0, 1\nmodel = torch.nn.Linear(2, 1)\n"
        "opened = {}\ndef show():\n    return results"
    )
    assert notebook.run("print(results, acc)").text == "[] 0\n"
    on_ranks(
        notebook, "results.append(rank)\nacc, same = 0.9, 1\nmodel.weight.data.add_(1)\nopened"
    )
    told = notebook.run("%%capture out\nprint(show())")
    assert told.text == (
        "This cell has read the notebook's own `results` ([] here, [0] on rank 0); cells have "
        "changed it on the ranks. `%dist pull results` brings rank 0's value.\n"
    )
    assert notebook.run("print(results)").text == "[]\n", "it is told once"
    both = notebook.run("print(acc, same, opened)\nweights = model.state_dict()").text
    assert "own `acc` (0 here, 0.9 on rank 0), `model`; cells have changed them" in both
    assert notebook.run("%dist pull results acc\nprint(results, acc)").stdout.endswith("[0] 0.9\n")
    assert notebook.run("print(results, acc)").text == "[0] 0.9\n"
    on_ranks(notebook, "print(results)")
    assert notebook.run("print(results)").text == "[0]\n", "it was not changed again"
    on_ranks(notebook, "results.append(5)\nacc = 1.0")
    assert "[0, 5] on rank 0" in notebook.run("print(results)").text
    assert notebook.run("acc = 2\nprint(acc)").text == "2\n", "the plain cell has bound it"
    on_ranks(notebook, "model.weight.data.add_(1)")
    kept = notebook.run("_ = model.load_state_dict({k: v * 2 for k, v in weights.items()})")
    assert kept.text == "", "the plain cell has changed it, too"
    on_ranks(notebook, "trained = torch.nn.Linear(1, 1)", "--return trained")
    on_ranks(notebook, "print(trained.training)")
    assert notebook.run("print(trained.training)").text == "True\n"


def test_ranks_that_are_busy_are_not_said_to_have_changed_what_was_returned(
    notebook: Kernel, tmp_path: Path
) -> None:
    on_ranks(notebook, "given = [rank]", "--return given")
    ends = tmp_path / "ends"
    waits = f"""
        import os, time
        while not os.path.exists({str(ends)!r}):
            time.sleep(0.01)
        given.append(5)
    """
    on_ranks(notebook, waits, "--async")
    assert notebook.run("print(given)").text == "[0]\n", "nothing has changed so far"
    ends.touch()
    notebook.run("import nbdist\nnbdist.jobs()[-1].wait()")
    told = notebook.run("print(given)").text
    assert "own `given` ([0] here, [0, 5] on rank 0); cells have changed it" in told


def test_a_change_that_the_notebook_takes_back_is_told(notebook: Kernel) -> None:
    notebook.run("back = [1]")
    on_ranks(notebook, "back = [1, 2]")
    assert notebook.run("back.append(2)").text == "", "both ends have the same"
    notebook.run("back.pop()")
    told = on_ranks(notebook, "print(back)").text
    assert "`back` got the value [1] in the notebook after a cell had assigned [1, 2]" in told


def test_a_change_that_the_notebook_takes_back_is_told_if_another_rank_has_it(
    notebook: Kernel,
) -> None:
    notebook.run("partly = [1]")
    on_ranks(notebook, "if rank == 1:\n    partly.append(2)")
    notebook.run("partly.append(2)")
    notebook.run("partly.pop()")
    told = on_ranks(notebook, "print(partly)").text
    assert "`partly` was changed in the notebook, but cells have also changed `partly`" in told


def test_names_that_only_ranks_have_are_told_after_a_name_error(notebook: Kernel) -> None:
    on_ranks(notebook, "loss = 0.5\nif rank == 1:\n    mine = 2")
    cell = notebook.run("print(loss)", check=False)
    assert cell.error.startswith("NameError")
    assert "`loss` is on the ranks: `%%distributed` runs a cell there, `%dist pull loss` " in (
        cell.text
    )
    assert (
        "`%dist pull mine --ranks 1` brings the value of rank 1"
        in notebook.run("mine", check=False).text
    )
    assert "`world_size` is defined on the ranks" in notebook.run("world_size", check=False).text
    assert "on the ranks" not in notebook.run("nowhere", check=False).text
    notebook.run("%dist auto on")
    assert "on the ranks" not in notebook.run("print(nowhere)", check=False).text
    notebook.run("%dist auto off")


def test_a_plain_cell_may_bind_what_it_has_bound_before(notebook: Kernel) -> None:
    notebook.run("lr = 3")  # one object for all numbers 3
    on_ranks(notebook, "lr = 10")
    notebook.run("lr = 3")
    assert notebook.run("print(lr)").text == "3\n", "it is what the notebook has bound last"
    assert on_ranks(notebook, "print(lr)").text == f"{NEWER.format(3, 10)}\n10\n"


def test_a_model_that_both_ends_have_changed_is_told_in_one_line(notebook: Kernel) -> None:
    notebook.run("import torch")
    on_ranks(notebook, "net = torch.nn.Linear(1, 1)", "--return net")
    notebook.run("_ = net.weight.data.fill_(7)")
    told = on_ranks(notebook, "print(net.weight.item() == 7)").text
    assert told.startswith("`net` was changed in place in the notebook")
    assert told.count("`--bring net`") == 1
    assert on_ranks(notebook, "print(net.weight.item() == 7)").text == "False\n", "it is told once"


@pytest.mark.parametrize(
    "cell",
    ["items.append(0)", "n = len(items)\nitems = [n]", "x = [*items]\ndel items[:]"],
)
def test_a_plain_cell_that_changes_what_it_has_read_is_told(notebook: Kernel, cell: str) -> None:
    notebook.run("items = [5, 2]")
    on_ranks(notebook, "items += [9, 0]")
    assert "has read the notebook's own `items`" in notebook.run(cell).text


def test_classes_that_ranks_have_changed_are_told(notebook: Kernel) -> None:
    notebook.run("class Net:\n    scale = 1\nnet = Net()")
    on_ranks(notebook, "Net.scale += net.scale")
    told = "has read the notebook's own `Net`"
    assert told in notebook.run("print(net.scale)").text
    on_ranks(notebook, "class Net:\n    scale = 7")
    assert told in notebook.run("Net.more = 1\nprint(Net.scale)").text


def test_what_methods_read_is_told(notebook: Kernel) -> None:
    notebook.run(
        "lr = 1\ndef rate():\n    return lr\nclass Base:\n    @property\n    def now(self):\n"
        "        return rate()\nclass Net(Base):\n    pass\nnet = Net()"
    )
    on_ranks(notebook, "lr = 2 + net.now")
    assert "has read the notebook's own `lr` (1 here, 3 on rank 0)" in notebook.run("net.now").text


def test_gradients_that_only_the_ranks_have_are_told(notebook: Kernel) -> None:
    notebook.run("import torch\nnet = torch.nn.Linear(1, 1)")
    on_ranks(notebook, "net(torch.ones(1)).backward()")
    assert "has read the notebook's own `net`" in notebook.run("print(net.weight.grad)").text
    on_ranks(notebook, "net.zero_grad()")
    assert notebook.run("print(net.weight.grad)").text == "None\n"
