"""The source text of a definition for a script, edited where needed."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any

from nbdist.cell.definitions.defined import Definition

EVALUATED = "With the notebook's values of:"
LEFT_OUT = "Without these decorators, which returned the definition itself:"


@dataclass
class Remade:
    """A definition with the edits by which it re-creates the notebook's value."""

    definition: Definition
    edits: list[tuple[ast.expr, str]] = field(default_factory=list)
    """Expressions, each with the text that replaces it."""
    dropped: list[ast.expr] = field(default_factory=list)
    """Decorators that are left out, because they returned the function or class itself."""
    after: list[str] = field(default_factory=list)
    """Statements after the definition."""
    carried: dict[str, object] = field(default_factory=dict)
    """Values that replace expressions, by their names in the script."""
    held: list[object] = field(default_factory=list)
    """The notebook's lists, dicts and sets that this definition creates again."""

    @property
    def text(self) -> str:
        """The source text."""
        return _edited(self) + "".join(f"\n{line}" for line in self.after)

    @property
    def is_as_it_was(self) -> bool:
        """Whether nothing was edited or added."""
        return not (self.edits or self.after)


def _edited(made: Remade) -> str:
    """Return the definition's edited text, with comments above it that list the edits."""
    text, node = made.definition.text, made.definition.node
    if not made.edits and not made.dropped:
        return text
    tree = ast.parse(text).body[0]
    here = dict(zip(map(id, ast.walk(node)), ast.walk(tree), strict=True))
    lines = text.split("\n")
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line.encode()) + 1)
    data = text.encode()
    notes: dict[str, dict[str, None]] = {EVALUATED: {}, LEFT_OUT: {}}
    places = []
    for each, new in made.edits:
        found: Any = here[id(each)]
        start = starts[found.lineno - 1] + found.col_offset
        end = starts[found.end_lineno - 1] + found.end_col_offset
        places.append((start, end, new))
        notes[EVALUATED][ast.unparse(each)] = None
    for each in made.dropped:
        found = here[id(each)]
        start = starts[found.lineno - 1]
        end = starts[found.end_lineno]
        places.append((start, end, ""))
        notes[LEFT_OUT]["@" + ast.unparse(each)] = None
    for start, end, new in sorted(places, reverse=True):
        data = data[:start] + new.encode() + data[end:]
    told = [f"# {title} {', '.join(names)}" for title, names in notes.items() if names]
    return "\n".join([*told, data.decode()])
