"""What ranks draw at random, and which rank an object believes to be on, in generated programs.

A few programs, always the same; `make programs N=2000` draws others.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings

from tests.helpers.notebook import on_ranks, plain
from tests.helpers.program_draws import BY_HAND, DRAWN
from tests.helpers.rank_programs import BELIEFS, NOTEBOOKS, beliefs, drawings

if TYPE_CHECKING:
    from tests.helpers.kernel import Kernel
    from tests.helpers.rank_programs import Believing, Drawing

pytestmark = pytest.mark.repeats

ENGINES = "-np 2 --backend ddp --launcher engines"
THREE = "-np 3 --backend ddp --launcher engines"
"""If one is lost, the two others can be compared."""
TOLD = """import torch.distributed as dist
of_all = [None] * world_size
dist.all_gather_object(of_all, {})
print('>', of_all)"""
"""Lets rank 0 print what all ranks have."""


def _of_all(text: str) -> list[dict[str, object]]:
    line = next(line for line in text.splitlines() if line.startswith("> "))
    found: list[dict[str, object]] = ast.literal_eval(line[2:])
    return found


@pytest.mark.timeout(0 if BY_HAND else 300)
def test_unseeded_draws_differ_between_ranks_and_runs(notebook: Kernel) -> None:
    flags = [ENGINES, "-np 2 --backend ddp --launcher torchrun"]

    @settings(DRAWN, max_examples=max(4, BY_HAND // 100))
    @given(drawings())
    def check(drawing: Drawing) -> None:
        runs = []
        for flag in flags:
            for _ in range(2):
                cell = on_ranks(notebook, f"{drawing.text}\n{TOLD.format('drawn')}", flag)
                runs += _of_all(cell.stdout)
                notebook.run("%dist restart")
        for kind in drawing.kinds:
            values = [run[kind] for run in runs]
            different = len(set(map(str, values)))
            if drawing.same_everywhere(kind):
                assert different == 1, (kind, drawing, values)
            elif not drawing.seed:
                assert different == len(values), (kind, drawing, values)

    check()


@pytest.mark.timeout(0 if BY_HAND else 300)
def test_a_rank_made_like_another_one_knows_which_rank_it_is(notebook: Kernel) -> None:
    @settings(DRAWN, max_examples=max(4, BY_HAND // 50))
    @given(beliefs(tuple(BELIEFS), "mine"))
    def check(program: Believing) -> None:
        shown = TOLD.format(program.shown(BELIEFS))
        before = _of_all(on_ranks(notebook, f"{program.made(BELIEFS)}\n{shown}", THREE).stdout)
        lost = program.copied
        said = on_ranks(notebook, f"if rank == {lost}: os.kill(os.getpid(), 9)", check=False).text
        said += notebook.run(f"%dist restart {lost} --like {1 - lost}").text
        cell = on_ranks(notebook, shown)
        after, said = _of_all(cell.stdout), plain(said + cell.text.replace(cell.stdout, ""))
        for name, kind, _ in program.names:
            wrong = [r for r in range(3) if before[r][name] != after[r][name]]
            assert not wrong or name in said, (name, kind, program, before, after, said)

    check()


@pytest.mark.timeout(0 if BY_HAND else 300)
def test_what_the_notebook_made_for_one_process_serves_all_ranks(notebook: Kernel) -> None:
    @settings(DRAWN, max_examples=max(4, BY_HAND // 50))
    @given(beliefs(tuple(NOTEBOOKS), "sent"))
    def check(program: Believing) -> None:
        notebook.run(program.made(NOTEBOOKS))
        cell = on_ranks(notebook, TOLD.format(program.shown(NOTEBOOKS)), ENGINES)
        told = plain(cell.text)
        for name, kind, size in program.names:
            seen = sorted(_flat([each[name] for each in _of_all(cell.stdout)]))
            once = seen == list(range(size))
            assert once or f"`{name}" in told, (name, kind, seen, told)

    check()


def _flat(value: object) -> list[int]:
    return [n for each in value for n in _flat(each)] if isinstance(value, list) else [value]  # type: ignore[list-item]
