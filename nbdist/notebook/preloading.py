"""`nbdist.preload`: imports modules before ranks need them. Any thread but the hub's."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from nbdist.errors import UsageError
from nbdist.hub.link.hub_loop import hub_loop
from nbdist.launchers.host import engines
from nbdist.notebook.session import session

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from nbdist.launchers.host.engines import Host
    from nbdist.launchers.host.protocol import Preloaded

PRELOAD_SECONDS = 300.0


class Cost(NamedTuple):
    """The cost of preloading modules."""

    seconds: float
    memory: int
    """Memory in bytes, which all ranks share."""


def preload(*modules: str, timeout: float = PRELOAD_SECONDS) -> Cost:
    """Import modules in the process from which ranks are forked.

    All ranks that are started later, by any launcher, have these modules: an import takes no time
    there, and the memory is shared. What a module does on import (random numbers that it draws,
    environment variables that it reads) happens once for all ranks, now. Generators that it makes
    without a seed have other numbers on each rank.

    Parameters
    ----------
    modules
        Names of modules, such as ``transformers``.
    timeout
        Seconds after which the import is given up.

    Raises
    ------
    UsageError
        If a module cannot be imported, or ranks could not be forked after its import. Nothing was
        preloaded then, except modules that need no trial; the message names them.
    """
    future = begin(modules, timeout)
    try:
        return future.result()
    except BaseException:  # who does not wait any more does not want it, either
        future.cancel()
        raise


def begin(modules: Sequence[str], limit: float) -> Future[Cost]:
    """Begin to preload modules, without waiting; cancelling the future stops it."""
    for name in modules:
        if not all(part.isidentifier() for part in name.split(".")):
            raise UsageError(f"{name!r} is not the name of a module")
    if not modules:
        raise UsageError("no module is named")
    host = session.hubs.host()  # so that there is one
    return hub_loop().soon(_on_all(host, list(dict.fromkeys(modules)), limit))


async def _on_all(host: Host, modules: list[str], limit: float) -> Cost:
    hosts = session.hubs.hosts() or [host]  # this one has ended meanwhile, and tells why
    # Those without a trial come first, so that the trial of the others finds them imported.
    known = [name for name in modules if name in engines.NEED_NO_TRIAL]
    others = [name for name in modules if name not in engines.NEED_NO_TRIAL]
    there, cost = session.hubs.preloaded, Cost(0.0, 0)
    for part, before in ((known, []), (others, known)):
        if part:
            done = await asyncio.gather(*(_on(host, part, limit, before) for host in hosts))
            there[:] = dict.fromkeys([*there, *part])
            seconds, grown = max(one.seconds for one in done), max(one.grown for one in done)
            cost = Cost(cost.seconds + seconds, cost.memory + grown)
    return cost


async def _on(host: Host, modules: list[str], limit: float, before: list[str]) -> Preloaded:
    warm = await host.ready()
    if warm.plain:
        raise UsageError(f"nothing can be preloaded, since ranks are not forked here: {warm.plain}")
    done = await host.preload(modules, limit)
    if done.why:
        preloaded = f"only {', '.join(before)}" if before else "nothing"
        raise UsageError(f"{preloaded} was preloaded: {done.why}")
    return done


def preloaded() -> list[str]:
    """Return the preloaded modules, in the order in which they were asked for."""
    return list(session.hubs.preloaded)
