"""Lets no collective of this process begin any more.

All of torch begins its collectives by operators (``c10d::allreduce_``): its functions, the methods
of groups, DDP's reducer, functional collectives and what was compiled. `BackendSelect` comes before
the kernels of all devices, and torch has no kernels of these operators there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

SPACE = "c10d"
NO_COMMUNICATION = ("check_for_nan",)


def begin(refuse: Callable[[], None]) -> Any:
    """Have each collective call `refuse`, which raises, until the returned object is released.

    Takes half a millisecond.
    """
    library = torch.library.Library(SPACE, "IMPL")

    def instead(*_args: object, **_kwargs: object) -> None:
        refuse()

    for name in operators():
        library.impl(name, instead, "BackendSelect")
    return library


def operators() -> list[str]:
    """Return the names of the operators that communicate."""
    names: list[str] = torch._C._dispatch_get_all_op_names()
    spaces = ((name, *name.split("::", 1)) for name in names)
    found = [name for name, space, op in spaces if space == SPACE and op not in NO_COMMUNICATION]
    if not found:
        raise LookupError(f"this torch has no operators {SPACE}::")
    return found
