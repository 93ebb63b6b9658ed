"""How groups and models come back after a fault: the ways there are, and which this torch allows.

``in-place``
    Process groups stay the objects they are and get fresh connections; DDP and FSDP2 models that
    hold them train on. It needs parts of torch that are private, so each build is tried first.
``anew``
    Groups are destroyed and formed anew by torch's public functions. DDP models are made anew
    within the objects they are; FSDP2 modules and meshes are lost.
``replace``
    New processes, which get the variables of those before.

Each is tried when the one before it fails. No torch is needed here.
"""

from __future__ import annotations

import hashlib
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import platformdirs

from nbdist.machine.operating_system import write_whole

IN_PLACE, ANEW, REPLACE = "in-place", "anew", "replace"
WAYS = (IN_PLACE, ANEW, REPLACE)
FORCE = "NBDIST_RECOVERY"
"""Environment name: the way to begin with, whatever this torch allows."""


class Recovery(msgspec.Struct, frozen=True):
    """What a build of torch allows, as the probe has found (`backends.ddp.torch_probe`)."""

    torch: str = ""
    """Its version."""
    groups: str = ""
    """Why its groups cannot be renewed in place, '' if they can."""
    talks: bool = False
    """Whether gloo prints a line for each group."""
    models: str = ""
    """Why DDP models cannot be renewed in place, '' if they can."""
    fsdp: str = ""
    """Why FSDP2 modules cannot be, '' if they can."""
    whole: bool = False
    """Whether all of it was tried; ranks begin when groups were."""
    sure: bool = True
    """Whether it would be found again: not where a probe was out of time, or lost a connection."""


_decode = msgspec.json.Decoder(Recovery).decode  # any thread; see `nbdist.rank.script_program`


def ways(recovery: Recovery, forced: str) -> list[str]:
    """Return the ways to try, the best one first."""
    why = recovery.groups or recovery.models
    first = forced or (ANEW if why else IN_PLACE)
    return [way for way in WAYS[WAYS.index(first) :] if not (way == IN_PLACE and why)]


def told(recovery: Recovery, forced: str) -> str:
    """Say in a line how this torch recovers after a fault."""
    torch, first = f"torch {recovery.torch}", ways(recovery, forced)[0]
    why = f"{FORCE} says so" if first == forced else recovery.groups or recovery.models
    if first == REPLACE:
        return f"{torch}: after a fault ranks are replaced and get their variables back ({why})."
    if first == ANEW:
        return (
            f"{torch}: after a fault groups are re-created; DDP models are kept, FSDP2 modules "
            f"are lost ({why})."
        )
    line = f"{torch}: after a fault groups are renewed in place, and models train on"
    return f"{line}; FSDP2 modules are lost ({recovery.fsdp})." if recovery.fsdp else f"{line}."


def known(torch: Any) -> Recovery | None:
    """Return what was found of this build of torch before, None if nothing was."""
    try:
        return _decode(_place(torch).read_bytes())
    except (OSError, msgspec.DecodeError):
        return None


def keep(torch: Any, found: Recovery) -> None:
    """Keep what was found; where that cannot be written it is tried again."""
    with suppress(OSError):  # a cache that cannot be had must not be in the way
        place = _place(torch)
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(place, msgspec.json.encode(found))


def _place(torch: Any) -> Path:
    """Return the file for this build of torch with this nbdist: either may have changed."""
    backends = Path(__file__).parent.parent
    ours = [(str(path), path.stat().st_mtime_ns) for path in sorted(backends.rglob("*.py"))]
    built = [torch.__version__, getattr(torch.version, "git_version", ""), torch.__file__]
    text = repr([sys.version, *map(str, built), Path(torch.__file__).stat().st_mtime_ns, ours])
    name = hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
    return platformdirs.user_cache_path("nbdist") / "torch" / f"{name}.json"
