"""`mirror_tensorboard`: also logs the scalars that are written to a `SummaryWriter`."""

from __future__ import annotations

import functools
import importlib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from nbdist.rank.metrics.logger import log

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

LIBRARIES = ("torch.utils.tensorboard", "tensorboardX")

_mirrored: list[tuple[Any, str, Callable[..., Any]]] = []
"""The class, the name and the original of each replaced method; empty while not mirroring."""
_first: WeakValueDictionary[str, Any] = WeakValueDictionary()
"""For each tag, the first writer that used it, if this writer still exists."""


class Mirror:
    """The result of `mirror_tensorboard`: ends with `undo`, or with its ``with`` block."""

    def __init__(self) -> None:
        self._began = not _mirrored
        if self._began:
            _begin()

    def undo(self) -> None:
        """Restore the writers' methods; does nothing if they are restored already."""
        while _mirrored:
            setattr(*_mirrored.pop())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._began:
            self.undo()


def mirror_tensorboard() -> Mirror:
    """Log every scalar that this process adds to any ``SummaryWriter``, under the same step.

    This holds for writers of torch and of tensorboardX, existing and future ones; they still write
    their own files. Two writers with the same tag are distinguished by their folders:
    ``SummaryWriter("runs/val")`` logs its ``loss`` as ``val/loss`` if another has one.

    Returns
    -------
    Mirror
        An object with `undo`, which can be used in a ``with`` statement.

    Raises
    ------
    ImportError
        If neither tensorboard nor tensorboardX is installed.

    Examples
    --------
    >>> nbdist.loops.mirror_tensorboard()  # doctest: +SKIP
    >>> SummaryWriter().add_scalar("train/loss", loss, step)  # doctest: +SKIP
    """
    return Mirror()


def _begin() -> None:
    found = []
    for name in LIBRARIES:
        with suppress(ImportError):
            found.append(importlib.import_module(name).SummaryWriter)
    if not found:
        msg = "there is no SummaryWriter to mirror: neither tensorboard nor tensorboardX is there"
        raise ImportError(msg)
    for writer in found:
        for name, wrapped in (("add_scalar", _add_scalar), ("add_scalars", _add_scalars)):
            original = getattr(writer, name)
            _mirrored.append((writer, name, original))
            setattr(writer, name, wrapped(original))


def _add_scalar(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def add_scalar(
        self: Any, tag: str, scalar_value: Any, global_step: Any = None, *args: Any, **named: Any
    ) -> Any:
        told = original(self, tag, scalar_value, global_step, *args, **named)
        log({_name(self, tag): scalar_value}, step=_whole(global_step))
        return told

    return add_scalar


def _add_scalars(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def add_scalars(
        self: Any, main_tag: str, tag_scalar_dict: Any, global_step: Any = None, *args: Any,
        **named: Any,
    ) -> Any:  # fmt: skip
        told = original(self, main_tag, tag_scalar_dict, global_step, *args, **named)
        main = _name(self, main_tag)
        values = {f"{main}/{tag}": value for tag, value in tag_scalar_dict.items()}
        log(values, step=_whole(global_step))
        return told

    return add_scalars


def _name(writer: Any, tag: str) -> str:
    first, folder = _first.setdefault(tag, writer), _folder(writer)
    return tag if _folder(first) == folder else f"{folder.name}/{tag}"


def _folder(writer: Any) -> Path:
    return Path(getattr(writer, "log_dir", None) or writer.logdir)  # of torch, of tensorboardX


def _whole(step: Any) -> int | None:
    return None if step is None else int(step)
