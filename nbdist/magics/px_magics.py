"""ipyparallel's own ``%px`` magics on the notebook's cluster, without a client of its own.

`ipyparallel.Client` registers these magics when it is made. nbdist registers them earlier, as thin
functions that make the client at the first use, and another client when the notebook gets another
cluster. Magics that exist already, from a client that the user made, stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from IPython.core.magic import no_var_expand

from nbdist.errors import NbdistError
from nbdist.magics.parsing.arguments import UsageMistake
from nbdist.notebook import current_cluster

if TYPE_CHECKING:
    from collections.abc import Callable

    from IPython.core.interactiveshell import InteractiveShell

NAMES = (("line", "px"), ("cell", "px"), ("line", "pxresult"), ("line", "pxconfig"),
         ("line", "autopx"))  # fmt: skip


class _Ours:
    """Finds the magics of the current cluster's client."""

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell
        self._client: Any = None
        self._magics: Any = None

    def find(self, kind: str, name: str) -> Callable[..., Any]:
        """Return ipyparallel's magic."""
        try:
            client = current_cluster.cluster().client
        except NbdistError as err:
            raise UsageMistake(str(err)) from err
        if client is not self._client:
            from ipyparallel.client.magics import ParallelMagics  # slow, and few need it

            view = client.direct_view("all")
            view.block = True
            view.execute = _whole(view.execute)
            self._client, self._magics = client, ParallelMagics(self._shell, view)
        magic: Callable[..., Any] = self._magics.magics[kind][name]
        return magic


def _whole(execute: Callable[..., Any]) -> Callable[..., Any]:
    """Repair the result of a view's `execute`, which would lose output that comes very early.

    ipyparallel shows output that came before it listened without the parent message; then the
    output of one engine replaces another's.
    """

    def mended(*args: Any, **kwargs: Any) -> Any:  # passed through
        result = execute(*args, **kwargs)
        show = result._iopub_streaming_output_callback

        def show_with_parent(engine: int, future: Any, message: dict[str, Any]) -> None:
            show(engine, future, {"parent_header": {"msg_id": future.msg_id}} | message)

        result._iopub_streaming_output_callback = show_with_parent
        return result

    return mended


def register_px(shell: InteractiveShell) -> None:
    """Register ``%px``, ``%%px``, ``%pxresult``, ``%pxconfig`` and ``%autopx``."""
    ours = _Ours(shell)
    known = shell.magics_manager.magics
    for kind, name in NAMES:
        if name not in known[kind]:
            known[kind][name] = _magic(ours, kind, name)


def unregister_px(shell: InteractiveShell) -> None:
    """Remove these magics, unless a client of the user has replaced them."""
    known = shell.magics_manager.magics
    for kind, name in NAMES:
        if getattr(known[kind].get(name), "is_nbdist", False):
            del known[kind][name]


def _magic(ours: _Ours, kind: str, name: str) -> Callable[..., Any]:
    @no_var_expand  # $name and {name} are for the ranks, not for the notebook
    def magic(*args: str) -> Any:  # the result of ipyparallel's magic
        return ours.find(kind, name)(*args)

    magic.__doc__ = f"ipyparallel's own `{name}`, on the cluster of the %%distributed cells."
    vars(magic)["is_nbdist"] = True
    return magic
