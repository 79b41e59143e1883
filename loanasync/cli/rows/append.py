"""A file to which whole lines are appended, and which can be read after a crash."""

import gzip
import os
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

STANDARD_OUTPUT = "-"
_ONE_GZIP_MEMBER = 31  # the `wbits` argument of zlib for a single gzip member
_READ_SIZE = 4096  # bytes read at once; most members are shorter


class AppendFile:
    """A file for lines, each written at once and as a whole. ``-`` is standard output.

    In a ``.gz`` file each line is a separate gzip member. That takes more space, and keeps every line
    readable if the process is killed.

    Args:
        path: Path of the file.
        overwrite_with: Empty the file and begin it with this text. None: append to the file.
        encoding: Text encoding, one that writes no byte order mark.
    """

    def __init__(self, path: str, *, overwrite_with: str | None = None, encoding: str = "utf-8") -> None:
        self.name: str = "standard output" if path == STANDARD_OUTPUT else path
        self._encoding = encoding
        self._is_gzip = path.endswith(".gz")
        if path == STANDARD_OUTPUT:
            self._file = os.dup(1)
        else:  # it contains personal data, so only its owner may read it
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | (0 if overwrite_with is None else os.O_TRUNC)
            self._file = os.open(path, flags, 0o600)
        if overwrite_with:
            self.add(overwrite_with)

    def add(self, text: str) -> None:
        """Append text, either all of it or nothing.

        Raises:
            OSError: The text could not be written.
        """
        content = text.encode(
            self._encoding, errors="backslashreplace"
        )  # a lone surrogate is escaped as in JSON
        left = memoryview(gzip.compress(content, mtime=0) if self._is_gzip else content)
        size_before = os.fstat(self._file).st_size
        try:
            while left:
                left = left[os.write(self._file, left) :]
        except OSError:
            with suppress(OSError):  # pipes and devices cannot be truncated
                os.ftruncate(self._file, size_before)
            raise

    def sync(self) -> None:
        """Wait until the text is on the disk."""
        os.fsync(self._file)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def has_content(path: str) -> bool:
    """Return True if the path is a file that is not empty."""
    return Path(path).is_file() and Path(path).stat().st_size > 0


def read_lines(path: str) -> Iterator[str]:
    """Yield the lines of a file without their line ends."""
    opened = gzip.open if path.endswith(".gz") else open
    with opened(path, "rt", encoding="utf-8", newline="\n") as file:
        for line in file:
            yield line.rstrip("\r\n")


def truncate_incomplete_line(path: str) -> None:
    """Remove an incomplete last line that a crash of the machine left behind."""
    end = _end_of_last_member(path) if path.endswith(".gz") else _end_of_last_line(path)
    os.truncate(path, end)


def _end_of_last_line(path: str) -> int:
    with Path(path).open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end > 0:
            file.seek(end - 1)
            if file.read(1) == b"\n":
                break
            end -= 1
        return end


def _end_of_last_member(path: str) -> int:
    end = 0
    with Path(path).open("rb") as file:
        while True:
            file.seek(end)
            member = zlib.decompressobj(_ONE_GZIP_MEMBER)
            try:
                while not member.eof and (chunk := file.read(_READ_SIZE)):
                    member.decompress(chunk)
            except zlib.error:
                return end
            if not member.eof:
                return end
            end = file.tell() - len(member.unused_data)
