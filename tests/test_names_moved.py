"""Names that are moved by hand: pushed, pulled, returned, and what cannot be."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.helpers.notebook import new_ranks, on_ranks, plain

if TYPE_CHECKING:
    from tests.helpers.kernel import Kernel


def test_what_is_pushed_by_keyword_is_the_ranks_own(notebook: Kernel) -> None:
    notebook.run(
        "import nbdist\nfactor = 2\ngiven = 'of the notebook'\n"
        "nbdist.cluster().push(keyword=5, scaled=lambda x: factor * x, given='pushed')"
    )
    assert on_ranks(notebook, "print(keyword, scaled(1))").text == "5 2\n", "nothing was deleted"
    notebook.run("factor = 3")
    assert on_ranks(notebook, "print(scaled(1))").stdout == "3\n", "its later reads are followed"
    assert on_ranks(notebook, "print(given)").stdout == "of the notebook\n"
    notebook.run("del given")
    assert "`given` was deleted" in on_ranks(notebook, "print(given)").text
    notebook.run("keyword = 6")
    assert on_ranks(notebook, "print(keyword)").stdout == "6\n"


TENSORS = """
import torch, warnings
warnings.simplefilter("ignore")  # of kinds that torch calls prototypes
class Sub(torch.Tensor):
    pass
def tensors():
    row, eye = torch.arange(6.0), torch.eye(4)
    complex_row = torch.complex(row, row + 1)
    found = {
        "quantized": torch.quantize_per_tensor(row, 0.5, 1, torch.qint8),
        "by channel": torch.quantize_per_channel(
            eye, torch.full((4,), 0.5), torch.zeros(4), 0, torch.quint8
        ),
        "large": torch.quantize_per_tensor(torch.arange(4e5), 0.5, 1, torch.qint32),
        "csr": eye.to_sparse_csr(), "csc": eye.to_sparse_csc(), "coo": eye.to_sparse(),
        "bsr": eye.to_sparse_bsr((2, 2)), "bsc": eye.to_sparse_bsc((2, 2)),
        "nested": torch.nested.nested_tensor([row, row[:2]]),
        "complex": complex_row, "conjugate": complex_row.conj(),
        "negative": complex_row.conj().imag,
        "empty": row[:0].reshape(0, 3), "meta": torch.empty(3, device="meta"),
        "view": eye[1:].t(), "expanded": row[:1].expand(5), "subclass": row.as_subclass(Sub),
        "parameter": torch.nn.Parameter(row), "gradient": row.clone().requires_grad_(),
        "bfloat16": row.bfloat16(), "uint16": row.to(torch.uint16), "uint64": row.to(torch.uint64),
        "float8": row.to(torch.float8_e4m3fn),
        "large float8": torch.ones(400_000).to(torch.float8_e5m2),
    }
    found["parameter of float8"] = torch.nn.Parameter(found["float8"], requires_grad=False)
    found["subclass of float8"] = found["float8"].as_subclass(Sub)
    return found
def look(found):
    for name, tensor in found.items():
        plain = tensor.float() if "float8" in name else tensor
        print(name, type(tensor).__name__, tensor.layout, plain)
