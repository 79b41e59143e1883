"""Files that a command writes, each as a whole."""

import glob
import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import typer

STANDARD_OUTPUT = "-"


def has_content(path: str) -> bool:
    """Return True if the path is a file that is not empty."""
    return Path(path).is_file() and Path(path).stat().st_size > 0


def write_whole(path: str, lines: Iterable[str]) -> None:
    """Write a file under another name, and rename it. Only its owner may read it.

    Args:
        path: Path of the file; ``-`` is standard output. Pipes and devices are written directly.
        lines: The lines. A lone surrogate is escaped as in JSON.

    Raises:
        OSError: The file cannot be written. It is unchanged.
    """
    content = (line.encode(errors="backslashreplace") for line in lines)
    try:
        if path == STANDARD_OUTPUT or not is_regular(path):
            with os.fdopen(os.dup(1), "wb") if path == STANDARD_OUTPUT else Path(path).open("wb") as file:
                file.writelines(content)
        else:
            _replace(Path(os.path.realpath(path)), content)  # a link stays a link
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None


def _replace(target: Path, content: Iterable[bytes]) -> None:
    handle, draft = tempfile.mkstemp(prefix=f"{target.name}.", suffix=".part", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as raw:
            raw.writelines(content)
            raw.flush()
            os.fsync(raw.fileno())
        if target.exists():
            shutil.copymode(target, draft)
        Path(draft).replace(target)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise


def remove_drafts(path: str) -> None:
    """Remove what a killed process has left of a file that it wrote with `write_whole`."""
    target = Path(os.path.realpath(path))
    # Eight characters, as `tempfile` chooses them: the drafts of "out.csv" are not those of "out".
    for draft in target.parent.glob(f"{glob.escape(target.name)}.{'?' * 8}.part"):
        draft.unlink(missing_ok=True)


def check_distinct_files(written: Sequence[str | None], read: Iterable[str | None]) -> None:
    """Raise an error if a file would be used for two purposes, such as the rows and the results.

    A device may be used twice.

    Args:
        written: Names of the files that the command writes.
        read: Names of the files that it only reads.
    """
    files: dict[object, str] = {}  # the name that the user gave, by file
    for name in read:
        if name is not None and is_regular(name):
            files[_file_of(name)] = name
    for name in written:
        if name is None or not is_regular(name):
            continue
        if (file := _file_of(name)) in files:
            first = files[file]
            named = f"'{name}'" if name == first else f"'{first}' and '{name}' are one file, which"
            raise typer.BadParameter(f"{named} is used for two purposes; name two different files")
        files[file] = name
    if written.count(STANDARD_OUTPUT) > 1:
        raise typer.BadParameter("standard output is used for two purposes; name a file for one of them")


def files_of_ledger(name: str | None) -> tuple[str, ...]:
    """Return the names of the files of an SQLite ledger."""
    return () if name is None else (name, f"{name}-wal", f"{name}-shm")


def _file_of(name: str) -> object:
    """Return the device and the number of a file or SQLite ledger; its path without links if it is missing.

    The name of a file may differ in hard links, and in upper and lower case on some systems.
    """
    path = Path(name.removeprefix("sqlite:///")).resolve()
    if not path.exists():
        return path
    stat = path.stat()
    return stat.st_dev, stat.st_ino


def is_regular(path: str) -> bool:
    """Return True for a file, or a path where one can be created; False for a device or a pipe."""
    return path != STANDARD_OUTPUT and (Path(path).is_file() or not Path(path).exists())
