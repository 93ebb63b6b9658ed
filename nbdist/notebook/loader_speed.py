"""`nbdist.reading`: measures how fast a loader gives batches, against the storage's speed.

Any process; the thread that asks for it. Nothing is trained: what is measured is reading alone.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbdist.errors import UsageError
from nbdist.machine.amounts import counted, in_share
from nbdist.metrics.loader_speed_table import Reading, Row, Storage, threads
from nbdist.notebook.dataset_parts import drawn_part, whole_length
from nbdist.rank.metrics.batch_sizes import Pass

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SECONDS = 10.0
PIECE = 1 << 20
"""How many bytes are read at a time."""
PART = 64 << 20
"""How many bytes of a file one thread reads; several threads read a large file."""
MEGA = 1e6
NOISE = 0.1
FROM_MEMORY = 0.9
"""If a smaller part of the data came from the storage (not from memory), a note says so."""


def reading(
    make: Callable[[int], Iterable[Any]],
    *,
    workers: Sequence[int] = (0, 1, 2, 4),
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
    seconds: float = SECONDS,
) -> Reading:
    """Iterate over a loader once for each number of workers, and measure its throughput.

    The measurement is made in the calling process: in the notebook, or on each rank for its share.

    Parameters
    ----------
    make
        A function that takes a number of workers and returns a loader.
    workers
        The numbers of workers to try.
    files
        The files that the loader reads: a file, a folder with all its contents, or several of
        these. If given, the files are dropped from the page cache before each pass (where the
        system can do so), and the storage's own speed is measured: the files are read in order,
        without decoding.
    seconds
        A pass ends after its last batch, or after this time.

    Returns
    -------
    Reading
        A row for each number of workers: samples and megabytes (1e6 bytes) per second, measured
        from ``iter(loader)``, which starts the workers, to the last batch. With `files`, also the
        percentage of the storage's speed. For it, all samples of ``loader.dataset`` (of the dataset
        that a `Subset` was made from) are taken to be equal parts of the files, or else a whole
        pass to read all of them. A sample that was drawn twice counts as read once.

    Raises
    ------
    UsageError
        If a number of workers is not valid, a file does not exist, or a loader yields nothing.

    Examples
    --------
    >>> nbdist.reading(
    ...     lambda workers: DataLoader(images, 64, num_workers=workers), files="data/train"
    ... )  # doctest: +SKIP
    """
    counts = _checked(make, workers, seconds)
    try:
        paths = [] if files is None else _all_files(files)
    except TypeError as err:
        raise UsageError(
            f"files={files!r} names no files: give a path, or a list of paths"
        ) from err
    whole = sum(path.stat().st_size for path in paths)
    if paths and not whole:
        raise UsageError("the files are empty")
    several = dict.fromkeys((1, max(1, *counts)) if paths else ())
    storage = [_read_files(paths, count, seconds) for count in several]
    best = max((each.megabytes_per_second for each in storage), default=None)
    rows = []
    for count in counts:
        _forget(paths)
        rows.append(_pass(partial(make, count), count, seconds, whole, best))
    return Reading(rows, [*_unlike(rows), *(_about_files(rows, storage) if paths else [])], storage)


def _checked(make: Any, workers: Any, seconds: Any) -> list[int]:
    """Return the numbers of workers; raise `UsageError` for arguments that are not valid."""
    if not callable(make):
        raise UsageError(f"{make!r} is not a function: write lambda workers: DataLoader(...)")
    counts = list(workers) if isinstance(workers, Iterable) else []
    if not counts or not all(type(each) is int and each >= 0 for each in counts):
        raise UsageError(f"workers={workers!r} must be numbers of processes, such as (0, 1, 2, 4)")
    if not isinstance(seconds, (int, float)) or not seconds > 0:
        raise UsageError(f"seconds={seconds!r} is not a number of seconds")
    return counts


def _pass(
    make: Callable[[], Iterable[Any]], workers: int, seconds: float, whole: int, best: float | None
) -> Row:
    """Iterate over a loader once; `whole`: bytes of all files, `best`: the storage's speed."""
    loader = make()
    before, began = _read_so_far(), time.perf_counter()
    batches = size = 0
    samples, first, passed, drawn = 0.0, 0.0, 0.0, []
    try:
        items = Pass(loader)
    except TypeError as err:
        raise UsageError(f"make({workers}) returned {loader!r}, which cannot be iterated") from err
    for batch in items.items:
        passed = time.perf_counter() - began
        first = first or passed
        batches, size = batches + 1, size + _bytes_in(batch)
        samples += items.samples(batch)
        drawn.append(items.drawn)
        if passed > seconds:
            break
    if not batches:
        raise UsageError(f"the loader for {workers} workers gives no batches")
    ended, known = passed <= seconds, not math.isnan(samples)
    part = _part(loader, drawn, samples, several=workers > 1, ended=ended)
    items.close()
    del batch, items, loader  # workers end, and what they have read counts as ours
    row = Row(
        workers, batches, passed, first, samples / passed if known else None,
        size / MEGA / passed if size else None, int(samples) if known and ended else None,
    )  # fmt: skip
    if part is None or not best:
        return row
    speed = part * whole / MEGA / passed
    return replace(
        row, file_megabytes_per_second=speed, of_storage=speed / best,
        from_storage=_share(before, part * whole),
    )  # fmt: skip


def _part(
    loader: Any, drawn: list[Any], samples: float, *, several: bool, ended: bool
) -> float | None:
    """Return the fraction of the files' samples that were read; None if it is unknown."""
    dataset = getattr(loader, "dataset", None)
    if all(each is not None for each in drawn):
        return drawn_part(dataset, drawn)
    whole = whole_length(dataset)
    if whole is None:
        return 1.0 if ended else None
    # Each of several workers may read all of a stream: only at its end is known how much was read.
    unknown = math.isnan(samples) or (several and not ended)
    return None if unknown else min(1.0, samples / whole)


