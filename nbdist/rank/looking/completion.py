"""Tab completion from a rank: names at any time, attributes and keys while the rank is idle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from IPython.core.completer import IPCompleter, provisionalcompleter
from IPython.core.guarded_eval import EVALUATION_POLICIES

from nbdist.rank.looking.bounded_look import OutOfTime, at_most, silence
from nbdist.rank.looking.rank_names import OURS
from nbdist.wire.inspection import Completions, State

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

MOST = 500
"""The most completions that are returned, as in IPython."""


class _Completer(IPCompleter):
    """Completes names, attributes, keys and keywords; the notebook completes files and magics."""

    @property
    def matchers(self) -> list[Any]:  # IPython's matchers
        return [self.dict_key_matcher, self.python_matcher, self.python_func_kw_matcher]


def _see_through_models(completer: IPCompleter) -> None:
    """Allow `model.layers[0].`: by default IPython does not call torch's `__getattr__`."""
    if not hasattr(completer, "policy_overrides"):  # IPython 8
        return
    usual: Any = EVALUATION_POLICIES["limited"]  # a class of its own, with more attributes
    module, container = ("torch", "nn", "Module"), ("torch", "nn", "modules", "container")
    kinds = {(*container, name) for name in ("Sequential", "ModuleList", "ModuleDict")}
    completer.policy_overrides = {
        "allowed_getattr_external": usual.allowed_getattr_external | {module},
        "allowed_getitem_external": usual.allowed_getitem_external | kinds,
    }


class Completing:
    """Completes code in one shell."""

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell
        self._completer: _Completer | None = None

    def names(self, prefix: str) -> list[str]:
        """Return the variables with this prefix; private ones if it is not empty. Any thread."""
        hidden = self._shell.user_ns_hidden
        return sorted(
            name
            for name in list(self._shell.user_ns)
            if isinstance(name, str)
            and name.startswith(prefix)
            and (name not in hidden or name in OURS)
            and (prefix or not name.startswith("_"))
        )[:MOST]

    def complete(self, code: str, cursor: int, within: float) -> Completions:
        """Return the completions at the cursor. Main thread: it may run the user's code."""
        shell = self._shell
        if self._completer is None:
            self._completer = _Completer(
                shell=shell, namespace=shell.user_ns, global_namespace=shell.user_global_ns,
                use_jedi=False, parent=shell,
            )  # fmt: skip
            _see_through_models(self._completer)
        self._completer.namespace = shell.user_ns
        try:
            with silence(), at_most(within), provisionalcompleter():
                found = list(self._completer.completions(code, cursor))[:MOST]
        except OutOfTime:
            found = []
        if not found:
            return Completions(State())
        # Start after the dot, as jedi does, whose completions the notebook may add.
        dotted = [one.start + one.text.startswith(".") for one in found]
        start = min(dotted)
        texts = [
            (code[start:begin] + one.text.removeprefix("."), one.type or "")
            for one, begin in zip(found, dotted, strict=True)
        ]
        return Completions(State(), cursor - start, texts)
