"""Reading of input files: text or gzip, from a file or a pipe, with or without a byte order mark."""

import gzip
import io
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from attrs import frozen

_GZIP = b"\x1f\x8b"
_UTF_8 = b"\xef\xbb\xbf"  # its mark
_WIDE = (b"\xff\xfe", b"\xfe\xff")  # the marks of UTF-16: Excel's "Unicode text"
_LONGEST = 1_000_000  # characters of a line: what is longer has no lines
_IN_MEMORY = 8_000_000  # bytes of a pipe; what is more goes to a file without a name


class Unreadable(Exception):  # noqa: N818  (caught where a file is read; its text is for a person)
    """A file that no row can be had from; or from some line on, which is `line`."""

    def __init__(self, told: str, line: int = 0) -> None:
        super().__init__(told)
        self.line = line

    @property
    def where(self) -> str:
        """The line, to be put behind the file's name."""
        return f": line {self.line}:" if self.line else ""


@frozen
class RowProblem:
    """A problem of one line or column of a file; it never has a value of it."""

    file: str
    line: int
    column: str
    field: str
    message: str

    def __str__(self) -> str:
        place = ", ".join(part for part in (f"line {self.line}" if self.line else "", self.column) if part)
        said = f"{self.field}: {self.message}" if self.field else self.message
        return f"{self.file}: {place}: {said}" if place else f"{self.file}: {said}"


class Source:
    """A file's lines, to be read more than once; ``-`` is what is piped in, which is kept meanwhile."""

    def __init__(self, path: str, encoding: str | None = None) -> None:
        self.name: str = "standard input" if path == "-" else path
        self._encoding = encoding
        try:
            self._file = _copied(_standard_input()) if path == "-" else _opened(path)
        except IsADirectoryError:
            raise Unreadable("is a directory, and not a file") from None
        except FileNotFoundError:
            raise Unreadable("is not there") from None
        except OSError as error:
            raise Unreadable(f"cannot be read: {error.strerror}") from None

    @property
    def mark(self) -> str:
        """What a file of some of its lines begins with, so that the same options read it, which is UTF-8."""
        return "" if self._encoding is None else _UTF_8.decode()

    def close(self) -> None:
        """Done with it."""
        self._file.close()

    def lines(self) -> Iterator[str]:
        """The lines from the first on, each with its end.

        Raises:
            Unreadable: It is no text.
        """
        self._file.seek(0)
        start = self._file.read(2)
        self._file.seek(0)
        unzipped = cast("IO[bytes]", gzip.open(self._file)) if start == _GZIP else self._file  # noqa: SIM115  (left open, as the file below)
        buffered = io.BufferedReader(cast("io.RawIOBase", unzipped))
        try:
            yield from self._decoded(buffered)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            raise Unreadable("is cut off, or no whole gzip: make or fetch it again") from None
        except OSError as error:
            raise Unreadable(f"cannot be read: {error.strerror}") from None
        finally:
            if unzipped is self._file:
                buffered.detach()

    def _decoded(self, file: "io.BufferedReader[io.RawIOBase]") -> Iterator[str]:
        start = file.peek(3)[:3]
        encoding = self._encoding or ("utf-16" if start[:2] in _WIDE else "utf-8-sig")
        if start == _UTF_8:  # it says so itself, whatever was said of the file that its lines are from
            encoding = "utf-8-sig"
        try:
            text = io.TextIOWrapper(file, encoding=encoding, newline="")
        except LookupError:
            raise Unreadable(f"cannot be read as {encoding}: there is no such encoding of text") from None
        number = 0
        try:
            while line := text.readline(_LONGEST):
                number += 1
                if len(line) == _LONGEST:
                    raise Unreadable("is longer than any row: this is no file of rows", number)
                if "\0" in line:
                    raise Unreadable("holds zero bytes: this is no text", number)
                yield line
        except UnicodeError:
            told = f"is not {encoding.removesuffix('-sig').upper()} from about here on"
            hint = "save it as UTF-8, or say what it is, as in --encoding cp1252 for a CSV of Excel"
            raise Unreadable(f"{told}: {hint}", number + 1) from None
        finally:
            text.detach()


def _standard_input() -> IO[bytes]:
    if sys.stdin is None:
        raise Unreadable("is closed")
    return sys.stdin.buffer


def _opened(path: str) -> IO[bytes]:
    file = Path(path).open("rb")  # noqa: SIM115  (closed with its source)
    if file.seekable():
        return file
    with file:  # a named pipe, as of the shell's <(command)
        return _copied(file)


def _copied(file: IO[bytes]) -> IO[bytes]:
    """What comes once only, and is read twice."""
    kept = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115  (closed with its source)
    try:
        shutil.copyfileobj(file, kept)
    except BaseException:
        kept.close()
        raise
    return cast("IO[bytes]", kept)
