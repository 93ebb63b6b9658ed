"""`nbdist.reading`: what a loader gives a second, and what the storage could."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import nbdist
from nbdist import measuring
from nbdist.errors import UsageError
from tests.notebook import on_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.kernel import Kernel

torch = pytest.importorskip("torch")
FILES, BYTES = 32, 50_000


class Files:
    """Each sample is what a file holds."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.iterdir())

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, place: int) -> Any:
        return torch.frombuffer(bytearray(self.paths[place].read_bytes()), dtype=torch.uint8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with files of the same size."""
    for place in range(FILES):
        (tmp_path / f"{place}.bin").write_bytes(os.urandom(BYTES))
    return tmp_path


def loader(folder: Path, workers: int, **more: Any) -> Any:
    """Return a loader of 8 files at once."""
    return torch.utils.data.DataLoader(Files(folder), 8, num_workers=workers, **more)


def test_a_loader_and_the_files_it_reads(folder: Path) -> None:
    found = nbdist.reading(lambda workers: loader(folder, workers), workers=(0, 2), files=folder)
    assert [row.workers for row in found] == [0, 2]
    assert [each.threads for each in found.storage] == [1, 2]
    best = max(each.megabytes_per_second for each in found.storage)
    for row in found:
        assert row.batches == FILES / 8
        assert 0 < row.first_batch <= row.seconds
        assert row.samples_per_second == pytest.approx(FILES / row.seconds)
        size = FILES * BYTES / 1e6
        assert row.megabytes_per_second == pytest.approx(size / row.seconds)
        assert row.file_megabytes_per_second == pytest.approx(size / row.seconds)
        assert row.of_storage == pytest.approx(size / row.seconds / best)
    words = repr(found).splitlines()
    assert words[0].endswith("of the storage's speed")
    assert words[3].startswith("the files alone, read by 1 thread: ")
    assert found._repr_html_().count("<tr>") == 3
    pandas = pytest.importorskip("pandas")
    assert isinstance(found.to_pandas(), pandas.DataFrame)


def test_where_the_bytes_came_from_is_counted_also_for_workers(folder: Path) -> None:
    kept = Path("/proc/self/io")
    if not kept.exists():
        pytest.skip("only Linux counts what comes from the storage")
    found = nbdist.reading(lambda workers: loader(folder, workers), workers=(0, 2), files=folder)
    if (found.storage[0].from_storage or 0.0) < 1:
        pytest.skip("this folder is not on a storage that the system counts")
    assert all((row.from_storage or 0.0) > 0.9 for row in found)
    assert found.notes == ["All of it came from the storage, by the system's count."]


def test_it_says_so_where_files_stay_in_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in folder.iterdir():
        path.read_bytes()
    monkeypatch.setattr(measuring, "_forget", lambda _: None)
    found = nbdist.reading(lambda workers: loader(folder, workers), workers=[0], files=[folder])
    (note,) = found.notes
    if Path("/proc/self/io").exists():
        assert "0 % with 1 thread, 0 % with 0 workers. The rest came from the system's" in note
    monkeypatch.setattr(measuring, "_read_so_far", lambda: None)
    found = nbdist.reading(lambda workers: loader(folder, workers), workers=[0], files=folder)
    assert found.notes == [
        "Whether the files came from the storage or from the system's memory is unknown here."
    ]
    assert found[0].from_storage is None


def test_a_part_of_the_samples_is_a_part_of_the_files(folder: Path) -> None:
    half = torch.utils.data.SubsetRandomSampler(range(FILES // 2))
    (row,) = nbdist.reading(lambda n: loader(folder, n, sampler=half), workers=[0], files=folder)
    assert row.file_megabytes_per_second == pytest.approx(FILES / 2 * BYTES / 1e6 / row.seconds)


def test_a_pass_ends_in_time(folder: Path) -> None:
    def slow(workers: int) -> Iterator[Any]:
        while True:
            time.sleep(0.01)
            yield {"x": torch.zeros(4, 2), "texts": ["a", "bc"], "raw": (b"123", workers)}

    (row,) = nbdist.reading(slow, workers=[0], files=folder / "0.bin", seconds=0.1)
    assert row.seconds > 0.1
    assert row.samples_per_second == pytest.approx(4 * row.batches / row.seconds)
    size = row.batches * (4 * 2 * 4 + 3 + 3)
    assert row.megabytes_per_second == pytest.approx(size / 1e6 / row.seconds)
    assert row.file_megabytes_per_second is None  # nobody knows which part of all this was
    (blind,) = nbdist.reading(lambda _: ["a", "b"], workers=[0])
    assert blind.samples_per_second is None
    assert repr(nbdist.reading(lambda _: [1], workers=[0])).count("unknown") == 2


def test_what_cannot_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "nothing.bin").touch()
    for more, words in (
        ({"workers": []}, "must be numbers of processes"),
        ({"workers": (1, -1)}, "must be numbers of processes"),
        ({"seconds": 0}, "seconds=0 is not a number of seconds"),
        ({"files": tmp_path / "none"}, "there is no file .*none"),
        ({"files": tmp_path / "empty"}, "there are no files in .*empty"),
        ({"files": tmp_path / "nothing.bin"}, "the files are empty"),
        ({"files": []}, "files names none"),
        ({}, "the loader for 0 workers gives nothing"),
    ):
        with pytest.raises(UsageError, match=words):
            nbdist.reading(lambda _: [], **more)


def test_ranks_read_their_own_share(notebook: Kernel) -> None:
    cell = on_ranks(
        notebook,
        """
        import torch
        from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
        import nbdist
        data = TensorDataset(torch.zeros(64, 8))
        mine = DistributedSampler(data)
        print(nbdist.reading(
            lambda workers: DataLoader(data, 4, num_workers=workers, sampler=mine), workers=(0, 1)
        ))
        """,
        "-np 2 --backend ddp --launcher engines",
    )
    title, *rows = cell.stdout.splitlines()
    assert title.split() == ["workers", "samples/s", "MB/s", "first", "batch,", "s"]
    assert [re.split(r"\s+", row.strip())[0] for row in rows] == ["0", "1"]