"""


def test_tensors_of_each_kind_travel_in_a_dict_and_back(notebook: Kernel) -> None:
    notebook.run(TENSORS)
    here = notebook.run("found = tensors()\nlook(found)").stdout
    assert on_ranks(notebook, "look(found)").stdout == here
    on_ranks(notebook, "made = tensors()", "--return made")
    assert notebook.run("look(made)").stdout == here


def test_all_that_take_names_take_commas_and_blanks(notebook: Kernel) -> None:
    notebook.run("one, two, three = 1, 2, 3")
    told = "Brought to 2 ranks: one (int), two (int), three (int)."
    for names in ("one,two,three", "one, two three", "one two ,three"):
        assert told in notebook.run(f"%dist push {names}").text
        assert told in on_ranks(notebook, "pass", f"--bring {names} --timeout 50").text
        notebook.run("one = two = three = 0")
        returned = on_ranks(notebook, "pass", f"--return {names} --output rank0").text
        assert returned == "Returned from rank 0: one (5 B), two (5 B), three (5 B).\n"
        notebook.run("one = two = three = 0")
        assert "one, two, three." in notebook.run(f"%dist pull {names}").text
        assert notebook.run("one, two, three").text == "(1, 2, 3)\n"
        listed = notebook.run(f"%dist who {names}").text
        assert [line.split()[0] for line in listed.splitlines()[1:]] == ["one", "three", "two"]
    on_ranks(
        notebook,
        "import torch\nnets = {'a, b': torch.nn.Linear(1, 1)}\nnet = torch.nn.Linear(1, 1)",
    )
    told = notebook.run("%dist sync \"nets['a, b']\", net").text
    assert told.count("is now on all ranks") == 2
    notebook.run("%dist preload json, decimal")
    assert "json, decimal" in notebook.run("%dist preload").text


def test_a_part_of_a_value_is_bound_to_its_last_name(notebook: Kernel) -> None:
    notebook.run("module = 'of the notebook'\nclass Holder: pass")
    body = """
        model = Holder()
        model.module, model.inner, model.nothing = [rank], {"a": Holder()}, None
        model.inner["a"].last = "deep"
        module
    """
    paths = "model.module,\"model.inner['a'].last\" model.nothing"
    cell = on_ranks(notebook, body, f"--return {paths}")
    assert "model.module as `module` (" in cell.text
    assert notebook.run("module, last, nothing").text == "([0], 'deep', None)\n"
    assert on_ranks(notebook, "print(module)").stdout == "[0]\n", "it is the notebook's name now"
    pulled = notebook.run("%dist pull model.module, model.nothing --ranks 0-1").text
    assert pulled == "Bound in the notebook: model.module as module, model.nothing as nothing.\n"
    assert notebook.run("module").text == "{0: [0], 1: [1]}\n"
    assert notebook.run("import nbdist\nnbdist.cluster().pull('model.module', 1)").text == "[1]\n"
    for wrong, told in {
        "%dist pull model.missing": "`model.missing` cannot be returned",
        "%dist pull model.inner['a']": "is not a name, or a path that ends with one",
        "%dist pull model.last other.last": "would be bound to the same name",
        "%dist push module.part": "bind it to a name first: part = module.part",
        "%%distributed --return class\nprint('ran')": "'class' is not a name",
    }.items():
        failed = plain(notebook.run(wrong, check=False).text)
        assert told.replace("`", "") in failed.replace("`", "")
        assert "ran\n" not in failed


UNTIDY = """
import functools, threading, torch, weakref
class Callback: pass
class Slotted:
    __slots__ = ("unset", "lock")
def hook_with(lock):
    return lambda *_: lock
