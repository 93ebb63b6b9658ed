"""Strategies of Hypothesis that put generated statements together to notebooks."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from tests.helpers import program_sharing, programs
from tests.helpers.program_forms import HELD, NAMES
from tests.helpers.programs import Cell, Program, Writer

BY_HAND = int(os.environ.get("NBDIST_PROGRAMS", "0"))
"""How many programs to draw that nobody has seen; 0 draws those of the suite."""
DRAWN = settings(
    database=None,
    deadline=None,
    derandomize=not BY_HAND,
    phases=(Phase.generate, Phase.shrink),
    print_blob=False,
    suppress_health_check=list(HealthCheck),
)
MOST_CELLS = 14
SLIPS = (
    programs.number, programs.count_on, programs.a_list, programs.edit_list, programs.a_dict,
    programs.edit_dict, programs.function, programs.a_class, programs.edit_class,
    programs.an_object, programs.edit_object, programs.an_array, programs.edit_array,
    program_sharing.a_module, program_sharing.train_module, program_sharing.a_holder,
    program_sharing.a_large_value,
)  # fmt: skip
"""What people write in a cell of either kind, and at times in the wrong one."""
SUBJECTS = {
    "memory": (
        programs.an_array, programs.edit_array, program_sharing.a_view, program_sharing.a_tensor,
        program_sharing.a_tensors_view, program_sharing.edit_view, program_sharing.a_holder,
        programs.edit_in_place,
    ),
    "models": (
        program_sharing.a_module, program_sharing.train_module, program_sharing.an_optimizer,
        program_sharing.wrapped_module, program_sharing.a_holder, programs.edit_in_place,
    ),
    "gradients": (
        program_sharing.a_module, program_sharing.a_gradient, program_sharing.wrapped_module,
    ),
    "held": (
        program_sharing.a_large_value, programs.a_list, programs.edit_list, programs.a_dict, programs.edit_dict,
        programs.a_class, programs.an_object, programs.edit_object, programs.alias,
        program_sharing.a_holder, programs.edit_in_place,
    ),
    "made": (
        programs.number, programs.a_list, programs.edit_list, programs.a_dict, programs.edit_dict,
        programs.a_class, programs.edit_class, programs.a_subclass, programs.an_object,
        programs.edit_object, programs.function, program_sharing.annotated,
        programs.edit_in_place,
    ),
    "odd": (programs.number, programs.anything),
}  # fmt: skip
"""Statements about one subject: what shares memory, models, what holds others, what is made."""


@st.composite
def notebooks(draw: Any) -> Program:
    """Draw a program: cells, one that observes, more cells, another that observes, perhaps more.

    Some programs have statements of all kinds, the others those of one subject.
    """
    w = Writer(draw)
    only = draw(st.sampled_from([(), (), *SUBJECTS.values()]))
    cells: list[Cell] = []
    for last in draw(st.sampled_from([(False, True), (False, False, True)])):
        begun: list[str] = []
        while len(cells) <= MOST_CELLS and (len(w.things) < 2 or draw(st.integers(0, 7)) > 0):
            begun.append(w.statement(only))
            if draw(st.integers(0, 2)) == 0:
                cells.append(Cell("\n".join(begun)))
                begun = []
        if begun:
            cells.append(Cell("\n".join(begun)))
        cells.append(Cell(w.observation(last=last), observes=True))
    return tuple(cells)


@st.composite
def slips(draw: Any) -> Program:
    """Draw a program whose cells run on the ranks or in the notebook, each in one of them only."""
    w = Writer(draw, {kind: names[:1] for kind, names in NAMES.items()})
    cells = [Cell("\n".join(w.statement(SLIPS) for _ in range(draw(st.integers(1, 3)))))]
    for _ in range(draw(st.integers(3, 8))):
        lines = [w.statement(SLIPS) for _ in range(draw(st.integers(0, 2)))]
        names = w.having(pure=False)
        if names and (not lines or draw(st.booleans())):
            lines.append(w.observe(w.one_of(names)))
        cells.append(Cell("\n".join(lines) or "pass", observes=draw(st.booleans())))
    return tuple(cells)


@st.composite
def made_there(draw: Any) -> Program:
    """Draw a slip: ranks make something of classes and settings, which the notebook changes then."""
    w = Writer(draw, {kind: names[:1] for kind, names in NAMES.items()})
    makes = [programs.a_class, programs.a_list, programs.a_dict, program_sharing.a_large_value]
    cells = [Cell(w.statement({draw(st.sampled_from(makes))}))]
    cells.append(Cell(w.own(), observes=True))
    (own,) = w.made_there()
    for _ in range(draw(st.integers(1, 4))):
        changes = draw(st.booleans())
        cells.append(Cell(w.change_in_place()[1] if changes else w.observe(own), not changes))
    cells.append(Cell(w.observe(own), observes=True))
    return tuple(cells)


@st.composite
def bundles(draw: Any) -> Program:
    """Draw a program that changes a value at either end, and then makes something that holds it.

    The last cell reads what holds it, and runs at both ends.
    """
    w = Writer(draw, {kind: names[:1] for kind, names in NAMES.items()})
    make = {
        programs.a_list, programs.a_dict, programs.an_array, program_sharing.a_tensor,
        program_sharing.a_module, program_sharing.a_large_value, programs.an_object,
    }  # fmt: skip
    cells = [Cell(w.statement(make))]
    while not w.having(*HELD):  # the class of an object
        cells.append(Cell(w.statement({programs.an_object})))
    held = w.having(*HELD)[-1]
    for _ in range(draw(st.integers(1, 5))):
        changes, there = draw(st.booleans()), draw(st.booleans())
        text = w.change_in_place()[1] if changes else w.observe(held)
        cells.append(Cell(text, observes=there))
    while not w.having("holder", "view"):
        holds = [program_sharing.a_holder]
        holds += [program_sharing.a_view] * 2 * bool(w.having("array"))
        holds += [program_sharing.a_tensors_view] * 2 * bool(w.having("tensor"))
        cells.append(Cell(draw(st.sampled_from(holds))(w)))
    (holder, *_) = w.having("holder", "view")
    changes = w.change_in_place()[1] if draw(st.booleans()) else "pass"
    reads = "print({}())" if w.having("holder") else "print({}.tolist())"
    cells.append(Cell(f"{changes}\n{reads.format(holder)}", observes=True))
    return tuple(cells)
