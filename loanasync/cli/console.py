"""Where a person is told; if nobody hears it any more, the work goes on."""

import io
import sys
from contextlib import suppress
from typing import IO, cast

from rich.console import Console


class _Heard(io.TextIOBase):
    """Standard error, or what is left of it: a terminal can be closed, and a pipe's reader can go."""

    def __init__(self) -> None:
        self._file = sys.stderr  # None when it was closed from the start

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8" if self._file is None else self._file.encoding

    def fileno(self) -> int:
        if self._file is None:
            raise io.UnsupportedOperation("closed")
        return self._file.fileno()

    def isatty(self) -> bool:
        return self._file is not None and self._file.isatty()

    def write(self, text: str) -> int:
        if self._file is not None:
            with suppress(OSError, ValueError):
                self._file.write(text)
        return len(text)

    def flush(self) -> None:
        if self._file is not None:
            with suppress(OSError, ValueError):
                self._file.flush()


def console() -> Console:
    """On standard error: what goes to standard output is for programs."""
    return Console(file=cast("IO[str]", _Heard()))
