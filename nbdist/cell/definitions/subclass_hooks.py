"""Classes whose creation runs the notebook's code: a metaclass, or ``__init_subclass__``."""

from __future__ import annotations

import inspect

from nbdist.rank.values.user_errors import CannotTravel


def creation_runs_code(cls: type) -> bool:
    """Return whether creating this class runs code of the notebook."""
    return _base_with_init_subclass(cls) is not None or type(cls).__module__ == "__main__"


def _base_with_init_subclass(cls: type) -> type | None:
    classes = (base for base in cls.__mro__[1:] if "__init_subclass__" in vars(base))
    found = next(classes, object)
    return found if found.__module__ == "__main__" else None


def check_by_value(cls: type) -> None:
    """Raise if a class cannot be created from a pickle, for lack of class arguments.

    Raises
    ------
    CannotTravel
        If its creation needs arguments of `__init_subclass__`, which the class does not keep.
    """
    base = _base_with_init_subclass(cls)
    if base is None:
        return
    try:
        inspect.signature(base.__init_subclass__).bind()
    except TypeError as err:
        raise CannotTravel(
            f"the class {cls.__name__} cannot be re-created: `{base.__name__}.__init_subclass__` "
            "takes arguments that may have changed; define the class in the cell"
        ) from err
