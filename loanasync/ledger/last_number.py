"""A file with the number of the last write that this machine saw, to notice a ledger that lost writes."""

import os
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from secrets import token_hex

from loanasync.ledger.header import Header

_INTERVAL = 1.0  # seconds between two writes of the file


class LastNumber:
    """The file of one ledger in the first writable orphan folder.

    A restored copy of a ledger lacks decisions. A client notices this, because the number of the last write
    goes back, or another transaction has written the header. With the file, a client notices it after a
    restart, too.

    Args:
        folders: Returns the orphan folders.
    """

    def __init__(self, folders: Callable[[], Iterable[Path]]) -> None:
        self._folders = folders
        self._written = 0
        self._next = 0.0

    def is_due(self, number: int) -> bool:
        """Return True if the number has changed, and the last one was written a second ago."""
        return number != self._written and time.monotonic() >= self._next

    def read(self, header: Header) -> tuple[int, int]:
        """Return the epoch and the number in the file; zeros if there is no file.

        If the file was written for the same header by another transaction, the number is `sys.maxsize`.
        """
        for folder in self._folders():
            with suppress(OSError, ValueError):
                text = (folder / _name(header)).read_text(encoding="ascii")
                epoch, number, generation, transaction = map(int, text.split())
                is_restored = generation == header.generation and transaction != header.transaction
                return epoch, sys.maxsize if is_restored else number
        return 0, 0

    def write(self, header: Header, number: int) -> None:
        """Replace the file, unless another process has seen more. Without a writable folder, do nothing."""
        self._written, self._next = number, time.monotonic() + _INTERVAL
        if self.read(header) >= (header.epoch, number):
            return
        for folder in self._folders():
            with suppress(OSError):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                file = folder / _name(header)
                part = file.with_suffix(f".{token_hex(4)}")
                numbers = (header.epoch, number, header.generation, header.transaction)
                try:
                    part.write_text(" ".join(map(str, numbers)), encoding="ascii")
                    part.replace(file)
                finally:
                    part.unlink(missing_ok=True)
                return


def _name(header: Header) -> str:
    # A copy of the ledger has the same id. Relative and absolute paths and links are the same ledger.
    name = os.path.realpath(header.name) if os.path.exists(header.name) else header.name  # noqa: PTH110  (a text)
    place = sha256(os.fsencode(name)).hexdigest()[:8]
    return f"ledger-{header.id}-{place}.number"
