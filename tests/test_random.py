"""Random numbers: each process draws its own, as a new process does, whoever launches it."""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING

import pytest

from nbdist.machine import random_numbers
from tests.helpers.notebook import on_ranks

if TYPE_CHECKING:
    from tests.helpers.kernel import Kernel

MODULE = """
import random, numpy, torch
class Seeds(torch.utils.data.Dataset):
    def __len__(self): return 1
    def __getitem__(self, i): return torch.utils.data.get_worker_info().seed
own = [random.Random().random, numpy.random.default_rng().random, numpy.random.RandomState().rand]
seeded = [random.Random(5).random, numpy.random.default_rng(5).random,
    numpy.random.RandomState(5).rand, torch.Generator().initial_seed]
"""
DRAWS = """
import preloaded, random, numpy, torch
from multiprocessing import process
print("seeded", *[draw() for draw in preloaded.seeded])
print("own", torch.initial_seed(), torch.rand(1).item(), random.random(), numpy.random.rand(),
    *[draw() for draw in preloaded.own], *torch.utils.data.DataLoader(preloaded.Seeds(),
    num_workers=1).__iter__().__next__().tolist(), process.current_process().authkey.hex())
"""
PROCESSES = {
    "-np 2": 2, "-np 2 --launcher engines": 2, "-np 2 --launcher torchrun": 2,
    "-np 1 --launcher torchrun": 1, "--launcher python": 1,
}  # fmt: skip
"""Flags, each with the number of processes that they start."""


@pytest.fixture(scope="module")
def warm(shared_kernel: Kernel) -> Kernel:
    """Return a kernel whose ranks are forked from a process that has imported generators."""
    folder = shared_kernel.home / "modules"
    folder.mkdir()
    (folder / "preloaded.py").write_text(MODULE)
    shared_kernel.run(f"%load_ext nbdist\nimport sys\nsys.path.insert(0, {str(folder)!r})")
    shared_kernel.run("%dist preload preloaded")
    return shared_kernel


def drawn(kernel: Kernel, flags: str) -> tuple[list[str], set[str]]:
    """Return what each process draws of its own, and what seeded generators give."""
    text = on_ranks(kernel, DRAWS, f"{flags} --output all").stdout
    own = re.findall(r"own (.*)", text)
    return own, set(re.findall(r"seeded (.*)", text))


def test_no_process_draws_what_another_one_draws(warm: Kernel) -> None:
    numbers: list[str] = []
    seeded: set[str] = set()
    for flags, processes in PROCESSES.items():
        own, same = drawn(warm, flags)
        assert len(own) == processes, flags
        numbers += [number for line in own for number in line.split()]
        seeded |= same
        warm.run("%dist restart")
    assert len(numbers) == 9 * sum(PROCESSES.values())
    assert len(set(numbers)) == len(numbers), "drawn twice"
    assert len(seeded) == 1, "what was seeded is the same everywhere"


@pytest.mark.horovod
def test_no_process_of_horovodruns_draws_what_another_one_draws(warm: Kernel) -> None:
    own, _ = drawn(warm, "-np 2 --backend horovod --launcher horovodrun")
    assert len(own) == 2
    numbers = [number for line in own for number in line.split()]
    assert len(set(numbers)) == 18


def test_a_fork_of_the_users_goes_on_as_in_plain_python(warm: Kernel) -> None:
    body = """
        import os, torch
        state = torch.get_rng_state()
        pid = os.fork()
        if pid == 0: os._exit(int(torch.equal(state, torch.get_rng_state())))
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    """
    assert on_ranks(warm, body, "-np 2").stdout == "1\n"


def test_what_is_seeded_later_is_seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_numbers, "_unseeded", [])
    before = random.Random.seed
    with random_numbers.noting_unseeded():
        first, second = random.Random(), random.Random()  # noqa: S311  # nothing is encrypted
        second.seed(3)
        random.SystemRandom().random()
    assert random_numbers._unseeded == [first]
    assert random.Random.seed is before
