"""Writes a script and its data: completely or not at all, never over files that are not ours."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
from pathlib import Path

from nbdist.errors import UsageError
from nbdist.machine.operating_system import private

MARK = "# Saved by nbdist; without changes since then while this is its text's digest: "
SIGNED = re.compile(re.escape(MARK) + r"([0-9a-f]{16})\n\Z")


def signed(text: str) -> str:
    """Return a script with a last line (a digest) that shows later whether it was edited."""
    return f"{text}\n{MARK}{_digest(text + chr(10))}\n"


def write(path: Path, text: str, folder: Path, data: dict[str, bytes], *, keep: bool) -> None:
    """Write a script and its data.

    Parameters
    ----------
    path
        The script's path.
    text
        The script.
    folder
        The data folder.
    data
        Files by name.
    keep
        Whether the user keeps the script, next to other files; otherwise it is private.

    Raises
    ------
    UsageError
        If a file cannot be written, or other files are there. No partial file is left behind.
    """
    try:
        if keep:
            _check_ours(path, folder, with_data=bool(data))
            text = signed(text)
        _replace(path, text, folder, data, keep=keep)
    except (OSError, UnicodeError) as err:
        why = getattr(err, "strerror", None) or err
        raise UsageError(f"{path} could not be written: {why}; nothing was left behind") from err


def _replace(path: Path, text: str, folder: Path, data: dict[str, bytes], *, keep: bool) -> None:
    mark = f".{os.getpid()}.part"
    new, new_folder = path.with_name(path.name + mark), folder.with_name(folder.name + mark)
    old_folder = folder.with_name(f"{folder.name}.{os.getpid()}.old")
    try:
        _put(new, text.encode(), keep=keep)
        if data:
            new_folder.mkdir(mode=0o777 if keep else 0o700)
            for name, content in data.items():
                _put(new_folder / name, content, keep=keep)
        # All bytes are on the disk; only renames follow.
        if folder.exists() and (data or path.exists()):
            folder.rename(old_folder)
        try:
            if data:
                new_folder.rename(folder)
            new.replace(path)
        except OSError:
            if old_folder.exists():
                shutil.rmtree(folder, ignore_errors=True)
                old_folder.rename(folder)
            raise
    finally:
        with contextlib.suppress(OSError):
            new.unlink()
        shutil.rmtree(new_folder, ignore_errors=True)
        if path.exists():
            shutil.rmtree(old_folder, ignore_errors=True)


def _put(path: Path, content: bytes, *, keep: bool) -> None:
    with open(path, "xb", opener=None if keep else private) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _check_ours(path: Path, folder: Path, *, with_data: bool) -> None:
    """Raise if a file that would be overwritten is not nbdist's, or was edited since."""
    other = "; choose another name, or remove it"
    if path.is_dir():
        raise UsageError(f"{path} is a folder; name a file")
    old = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    if path.exists():
        found = SIGNED.search(old)
        if found is None:
            raise UsageError(
                f"{path} exists, and was not saved by nbdist or was extended since{other}"
            )
        if _digest(old[: found.start()]) != found[1]:
            raise UsageError(f"{path} was edited since nbdist saved it{other}")
    if not (with_data or old) or not (folder.exists() or folder.is_symlink()):
        return
    if folder.is_symlink() or not folder.is_dir():
        foreign = [folder]
    else:
        foreign = [file for file in folder.iterdir() if f'"{file.name}"' not in old]
    if foreign:
        raise UsageError(f"{foreign[0]} exists, and was not saved by nbdist{other}")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