callback, slotted = Callback(), Slotted()
callback.ref, slotted.lock = weakref.ref(callback), threading.Lock()
net, hooked = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.ReLU()), torch.nn.Linear(1, 1)
net[1].callback = callback
hooked.register_forward_hook(hook_with(threading.Lock()))
bundle = {"plain": [1, 2], "deep": [3, {4: net}]}
opened = functools.partial(print, file=open("/dev/null"))
numbers = {"left": (n for n in range(3))}
dense = [torch.ones(2).to_mkldnn()]
alone = threading.Lock()
"""
CULPRITS = {
    "bundle": r"`bundle\['deep'\]\[1\]\[4\]\[1\].callback.ref` is a weakref.ReferenceType; set it",
    "slotted": r"`slotted.lock` is a _thread.lock; set it to None or leave it out",
    "net": r"`net\[1\].callback.ref` is a weakref.* or bind `net.state_dict\(\)` to a name, and",
    "hooked": r"`hooked._forward_hooks\[\d+\].<locals>.lock` is a _thread.lock; remove that hook",
    "opened": r"`opened.keywords\['file'\]` is an open file \('/dev/null'\); set it to None or",
    "numbers": r"`numbers\['left'\]` is a generator; it cannot be copied: make a list of it",
    "dense": r"`dense\[0\]` holds a tensor without a storage \(mkldnn\); its `.to_dense\(\)` can",
}


def test_what_cannot_travel_is_named_by_its_path_with_what_to_do(notebook: Kernel) -> None:
    on_ranks(notebook, UNTIDY)
    wrapped = "bundle2 = [torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))]"
    failed = on_ranks(
        notebook, wrapped, f"--return {','.join(CULPRITS)},alone,bundle2", check=False
    )
    lines = failed.error.splitlines()
    for name, told in CULPRITS.items():
        assert any(re.search(f"`{name}` cannot be returned from rank 0: {told}", x) for x in lines)
    assert "`alone` cannot be returned from rank 0: it is or holds a _thread.lock" in failed.error
    assert "it belongs to its process: return what it is made from" in failed.error
    assert "`bundle2[0].module` can be returned" in failed.error
    assert "create it in the cell" not in failed.error

    new_ranks(notebook)
    notebook.run(UNTIDY)
    failed = on_ranks(notebook, f"print({', '.join(CULPRITS)})", check=False)
    for name, told in CULPRITS.items():
        assert re.search(f"`{name}` cannot be brought to the ranks: {told}", failed.error)


def test_a_name_that_nothing_binds_is_told_before_the_cell_runs(notebook: Kernel) -> None:
    notebook.run("def binds():\n    global by_function\n    by_function = 1")
    notebook.run("import nbdist\nnbdist.cluster().push(**{'push' + 'ed': 2})")
    told = "cannot be returned: neither this cell nor an earlier one binds it"
    for flags in ("", "--launcher torchrun"):
        cell = on_ranks(
            notebook, "losses = [1]\nprint('ran')", f"--return loses {flags}", check=False
        )
        assert f"`loses` {told}; did you mean `losses`? (nothing was started)" in cell.error
        assert not cell.stdout
        again = on_ranks(notebook, "print('ran')", f"--return loses.part {flags}", check=False)
        assert f"`loses` {told} (nothing was started)" in again.error, "flags bind nothing"
    notebook.run("%dist start --launcher engines -np 2")
    on_ranks(notebook, "binds()", "--return by_function")
    on_ranks(notebook, "1", "--return pushed,world_size")
    assert notebook.run("by_function, pushed, world_size").text == "(1, 2, 2)\n"
    notebook.run("del world_size")


def test_what_by_its_kind_is_never_returned_is_told_before_the_cell_runs(notebook: Kernel) -> None:
    body = """
        import torch
        wrapped = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
        stream, log = (n for n in range(3)), open("/dev/null")
        def unwrap():
            global unwrapped
            unwrapped = unwrapped.module
        unwrapped = wrapped
        def part(n): pass
        part.later = stream
    """
    on_ranks(notebook, body)
    before = on_ranks(notebook, "print('ran')", "--return wrapped,stream,log", check=False)
    assert not before.stdout
    assert "`wrapped` cannot be returned" in before.error
    assert "`wrapped.module` can be returned" in before.error
    assert "`stream` cannot be returned from rank 0: it is or holds a generator" in before.error
    assert before.error.strip().endswith("Nothing was brought or started.")
    made = "unwrap()\nstream = [*stream]\nlog = 'closed'\npart.later = 1"
    on_ranks(notebook, made, "--return stream,log,unwrapped,wrapped.module,part.later")
    assert notebook.run("print(stream, log, unwrapped, module)").stdout == (
        "[0, 1, 2] closed Linear(in_features=1, out_features=1, bias=True) "
        "Linear(in_features=1, out_features=1, bias=True)\n"
    )


def test_what_code_may_bind_unseen_is_returned(kernel: Kernel) -> None:
    kernel.run("%load_ext nbdist")
    hidden = on_ranks(kernel, "exec('un' + 'seen = 3')", "-np 1 --backend none --return unseen")
    assert "Returned from rank 0: unseen" in hidden.text, "nobody can know it before"
