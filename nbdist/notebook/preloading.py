"""`nbdist.preload`: imports modules before ranks need them. Any thread but the hub's."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from nbdist.errors import UsageError
from nbdist.hub.link.hub_loop import hub_loop
from nbdist.notebook.session import session

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from nbdist.launchers.host.engines import Host
    from nbdist.launchers.host.protocol import Preloaded

PRELOAD_SECONDS = 300.0


class Cost(NamedTuple):
    """What it took to preload modules."""

    seconds: float
    memory: int
    """Bytes, which all ranks share."""


def preload(*modules: str, timeout: float = PRELOAD_SECONDS) -> Cost:
    """Import modules in the process that ranks are forked from.

    Ranks that are started from then on have them, by whichever launcher: the imports take them no
    time, and the memory is shared. What a module does or draws when it is imported is done once
    for all ranks, and with the environment of now.

    Parameters
    ----------
    modules
        Their names, such as ``transformers``.
    timeout
        Seconds after which it is given up.

    Raises
    ------
    UsageError
        If one of them cannot be imported, or forked ranks would not do after that; nothing was
        preloaded.
    """
    future = begin(modules, timeout)
    try:
        return future.result()
    except BaseException:  # who does not wait any more does not want it, either
        future.cancel()
        raise


def begin(modules: Sequence[str], limit: float) -> Future[Cost]:
    """Begin to preload modules, without waiting; a future that is cancelled gives it up."""
    for name in modules:
        if not all(part.isidentifier() for part in name.split(".")):
            raise UsageError(f"{name!r} is not the name of a module")
    if not modules:
        raise UsageError("no module is named")
    host = session.hubs.host()  # so that there is one
    return hub_loop().soon(_on_all(host, list(dict.fromkeys(modules)), limit))


async def _on_all(host: Host, modules: list[str], limit: float) -> Cost:
    hosts = session.hubs.hosts() or [host]  # this one has ended meanwhile, and tells why
    done = await asyncio.gather(*(_on(host, modules, limit) for host in hosts))
    there = session.hubs.preloaded
    there[:] = dict.fromkeys([*there, *modules])
    return Cost(max(one.seconds for one in done), max(one.grown for one in done))


async def _on(host: Host, modules: list[str], limit: float) -> Preloaded:
    warm = await host.ready()
    if warm.plain:
        raise UsageError(f"nothing can be preloaded, since ranks are not forked here: {warm.plain}")
    done = await host.preload(modules, limit)
    if done.why:
        raise UsageError(f"nothing was preloaded: {done.why}")
    return done


def preloaded() -> list[str]:
    """Return the modules that ranks find imported, in the order they were asked for."""
    return list(session.hubs.preloaded)
