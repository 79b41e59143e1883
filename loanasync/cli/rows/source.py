"""Reading of input files: text or gzip, from a file or a pipe, with or without a byte order mark."""

import codecs
import gzip
import io
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, cast

from attrs import frozen

_GZIP_MAGIC = b"\x1f\x8b"
_UTF_8_MARK = b"\xef\xbb\xbf"
# Encodings that write a byte order mark each time, and those that write the same text without one.
_WITHOUT_MARK = {"utf-8-sig": "utf-8", "utf-16": "utf-16-le", "utf-32": "utf-32-le"}
_UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")  # Excel saves "Unicode text" as UTF-16
# A spreadsheet or a data file under the name of a text file.
_NOT_TEXT = {
    b"PK\x03\x04": "a workbook (.xlsx, .ods) or another zip file",
    b"\xd0\xcf\x11\xe0": "an Excel workbook (.xls)",
    b"PAR1": "a Parquet file",
}
_MAX_LINE = 1_000_000  # characters; a longer line means that the file does not consist of lines
_MAX_IN_MEMORY = 8_000_000  # bytes of a pipe; longer input is kept in a temporary file


class UnreadableError(Exception):
    """An input file that cannot be read, or not from some line on. The text is shown to the user.

    Args:
        message: The reason, and what to do.
        line: Number of the line; 0 for the whole file.
    """

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(message)
        self.line = line

    @property
    def location(self) -> str:
        """The line as the beginning of a message; empty for the whole file."""
        return f"line {self.line}: " if self.line else ""


@frozen
class InputProblem:
    """A problem of one line or one column of an input file. It contains no value of the file."""

    file: str
    line: int
    column: str
    field: str
    message: str
    code: str = ""  # of the problem that the client's check found

    def __str__(self) -> str:
        where = ", ".join(part for part in (f"line {self.line}" if self.line else "", self.column) if part)
        message = f"{self.field}: {self.message}" if self.field else self.message
        return f"{self.file}: {where}: {message}" if where else f"{self.file}: {message}"


class Source:
    """The lines of an input file, which can be read more than once. A pipe is copied for that purpose.

    Args:
        path: Path of the file; ``-`` is standard input.
        encoding: Text encoding. None: UTF-8, or the encoding of the byte order mark.

    Raises:
        UnreadableError: The file cannot be opened.
    """

    def __init__(self, path: str, encoding: str | None = None) -> None:
        self.name: str = "standard input" if path == "-" else path
        self._encoding = encoding
        # The format of a copy, known when the first line was read. The encoding writes no mark.
        self.encoding: str = "utf-8"
        self.byte_order_mark: str = ""
        try:
            self._file = _temporary_copy(_standard_input()) if path == "-" else _open(path)
        except IsADirectoryError:
            raise UnreadableError("this is a directory; name a file") from None
        except FileNotFoundError:
            raise UnreadableError("file not found") from None
        except OSError as error:
            raise UnreadableError(f"cannot be read: {error.strerror}") from None

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def lines(self) -> Iterator[str]:
        """Yield all lines from the beginning, each with its line end.

        Raises:
            UnreadableError: A line is not text, or the file is damaged.
        """
        self._file.seek(0)
        start = self._file.read(2)
        self._file.seek(0)
        is_gzip = start == _GZIP_MAGIC
        unzipped = cast("IO[bytes]", gzip.open(self._file)) if is_gzip else self._file  # noqa: SIM115  (must not close the file)
        buffered = io.BufferedReader(cast("io.RawIOBase", unzipped))
        try:
            yield from self._decoded_lines(buffered)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            raise UnreadableError(
                "the gzip data is incomplete or damaged; create or download the file again"
            ) from None
        except OSError as error:
            raise UnreadableError(f"cannot be read: {error.strerror}") from None
        finally:
            if unzipped is self._file:
                with suppress(ValueError):  # closed before all lines were read
                    buffered.detach()

    def _decoded_lines(self, file: "io.BufferedReader[io.RawIOBase]") -> Iterator[str]:
        if kind := _NOT_TEXT.get(file.peek(4)[:4]):
            raise UnreadableError(
                f"this is {kind}, not text; open it in the program that wrote it, and save it as CSV (UTF-8)"
            )
        start = file.peek(3)[:3]
        encoding = self._encoding or ("utf-16" if start[:2] in _UTF_16_MARKS else "utf-8-sig")
        if start == _UTF_8_MARK:  # it says more than --encoding
            encoding = "utf-8-sig"
        try:
            name = codecs.lookup(encoding).name
            text = io.TextIOWrapper(file, encoding=encoding, newline="")
        except LookupError:
            raise UnreadableError(
                f"unknown text encoding '{encoding}'; use a name such as utf-8 or cp1252"
            ) from None
        has_mark = start == _UTF_8_MARK or start[:2] in _UTF_16_MARKS
        self.byte_order_mark = "\ufeff" if has_mark and name in _WITHOUT_MARK else ""
        self.encoding = _WITHOUT_MARK.get(name, name)
        number = 0
        try:
            while line := text.readline(_MAX_LINE):
                number += 1
                if len(line) == _MAX_LINE:
                    raise UnreadableError(
                        f"longer than {_MAX_LINE:,} characters; this is not a file of rows", number
                    )
                if "\0" in line:
                    raise UnreadableError("contains NUL bytes; this is not a text file", number)
                yield line
        except UnicodeError:
            raise UnreadableError(
                f"not valid {encoding.removesuffix('-sig').upper()} from about this line on; save the file "
                "as UTF-8, or name its encoding, such as --encoding cp1252 for a CSV file from Excel",
                number + 1,
            ) from None
        finally:
            with suppress(ValueError):  # closed before all lines were read
                text.detach()


def _standard_input() -> IO[bytes]:
    if sys.stdin is None:
        raise UnreadableError("closed; pipe the rows in, or name a file")
    return sys.stdin.buffer


def _open(path: str) -> IO[bytes]:
    file = Path(path).open("rb")  # noqa: SIM115  (closed with its source)
    if file.seekable():
        return file
    with file:  # a named pipe, such as the shell's <(command)
        return _temporary_copy(file)


def _temporary_copy(file: IO[bytes]) -> IO[bytes]:
    """Copy a pipe, which can be read only once: the rows are read for the plan and again to be sent."""
    copy = tempfile.SpooledTemporaryFile(_MAX_IN_MEMORY)  # noqa: SIM115  (closed with its source)
    try:
        shutil.copyfileobj(file, copy)
    except BaseException:
        copy.close()
        raise
    return cast("IO[bytes]", copy)
