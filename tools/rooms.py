"""Writes the table of rooms into the architecture document: `python tools/rooms.py`.

The rows have the order of the contract that `make lint` checks. The text of a row is the first line
of the room's docstring.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "architecture" / "index.md"
BLOCK = re.compile(r"(?<=<!-- rooms -->\n).*?(?=<!-- /rooms -->)", re.DOTALL)


def with_table(page: str) -> str:
    """Return the page with the up-to-date table."""
    return BLOCK.sub(lambda _: table(), page)


def table() -> str:
    """Return a row for each room, from the highest to the lowest."""
    rows = [f"| `{shown}` | {purpose} |" for shown, purpose in map(described, rooms())]
    return "\n".join(["| room | what it is for |", "|---|---|", *rows, ""])


def rooms() -> list[Path]:
    """Return the rooms in the order of the contract, each followed by the rooms within it."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    layers = re.search(
        r'^containers = \["nbdist"\].*?^layers = (\[.*?^\])', project, re.MULTILINE | re.DOTALL
    )
    assert layers is not None
    found = []
    for layer in ast.literal_eval(layers[1]):
        for name in layer.split(" | "):
            folder = ROOT / "nbdist" / name
            inner = sorted(init.parent for init in folder.glob("*/__init__.py"))
            found += [folder, *inner] if folder.is_dir() else [folder.with_suffix(".py")]
    return found


def described(room: Path) -> tuple[str, str]:
    """Return a room's name, and the first line of its docstring."""
    shown = room.relative_to(ROOT / "nbdist").as_posix()
    if room.is_dir():
        shown, room = f"{shown}/", room / "__init__.py"
    text = ast.get_docstring(ast.parse(room.read_text(encoding="utf-8"))) or ""
    return shown, text.splitlines()[0].replace("``", "`")


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
