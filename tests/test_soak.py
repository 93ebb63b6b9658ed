"""A hundred faults of mixed kinds: the kept model trains on, and nothing piles up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.helpers.faults import MODELS, fails, trains_on
from tests.helpers.notebook import distributed, on_ranks

if TYPE_CHECKING:
    from tests.helpers.kernel import Kernel

pytestmark = [pytest.mark.repeats, pytest.mark.long]

FAULTS = 100
WARM_AFTER = 20
"""By then caches, arenas and threads are there that are made once."""
MEGABYTE = 1 << 20

RAISES = {
    "in a collective": "step()\nif rank == 1: raise ValueError('boom')\ndist.all_reduce(step())",
    "in a step": "if rank == 0: raise ValueError('boom')\nstep()",
    "in Python": "1 / 0",
    "in new_group": "if rank == 1: raise ValueError('boom')\ndist.new_group([0, 1])",
}
STOPS = {
    "mismatched": "if rank == 0: dist.all_reduce(torch.ones(2))\nelse: dist.barrier()",
    "training": "while True: step()",
    "sleeping": "time.sleep(600)",
}
KINDS = [*RAISES, *STOPS]
DEATH_EVERY = 25
PARSED = """
    def parse():
        import stack_data, sys
        files = set()
        sys.setprofile(lambda frame, *_: files.add(frame.f_code.co_filename))
        try:
            step()
        finally:
            sys.setprofile(None)
        for source in map(stack_data.Source.for_filename, sorted(files)):
            source.pieces, source.tokens_by_lineno
    parse()
    del parse
"""
"""For tracebacks IPython keeps each file parsed that one has led through, some megabytes each; in
which of them an interrupt of a step strikes is by chance."""


@dataclass(frozen=True)
class Size:
    """What a process holds."""

    descriptors: int
    threads: int
    megabytes: float

    @classmethod
    def of(cls, pid: int) -> Size:
        """Measure a process."""
        process = psutil.Process(pid)
        return cls(process.num_fds(), process.num_threads(), process.memory_info().rss / MEGABYTE)


def sizes(kernel: Kernel) -> list[Size]:
    """Return the sizes of the kernel, the warm process, the controller and the oldest rank."""
    told = kernel.run("print(*[rank.pid for rank in nbdist.cluster().ranks])").stdout
    first, second = map(int, told.split())
    (warm,) = psutil.Process(kernel.pid).children()
    (controller,) = [child.pid for child in warm.children() if child.pid not in (first, second)]
    return [Size.of(pid) for pid in (kernel.pid, warm.pid, controller, first)]


def one_fault(kernel: Kernel, number: int) -> None:
    """Let one thing go wrong, and check that the model trains on."""
    kind = KINDS[number % len(KINDS)]
    if number % DEATH_EVERY == DEATH_EVERY - 1:
        failed = fails(kernel, "if rank == 1: os._exit(1)\nstep()")
        assert "Rank 1 exited with code 1" in failed.error
        assert "nothing is missing" in kernel.run("%dist restart 1 --like 0").stdout
    elif kind in RAISES:
        failed = fails(kernel, RAISES[kind])
    else:
        kernel.start(distributed(f"print('in', flush=True)\n{STOPS[kind]}"))
        kernel.expect("in")
        kernel.interrupt()
        failed = kernel.wait(20)
        assert "The cell was interrupted" in failed.text, failed.seen()
    trains_on(kernel, failed)


@pytest.mark.timeout(400)
def test_a_hundred_faults_leave_everything_as_it_was(kernel: Kernel) -> None:
    kernel.run("%load_ext nbdist\nimport nbdist")
    on_ranks(kernel, MODELS["ddp"] + "\nkept = model\nfirst = step()", "-np 2")
    on_ranks(kernel, PARSED)
    for number in range(WARM_AFTER):
        one_fault(kernel, number)
    before = sizes(kernel)
    for number in range(WARM_AFTER, FAULTS):
        one_fault(kernel, number)
    after = sizes(kernel)
    on_ranks(kernel, "assert kept is model")
    # Torch keeps a dead connection to the store for each new_group that was broken off.
    broken = sum(KINDS[n % len(KINDS)] == "in new_group" for n in range(WARM_AFTER, FAULTS))
    for earlier, later in zip(before, after, strict=True):
        told = f"after {WARM_AFTER}: {before}\nafter {FAULTS}: {after}"
        assert later.descriptors <= earlier.descriptors + broken + 2, told
        assert later.threads <= earlier.threads + 2, told
        assert later.megabytes <= earlier.megabytes + 15, told
