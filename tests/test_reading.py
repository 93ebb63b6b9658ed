"""`nbdist.reading`: what a loader gives a second, and what the storage could."""

from __future__ import annotations

import os
import re
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import nbdist
from nbdist.errors import UsageError
from nbdist.notebook import loader_speed
from tests.helpers.notebook import on_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.helpers.kernel import Kernel

pytestmark = pytest.mark.repeats

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
    assert found._repr_html_().count("<tr") == 3
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
    assert found.notes[0] == "All data came from the storage, by the system's count."


def test_it_says_so_where_files_stay_in_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in folder.iterdir():
        path.read_bytes()
    monkeypatch.setattr(loader_speed, "_forget", lambda _: None)
    found = nbdist.reading(lambda workers: loader(folder, workers), workers=[0], files=[folder])
    note = found.notes[0]
    if Path("/proc/self/io").exists():
        assert "0 % with 1 thread, 0 % with 0 workers. The rest came from the system's" in note
    monkeypatch.setattr(loader_speed, "_read_so_far", lambda: None)
    found = nbdist.reading(lambda workers: loader(folder, workers), workers=[0], files=folder)
    assert found.notes[0].endswith("from the system's memory is unknown here.")
    assert found[0].from_storage is None


def test_a_part_of_the_samples_is_a_part_of_the_files(folder: Path) -> None:
    half = torch.utils.data.SubsetRandomSampler(range(FILES // 2))
    (row,) = nbdist.reading(lambda n: loader(folder, n, sampler=half), workers=[0], files=folder)
    assert row.file_megabytes_per_second == pytest.approx(FILES / 2 * BYTES / 1e6 / row.seconds)


data = torch.utils.data


class Stream(data.IterableDataset):  # type: ignore[name-defined]  # `data` is no module to mypy
    """What all files hold, from each worker."""

    def __init__(self, files: Any) -> None:
        self.files = files

    def __iter__(self) -> Iterator[Any]:
        return (self.files[place] for place in range(len(self.files)))


class Counted(Stream):
    """A stream that knows how long it is."""

    def __len__(self) -> int:
        return len(self.files)


def _overlapping(files: Any) -> Any:
    return data.ConcatDataset(
        [data.Subset(files, range(8)), data.Subset(files, [4, 5, 6, 7, 31, -1])]
    )


@pytest.mark.parametrize(
    ("make", "samples", "read"),
    [
        (lambda files: {"dataset": data.Subset(files, range(8))}, 8, 8),
        (lambda files: {"dataset": data.random_split(files, [8, 24])[0]}, 8, 8),
        (
            lambda files: {"dataset": data.Subset(data.Subset(files, range(9, 30)), [2, 0, 2])},
            3,
            2,
        ),
        (lambda files: {"dataset": _overlapping(files)}, 14, 9),
        (lambda files: {"dataset": data.ConcatDataset([files, files])}, 64, 32),
        (lambda files: {"dataset": data.Subset(files, range(30)), "drop_last": True}, 24, 24),
        (
            lambda files: {
                "dataset": files,
                "sampler": data.WeightedRandomSampler([1.0] * 4 + [0.0] * 28, 64),
            },
            64,
            4,
        ),
        (lambda files: {"dataset": files, "batch_size": None}, None, 32),
        (lambda files: {"dataset": Stream(files)}, 32, 32),
        (lambda files: {"dataset": Counted(files)}, 32, 32),
    ],
)
def test_what_was_read_of_the_files(
    folder: Path, make: Any, samples: int | None, read: int
) -> None:
    given = {"batch_size": 8, **make(Files(folder))}
    (row,) = nbdist.reading(lambda _: data.DataLoader(**given), workers=[0], files=folder)
    assert row.samples == samples
    size = read * BYTES / 1e6 / row.seconds
    assert row.file_megabytes_per_second == pytest.approx(size)


def test_a_stream_that_each_worker_reads_is_read_once(folder: Path) -> None:
    def make(workers: int) -> Any:
        return data.DataLoader(Counted(Files(folder)), 8, num_workers=workers)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that there are more samples than that
        (row,) = nbdist.reading(make, workers=[2], files=folder)
        assert row.samples == 2 * FILES
        size = FILES * BYTES / 1e6 / row.seconds
        assert row.file_megabytes_per_second == pytest.approx(size)
        (cut,) = nbdist.reading(make, workers=[2], files=folder, seconds=1e-9)
    assert cut.batches == 1
    assert cut.file_megabytes_per_second is None  # the other worker may have read the same


def test_files_behind_links_count_and_only_once(folder: Path, tmp_path_factory: Any) -> None:
    around = tmp_path_factory.mktemp("around")
    (around / "train").symlink_to(folder)
    (around / "again").symlink_to(around)  # leads back
    (around / "same.bin").hardlink_to(folder / "0.bin")
    for files in (around, [folder, folder / "0.bin"]):
        (row,) = nbdist.reading(lambda n: loader(folder, n), workers=[0], files=files)
        assert row.file_megabytes_per_second == pytest.approx(FILES * BYTES / 1e6 / row.seconds)


def test_a_loader_that_is_faster_than_its_files_is_told(folder: Path) -> None:
    (folder / "0.bin").write_bytes(os.urandom(8_000_000))
    quick = [torch.zeros(1000, 1000)]
    found = nbdist.reading(lambda _: quick, workers=[0], files=folder)
    assert (found[0].of_storage or 0) > 1.1
    assert "The loader was faster than reading the files alone" in found.notes[-1]


def test_samples_that_come_once_for_each_worker_are_told() -> None:
    batch = torch.zeros(4, 2), torch.zeros(4)
    found = nbdist.reading(lambda workers: [batch] * (1 + workers), workers=[0, 1])
    told = "Whole passes gave different numbers of samples: 4 with 0, 8 with 1 workers."
    assert found.notes[0].startswith(told)


def test_a_pass_ends_in_time(folder: Path) -> None:
    def slow(_: int) -> Iterator[Any]:
        while True:
            time.sleep(0.01)
            yield {"x": torch.zeros(4, 2), "texts": ["a", "bc", "", ""], "raw": 4 * (b"123",)}

    (row,) = nbdist.reading(slow, workers=[0], files=folder / "0.bin", seconds=0.1)
    assert row.seconds > 0.1
    assert row.samples_per_second == pytest.approx(4 * row.batches / row.seconds)
    size = row.batches * (4 * 2 * 4 + 3 + 4 * 3)
    assert row.megabytes_per_second == pytest.approx(size / 1e6 / row.seconds)
    assert row.file_megabytes_per_second is None  # nobody knows which part of all this was
    (blind,) = nbdist.reading(lambda _: ["a", "b"], workers=[0])
    assert blind.samples_per_second is None
    assert repr(nbdist.reading(lambda _: [1], workers=[0])).count("n/a") == 2


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
        ({"files": []}, "files is empty: give a path"),
        ({"files": ""}, "there is no file ''"),
        ({"files": 3}, "files=3 names no files"),
        ({"workers": 4}, "workers=4 must be numbers of processes"),
        ({"workers": [1.5]}, "must be numbers of processes"),
        ({"seconds": "3"}, "seconds='3' is not a number of seconds"),
        ({}, "the loader for 0 workers gives no batches"),
    ):
        with pytest.raises(UsageError, match=words):
            nbdist.reading(lambda _: [], **more)
    with pytest.raises(UsageError, match="is not a function: write lambda workers"):
        nbdist.reading([1])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"make\(0\) returned None"):
        nbdist.reading(lambda _: None)  # type: ignore[arg-type,return-value]


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
    assert title.split() == ["workers", "samples/s", "MB/s", "first", "batch", "(s)"]
    assert [re.split(r"\s+", row.strip())[0] for row in rows] == ["0", "1"]
