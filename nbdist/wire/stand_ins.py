"""Stand-ins for values that msgpack cannot encode, so that no message is lost."""

from __future__ import annotations

import numbers
from contextlib import suppress
from typing import Any

import msgspec

DEEPEST = 50
"""Values nested deeper are sent as their text."""
INTS = range(-(2**63), 2**64)
AS_THEY_ARE = (type(None), bool, float, bytes, bytearray, memoryview)
CONTAINERS = (msgspec.Struct, dict, list, tuple, set, frozenset)


def plain(value: object, above: tuple[int, ...] = ()) -> Any:
    r"""Return a similar value that can be encoded: structs stay structs.

    Lone surrogates, which stand for bytes that are not UTF-8, become the text ``\udc80``. Integers
    that are too large, other objects, and containers that contain themselves become their `repr`.
    """
    kind = type(value)  # `__class__` of an odd object may raise
    if issubclass(kind, CONTAINERS) and id(value) not in above and len(above) < DEEPEST:
        return _container(value, (*above, id(value)))
    return _single(value, kind)


def _container(value: Any, above: tuple[int, ...]) -> Any:
    match value:
        case msgspec.Struct():
            fields = {name: plain(getattr(value, name), above) for name in value.__struct_fields__}
            return type(value)(**fields)
        case dict():
            return {_single(key, type(key)): plain(part, above) for key, part in value.items()}
        case _:
            return [plain(part, above) for part in value]


def _single(value: Any, kind: type) -> Any:
    if issubclass(kind, AS_THEY_ARE):
        return value
    if issubclass(kind, numbers.Real):
        return _number(value)
    return without_surrogates(value if issubclass(kind, str) else _text(value))


def without_surrogates(text: str) -> str:
    r"""Return a text that can be encoded: lone surrogates become the text ``\udc80``."""
    return text.encode(errors="backslashreplace").decode()


def _number(value: numbers.Real) -> int | float | str:
    with suppress(Exception):
        if not isinstance(value, numbers.Integral):
            return float(value)
        if int(value) in INTS:
            return int(value)
    return _text(value)


def _text(value: object) -> str:
    try:
        return repr(value)
    except BaseException as error:  # whatever it raises, the message must be sent
        return f"<{type(value).__name__}, whose repr raises {type(error).__name__}>"
