"""Print the requirements of nbdist, one a line: `tools/needs.py kernels gpu` adds these extras.

For `make test-gpu`: nbdist runs from its sources there, so pip has no package with requirements.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

PROJECT = Path(__file__).parent.parent / "pyproject.toml"


def needs(group: str) -> list[str]:
    """Return the requirements of one list of `pyproject.toml`; Python 3.10 cannot read TOML."""
    found = re.search(rf"^{group} = \[(.*?)\]$", PROJECT.read_text(), re.MULTILINE | re.DOTALL)
    if found is None:
        raise LookupError(f"{PROJECT} has no list {group}")
    return re.findall(r'"([^"]+)"', found[1])


if __name__ == "__main__":
    print(*(need for group in ("dependencies", *sys.argv[1:]) for need in needs(group)), sep="\n")
