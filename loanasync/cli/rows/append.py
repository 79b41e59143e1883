"""A file to which whole lines are appended at once, and which can be read after a crash."""

import gzip
import os
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

STANDARD_OUTPUT = "-"
_GZIP_ALONE = 31  # zlib's word for one gzip member
_MEMBER = 4096  # bytes; a line is less


class Appending:
    """A file that lines are added to, each at once and as a whole; ``-`` is standard output.

    In a ``.gz`` each is a member of its own: longer than need be, and whole whenever the process ends.

    Args:
        path: Where it is.
        afresh: Empty it first, and begin with this.
    """

    def __init__(self, path: str, *, afresh: str | None = None) -> None:
        self.name: str = "standard output" if path == STANDARD_OUTPUT else path
        self._is_zipped = path.endswith(".gz")
        if path == STANDARD_OUTPUT:
            self._file = os.dup(1)
        else:  # it holds personal data: nobody else is to read it
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | (0 if afresh is None else os.O_TRUNC)
            self._file = os.open(path, flags, 0o600)
        if afresh:
            self.add(afresh)

    def add(self, text: str) -> None:
        """Add text, or nothing of it.

        Raises:
            OSError: The file takes no more.
        """
        content = text.encode(errors="backslashreplace")  # half a character is written as JSON escapes it
        left = memoryview(gzip.compress(content, mtime=0) if self._is_zipped else content)
        begun = os.fstat(self._file).st_size
        try:
            while left:
                left = left[os.write(self._file, left) :]
        except OSError:
            with suppress(OSError):  # it may be no file that can be cut
                os.ftruncate(self._file, begun)
            raise

    def close(self) -> None:
        """Done with it."""
        os.close(self._file)


def has_content(path: str) -> bool:
    """Whether it is a file, and not an empty one."""
    return Path(path).is_file() and Path(path).stat().st_size > 0


def lines(path: str) -> Iterator[str]:
    """The lines, without their ends."""
    opened = gzip.open if path.endswith(".gz") else open
    with opened(path, "rt", encoding="utf-8", newline="\n") as file:
        for line in file:
            yield line.rstrip("\r\n")


def cut_half_a_line(path: str) -> None:
    """Remove what a crash of the machine left of a last line."""
    os.truncate(path, _end_of_members(path) if path.endswith(".gz") else _end_of_lines(path))


def _end_of_lines(path: str) -> int:
    with Path(path).open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end > 0:
            file.seek(end - 1)
            if file.read(1) == b"\n":
                break
            end -= 1
        return end


def _end_of_members(path: str) -> int:
    whole = 0
    with Path(path).open("rb") as file:
        while True:
            file.seek(whole)
            member = zlib.decompressobj(_GZIP_ALONE)
            try:
                while not member.eof and (some := file.read(_MEMBER)):
                    member.decompress(some)
            except zlib.error:
                return whole
            if not member.eof:
                return whole
            whole = file.tell() - len(member.unused_data)
