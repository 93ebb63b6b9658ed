"""The ways to recover groups and models after a fault, and which of them this torch allows.

``in-place``
    Process groups stay the same Python objects and get new connections; the DDP and FSDP2 models
    that hold them train on. This needs private parts of torch, so each build is probed first.
``anew``
    Groups are destroyed and re-created with torch's public functions. DDP models are constructed
    again within the same Python objects; FSDP2 modules and meshes are lost.
``replace``
    New processes replace the old ones and get their variables.

Each way is tried if the one before it fails. This module does not need torch.
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
"""Environment variable: the first way to try, whatever this torch allows."""


class Recovery(msgspec.Struct, frozen=True):
    """Which ways a build of torch allows, as found by the probe (`backends.ddp.torch_probe`)."""

    torch: str = ""
    """The version of torch."""
    groups: str = ""
    """Why process groups cannot be renewed in place, '' if they can."""
    talks: bool = False
    """Whether gloo prints a line for each new group."""
    models: str = ""
    """Why DDP models cannot be renewed in place, '' if they can."""
    fsdp: str = ""
    """Why FSDP2 modules cannot be renewed in place, '' if they can."""
    whole: bool = False
    """Whether the probe has finished. Ranks start as soon as it has tested groups."""
    sure: bool = True
    """Whether a second probe would find the same: False after a timeout or a lost connection."""


_decode = msgspec.json.Decoder(Recovery).decode  # any thread; see `nbdist.rank.script_program`


def ways(recovery: Recovery, forced: str) -> list[str]:
    """Return the ways to try, the best one first."""
    why = recovery.groups or recovery.models
    first = forced or (ANEW if why else IN_PLACE)
    return [way for way in WAYS[WAYS.index(first) :] if not (way == IN_PLACE and why)]


def told(recovery: Recovery, forced: str) -> str:
    """Describe in one line how ranks with this torch recover after a fault."""
    torch, first = f"torch {recovery.torch}", ways(recovery, forced)[0]
    why = f"{FORCE}={first}" if first == forced else recovery.groups or recovery.models
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
    """Return the cached result of the probe for this build of torch, or None."""
    try:
        return _decode(_place(torch).read_bytes())
    except (OSError, msgspec.DecodeError):
        return None


def keep(torch: Any, found: Recovery) -> None:
    """Cache the result of the probe; if the file cannot be written, the next start probes again."""
    with suppress(OSError):  # without a cache everything still works
        place = _place(torch)
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(place, msgspec.json.encode(found))


def _place(torch: Any) -> Path:
    """Return the cache file for this build of torch together with this version of nbdist."""
    backends = Path(__file__).parent.parent
    ours = [(str(path), path.stat().st_mtime_ns) for path in sorted(backends.rglob("*.py"))]
    built = [torch.__version__, getattr(torch.version, "git_version", ""), torch.__file__]
    text = repr([sys.version, *map(str, built), Path(torch.__file__).stat().st_mtime_ns, ours])
    name = hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
    return platformdirs.user_cache_path("nbdist") / "torch" / f"{name}.json"