def _bytes_in(item: Any) -> int:
    """Return the size of a batch in bytes: of its arrays, texts and the like."""
    try:
        size = getattr(item, "nbytes", None)
    except Exception:  # torch's sparse tensors have none, and say so
        size = None
    if isinstance(size, int):
        return size
    match item:
        case bytes() | bytearray():
            return len(item)
        case str():
            return len(item.encode(errors="replace"))
        case Mapping():
            return sum(map(_bytes_in, item.values()))
        case list() | tuple():
            return sum(map(_bytes_in, item))
        case _:
            return 0


# -- the storage's own speed -----------------------------------------------------------------------


def _all_files(given: Any) -> list[Path]:
    """Return the named files, and all files in the named folders."""
    several = [given] if isinstance(given, (str, os.PathLike)) else list(given)
    if not several:
        raise UsageError("files is empty: give a path, or a list of paths")
    found: dict[tuple[int, int], Path] = {}
    for each in several:
        if not os.fspath(each) or not Path(each).exists():
            raise UsageError(f"there is no file {os.fspath(each)!r}")
        inside = _inside(Path(each))
        if not inside:
            raise UsageError(f"there are no files in {each}")
        for path in inside:
            known = path.stat()
            found.setdefault((known.st_dev, known.st_ino), path)  # links to one are one
    return list(found.values())


def _inside(path: Path) -> list[Path]:
    """Return the files in a folder (symbolic links are followed), or the file itself."""
    if not path.is_dir():
        return [path]
    found, been = [], set()
    for folder, folders, files in os.walk(path, followlinks=True):
        known = Path(folder).stat()
        if (known.st_dev, known.st_ino) in been:
            folders.clear()  # a link that leads back
            continue
        been.add((known.st_dev, known.st_ino))
        folders.sort()
        found += [each for name in sorted(files) if (each := Path(folder, name)).is_file()]
    return found


def _read_files(paths: list[Path], count: int, seconds: float) -> Storage:
    """Read the files in order, as fast as possible, to measure the storage."""
    _forget(paths)
    parts = [
        (path, start) for path in paths for start in range(0, max(1, path.stat().st_size), PART)
    ]
    before, began = _read_so_far(), time.perf_counter()
    with ThreadPoolExecutor(count) as pool:
        done = sum(pool.map(partial(_read_part, until=began + seconds), parts))
    return Storage(count, done / MEGA / (time.perf_counter() - began), _share(before, done))


def _read_part(part: tuple[Path, int], until: float) -> int:
    """Read a part of a file until its end or the deadline; return the number of bytes."""
    (path, start), done = part, 0
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        buffer = memoryview(bytearray(PIECE))
        while done < PART and time.perf_counter() < until:
            came = file.readinto(buffer)
            if not came:
                break
            done += came
    return done


def _forget(paths: list[Path]) -> None:
    """Drop these files from the page cache, where the system can; memory-mapped files stay."""
    if not hasattr(os, "posix_fadvise"):
        return
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())  # what is not written yet stays
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _read_so_far() -> int | None:
    """Return how many bytes were read from storage for this process and its finished children.

    The number is Linux's (``read_bytes`` in ``/proc/PID/io``, see proc(5)); None elsewhere.
    """
    if sys.platform != "linux":
        return None
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return None
    return next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))


def _share(before: int | None, size: float) -> float | None:
    """Return which fraction of the data read since `before` came from the storage."""
    after = _read_so_far()
    return None if before is None or after is None or not size else (after - before) / size


def _unlike(rows: list[Row]) -> list[str]:
    """Return a note if complete passes had different numbers of samples."""
    given = {row.workers: row.samples for row in rows if row.samples is not None}
    if len(set(given.values())) < 2:  # noqa: PLR2004  # they are alike
        return []
    told = ", ".join(f"{samples} with {workers}" for workers, samples in given.items())
    why = (
        "With an IterableDataset each worker gives all samples, unless the dataset divides them "
        "among the workers."
    )
    return [f"Whole passes gave different numbers of samples: {told} workers. {why}"]


def _about_files(rows: list[Row], storage: list[Storage]) -> list[str]:
    """Return notes on why the storage's figures may mislead."""
    notes = _about_memory(rows, storage)
    if any(row.of_storage is not None and row.of_storage > 1 + NOISE for row in rows):
        notes.append(
            "The loader was faster than reading the files alone: the files are few, came from a "
            "cache of the storage, or are not the files that the loader reads. So this is not the "
            "storage's speed."
        )
    return notes


def _about_memory(rows: list[Row], storage: list[Storage]) -> list[str]:
    """Return a note if data came from the page cache although the storage was to be measured."""
    if any(each.from_storage is None for each in storage):
        return [
            "Whether the files came from the storage or from the system's memory is unknown here."
        ]
    few = [
        f"{in_share(min(1.0, each.from_storage or 0.0))} with {threads(each.threads)}"
        for each in storage
        if (each.from_storage or 0.0) < FROM_MEMORY
    ]
    few += [
        f"{in_share(min(1.0, row.from_storage))} with {counted(row.workers, 'worker')}"
        for row in rows
        if row.from_storage is not None and row.from_storage < FROM_MEMORY
    ]
    if not few:
        return ["All data came from the storage, by the system's count."]
    told = "The rest came from the system's memory, so this is not the storage's speed."
    return [f"By the system's count, only a part came from the storage: {', '.join(few)}. {told}"]
