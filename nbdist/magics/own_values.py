"""Says when a plain cell has read the notebook's value of what cells have changed on the ranks.

After a plain cell, and only if it mentions such names, the ranks are asked. What goes wrong here
says nothing: the cell has run. Kernel's main thread.
"""

from __future__ import annotations

import logging
import re
import threading
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from IPython.core.getipython import get_ipython

from nbdist.cell.names.used_names import WORD, bound, read_later, used
from nbdist.cell.names.wanted_names import Parsed, below_magic, parsed
from nbdist.job.named_ranks import name_ranks
from nbdist.magics.commands.auto_command import auto_flags, is_plain
from nbdist.magics.showing.job_output import notice
from nbdist.notebook.session import session
from nbdist.rank.looking.rank_names import OURS
from nbdist.rank.running.plain_cells import transformed
from nbdist.rank.values.opened_objects import WRAPS, members

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from IPython.core.interactiveshell import ExecutionResult, InteractiveShell

    from nbdist.notebook.clusters import Cluster
    from nbdist.wire.inspection import Look

STEERS = re.compile(r"^\s*%%?(distributed|dist|px\w*|autopx)\b", re.MULTILINE)
"""Lines of cells that know of the ranks."""
LOOK_SECONDS = 0.05
"""The most that a plain cell's end is delayed."""

log = logging.getLogger("nbdist")


_left_alone: set[str] = set()
"""Names with code or plain data, which were as the ranks had them when the plain cell began."""


def add_look(shell: InteractiveShell) -> None:
    """Look at each plain cell before and after it has run."""
    shell.events.register("pre_run_cell", _before_a_cell)
    shell.events.register("post_run_cell", _after_a_cell)


def remove_look(shell: InteractiveShell) -> None:
    """Look at cells no more."""
    shell.events.unregister("pre_run_cell", _before_a_cell)
    shell.events.unregister("post_run_cell", _after_a_cell)


def _before_a_cell(info: Any) -> None:  # IPython's ExecutionInfo
    _left_alone.clear()
    cluster, shell = session.cluster, get_ipython()
    if shell is None or cluster is None or cluster.stopped or not _is_plain(info):
        return
    try:
        between, space = cluster.names_between, shell.user_ns
        names = between.unseen(_with_functions(WORD.findall(info.raw_cell), space))
        _left_alone.update(between.left_alone(names, space))
    except (Exception, KeyboardInterrupt) as err:  # the cell itself has yet to run
        log.debug("names of a plain cell could not be looked at: %s", err)


def _after_a_cell(result: ExecutionResult) -> None:
    cluster, info, shell = session.cluster, result.info, get_ipython()
    if cluster is None or cluster.stopped or info is None or not _is_plain(info):
        return
    try:
        if result.success:
            _note_bound(shell, info.raw_cell, cluster)
        text = _on_ranks_only(result, cluster)
        text = text or _changed_there(shell, info.raw_cell, cluster)
        if text:
            notice(text, warns=True)
    except (Exception, KeyboardInterrupt) as err:  # the cell itself has ended
        log.debug("a plain cell could not be looked at: %s", err)


def _is_plain(info: Any) -> bool:  # IPython's ExecutionInfo
    """Whether a cell that a person has typed ran in the notebook, and does not mean the ranks."""
    if not info.store_history or STEERS.search(info.raw_cell):
        return False
    if threading.current_thread() is not threading.main_thread():
        return False
    return auto_flags() is None or not is_plain(info.raw_cell)


def _note_bound(shell: Any, raw: str, cluster: Cluster) -> None:
    """Record what a cell has bound: it is newer than what cells on the ranks have bound before."""
    if cluster.names_between.are_on_ranks(WORD.findall(raw)):
        cell = below_magic(shell, parsed(transformed(shell, raw)))
        cluster.names_between.bound_here(bound(cell.code))


def _on_ranks_only(result: ExecutionResult, cluster: Cluster) -> str:
    """Return the hint for a name that only the ranks have; '' if that was not the cell's error."""
    error = result.error_in_exec
    name = error.name if type(error) is NameError else None
    if not name:
        return ""
    looks = cluster.names_between.look([name], range(cluster.np), LOOK_SECONDS)
    there = [rank for rank, each in looks.items() if name in each]
    if not there:
        return ""
    if name in OURS:
        return f"`{name}` is defined on the ranks: `%%distributed` runs a cell there."
    flag = f" --ranks {there[0]}" if there[0] else ""
    return (
        f"`{name}` is on the ranks: `%%distributed` runs a cell there, `%dist pull {name}{flag}` "
        f"brings the value of {name_ranks(there[:1])} to the notebook."
    )


def _changed_there(shell: Any, raw: str, cluster: Cluster) -> str:
    """Return the note on names whose newer values are on the ranks."""
    between, space = cluster.names_between, shell.user_ns
    # A quick test first, which is enough for most cells.
    if not between.unseen(_with_functions(WORD.findall(raw), space)):
        return ""
    cell = below_magic(shell, parsed(transformed(shell, raw)))
    names = between.unseen(_with_functions(_read_by(cell), space))
    names = [name for name in names if name in space]
    looks = between.look(names, range(cluster.np), LOOK_SECONDS) if names else {}
    if 0 not in looks:
        return ""
    found = between.overtaken(names, looks, space, _left_alone, idle=not cluster.unfinished())
    return _told(found, looks[0]) if found else ""


def _read_by(cell: Parsed) -> list[str]:
    return list(used(cell.source, cell.code).surely)


def _with_functions(names: Iterable[str], space: Mapping[str, Any]) -> list[str]:
    """Return these names, and those that the notebook's functions and classes among them read."""
    found = dict.fromkeys(names)
    todo = [*found]
    while todo:
        value = space.get(todo.pop())
        kind = type(value)
        own = [kind.__name__] if space.get(kind.__name__) is kind else []
        new = [*own, *(name for code in _codes_of(value) for name in read_later(code))]
        todo += [name for name in new if name not in found]
        found.update(dict.fromkeys(new))
    return [*found]


def _codes_of(value: Any) -> Iterator[CodeType]:
    """Yield the code of a function of the notebook, or of a class and its bases."""
    if type(value) is FunctionType and value.__module__ == "__main__":
        yield value.__code__
    elif isinstance(value, type):
        for kind in value.__mro__:
            for _, member in members(kind) if kind.__module__ == "__main__" else ():
                inside = WRAPS[type(member)](member) if type(member) in WRAPS else member
                for one in inside if isinstance(inside, tuple) else (inside,):
                    yield from _codes_of(one) if type(one) is FunctionType else ()


def _told(found: Mapping[str, str], looks: Mapping[str, Look]) -> str:
    """Say which names' values are older here than on the ranks.

    Parameters
    ----------
    found
        The names, each with the text of the notebook's value, if it is a short one.
    looks
        What rank 0 has.
    """
    texts = [
        f"`{name}` ({here} here, {looks[name].value} on rank 0)"
        if here and looks[name].value
        else f"`{name}`"
        for name, here in found.items()
    ]
    it, brings = ("it", "value") if len(found) == 1 else ("them", "values")
    return (
        f"This cell has read the notebook's own {', '.join(texts)}; cells have changed {it} on the "
        f"ranks. `%dist pull {' '.join(found)}` brings rank 0's {brings}."
    )
