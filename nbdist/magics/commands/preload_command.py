"""``%dist preload``: imports modules before ranks need them."""

from __future__ import annotations

from concurrent.futures import wait
from typing import TYPE_CHECKING

from IPython.core.completerlib import get_root_modules, module_list

from nbdist.launchers.host.engines import NEED_NO_TRIAL
from nbdist.machine.amounts import in_bytes, in_time
from nbdist.magics.parsing.arguments import Words, seconds
from nbdist.magics.parsing.command import set_offer
from nbdist.notebook import preloading
from nbdist.notebook.session import session

PATIENCE_SECONDS = 1.5
"""An import that takes longer is announced before it ends."""

if TYPE_CHECKING:
    import argparse

    from nbdist.magics.parsing.command import Commands


def add_to(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add(
        preload, "import modules once for all new ranks: %%dist preload transformers"
    )
    parser.add_argument(
        "--timeout", type=seconds, default=preloading.PRELOAD_SECONDS, metavar="S",
        help="give up the import after S seconds (default: 300; torch._dynamo and "
        "torch.distributed.fsdp have 180 at least)",
    )  # fmt: skip
    modules = parser.add_argument(
        "modules",
        action=Words,
        nargs="*",
        default=[],
        metavar="MODULE",
        help="modules such as transformers; without modules: list what is preloaded",
    )
    set_offer(modules, _modules_like)


def preload(args: argparse.Namespace) -> None:
    """Import modules in the process that new ranks are forked from, to save their import."""
    listed = ", ".join(args.modules)
    if not args.modules:
        there = ", ".join(preloading.preloaded()) or "nothing yet"
        print(f"Preloaded: {there}.")
        return
    future = preloading.begin(args.modules, args.timeout)
    try:
        if not wait([future], timeout=PATIENCE_SECONDS).done:
            trial = ", first in a separate process to test whether the import is safe"
            print(f"Importing {listed}{'' if NEED_NO_TRIAL.issuperset(args.modules) else trial}…")
        while not wait([future], timeout=PATIENCE_SECONDS).done:
            pass  # in slices, so that an interrupt is noticed
    except KeyboardInterrupt:
        future.cancel()
        raise
    cost = future.result()
    print(
        f"Preloaded {listed}: {in_time(cost.seconds)}, {in_bytes(cost.memory)} that ranks share. "
        f"Ranks that are started from now on have them imported.{_older()}"
    )


def _older() -> str:
    return " Ranks that run already do not: %dist restart." if session.has_cluster() else ""


def _modules_like(text: str) -> list[str]:
    """Return the names of modules that begin so, without importing anything."""
    package, dot, _ = text.rpartition(".")
    if not dot:
        return list(get_root_modules())
    paths = _folders(package)
    return [f"{package}.{name}" for path in paths for name in module_list(path)]


def _folders(package: str) -> list[str]:
    from importlib.machinery import PathFinder

    found: list[str] | None = None
    for name in _prefixes(package):
        spec = PathFinder.find_spec(name, found)
        if spec is None or spec.submodule_search_locations is None:
            return []
        found = list(spec.submodule_search_locations)
    return found or []


def _prefixes(package: str) -> list[str]:
    parts = package.split(".")
    return [".".join(parts[: n + 1]) for n in range(len(parts))]
