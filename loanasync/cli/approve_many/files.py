"""The files that a run of `approve-many` writes: each as a whole, and none for two purposes."""

import glob
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import typer
from attrs import define, field

from loanasync.cli.ledger.open import UnusableError

try:
    import fcntl
except ImportError:  # Windows: two runs at the same time are not noticed, and the ledger keeps them apart
    fcntl = None  # type: ignore[assignment]

STANDARD_OUTPUT = "-"


class LockedError(Exception):
    """Another run writes to the file. The text is shown to the user."""


@define
class Output:
    """The results file, and the file OUT.ledger beside it.

    OUT.ledger has one line: the id and the address of the ledger. With another ledger, for example in another
    container or for another account, the same command would request the customers again.

    Args:
        path: Path of the results; ``-`` is standard output.
    """

    path: str
    _written: str | None = field(init=False, default=None)  # the line of OUT.ledger

    @property
    def ledger_file(self) -> Path | None:
        """The file OUT.ledger; None for results that are not in a file."""
        return Path(f"{self.path}.ledger") if is_regular(self.path) else None

    @property
    def files(self) -> tuple[str, ...]:
        """The names of both files."""
        return (self.path,) if self.ledger_file is None else (self.path, str(self.ledger_file))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Refuse a second run with the same results. The lock ends with the process.

        Raises:
            LockedError: Another run has the lock.
            OSError: The file cannot be written.
        """
        file = self.ledger_file
        if file is None:
            yield
            return
        is_new = not file.exists()
        handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if fcntl is not None:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_drafts(self.path)  # of a killed run
            try:
                yield
            finally:
                if is_new and not has_content(str(file)):  # nothing was sent
                    file.unlink()
        except BlockingIOError:
            raise LockedError(
                f"another run is writing to {self.path}: wait until it ends, then run this command again"
            ) from None
        finally:
            os.close(handle)

    def check(self, ledger_id: str | None, name: str) -> None:
        """Refuse results that were written with another ledger.

        Args:
            ledger_id: The id of the present ledger; None if it does not exist yet.
            name: Its name for messages.

        Raises:
            UnusableError: They were.
        """
        file = self.ledger_file
        if file is None:
            return
        line = file.read_text("utf-8", "surrogateescape").strip() if file.exists() else ""
        if not line and has_content(self.path):
            raise UnusableError(
                f"{self.path} exists, but {file} is missing, so its ledger is not known: restore that file, "
                "or name other results with -o"
            )
        first_id, _, first_name = line.partition(" ")
        if line and first_id != ledger_id:
            raise UnusableError(
                f"{self.path} was written with the ledger {first_name}, and the present one is {name}: pass "
                "--ledger with the first one, or name other results with -o"
            )
        self._written = line

    def keep(self, ledger: str) -> None:
        """Write the id and the name of the ledger to OUT.ledger, unless they are there.

        Raises:
            OSError: The file cannot be written.
        """
        if self.ledger_file is not None and not self._written:
            self.ledger_file.write_text(f"{ledger}\n", "utf-8", "surrogateescape")


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
