"""The results file of `approve-many`: its lock, and the ledger that it was written with."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attrs import define, field

from loanasync.cli.files import has_content, is_regular, remove_drafts
from loanasync.cli.ledger.open import UnusableError

try:
    import fcntl
except ImportError:  # Windows: two runs at the same time are not noticed, and the ledger keeps them apart
    fcntl = None  # type: ignore[assignment]


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
