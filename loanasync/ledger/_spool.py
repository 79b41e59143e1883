"""Answers that the ledger did not take, each in a file of this machine, until they are brought to it."""

import asyncio
import json
import os
import tempfile
from base64 import b64decode, b64encode
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from secrets import token_hex

from attrs import asdict, field, frozen

from loanasync._events import LOGGER
from loanasync.ledger._entries import SERVICE, Entry, Settlement, State, Subject
from loanasync.ledger._formats import FORMAT
from loanasync.ledger._policy import default_spools
from loanasync.ledger._protocol import DecisionLedger

__all__ = ["Orphan", "has_more", "import_orphans", "spool"]

_LEASE = 60.0  # seconds between the two moves that bring a decision without an entry to the ledger


@frozen(kw_only=True)
class Orphan:
    """A decision without an entry."""

    key: str
    token: str = field(repr=False)
    payload: str = field(repr=False)
    settlement: Settlement
    subject: Subject = field(factory=Subject)

    def as_json(self) -> bytes:
        """What its file has."""
        told = asdict(self.settlement)
        body = None if self.settlement.body is None else b64encode(self.settlement.body).decode()
        whole = {"format": FORMAT, "key": self.key, "token": self.token, "payload": self.payload}
        return json.dumps({**whole, "subject": asdict(self.subject), **told, "body": body}).encode()

    @classmethod
    def from_json(cls, content: bytes) -> "Orphan":
        """An orphan from its file.

        Raises:
            ValueError: It is none.
        """
        try:
            told = json.loads(content)
            number = told.pop("format")
            if not 1 <= number <= FORMAT:
                raise ValueError("another format")
            subject = Subject(**told.pop("subject")) if number == FORMAT else Subject()
            ids = {name: told.pop(name) for name in ("key", "token", "payload")}
            body = told.pop("body")
            told["body"] = None if body is None else b64decode(body, validate=True)
            settlement = Settlement(**{**told, "state": State(told["state"])})
            return cls(**ids, subject=subject, settlement=settlement)
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(type(error).__name__) from None


def spool(folders: Iterable[Path], orphan: Orphan) -> Path | None:
    """Write an answer to a file in the first folder that takes it; None when none does.

    An error of one folder never ends this: the next folder is tried.
    """
    for folder in folders:
        with suppress(Exception):
            return _write(folder, orphan)
    return None


def _write(folder: Path, orphan: Orphan) -> Path:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(suffix=".part", dir=folder)  # for its owner alone to read
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(orphan.as_json())
            file.flush()
            os.fsync(file.fileno())
        whole = folder / f"{orphan.key[:12]}-{token_hex(8)}.json"
        Path(name).replace(whole)  # from here on an import sees it, whole
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    _sync_folder(folder)
    return whole


def _sync_folder(folder: Path) -> None:
    with suppress(OSError):  # a system whose folders cannot be opened keeps names by itself
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


async def import_orphans(ledger: DecisionLedger, folder: str | Path | None = None) -> int:
    """Bring answers that lie in files to the ledger, and delete the files of those that are there.

    A decision lands however late it comes; one that is in the ledger already stays as it is. A file that is
    no answer, or contradicts the ledger, is left and told of in the log. To be done again does no harm.

    Args:
        ledger: The ledger, working again.
        folder: Where the files are, if not where a client without a ``spool`` of its own puts them.

    Returns:
        How many answers the ledger has now.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from loanasync.ledger import MemoryLedger, import_orphans
        >>> with TemporaryDirectory() as folder:
        ...     run(import_orphans(MemoryLedger(), folder))
        0
    """
    files = await asyncio.to_thread(_files, folder)
    return sum([await _brought(ledger, file) for file in files])


def _files(given: str | Path | None) -> list[Path]:
    folders = default_spools() if given is None else (Path(given),)
    return [file for folder in folders for file in sorted(folder.glob("*.json"))]


async def _brought(ledger: DecisionLedger, file: Path) -> bool:
    try:
        orphan = Orphan.from_json(await asyncio.to_thread(file.read_bytes))
    except FileNotFoundError:  # another import has brought it meanwhile
        return False
    except ValueError:
        LOGGER.warning("%s is no answer of ours: left where it is", file.name)
        return False
    if orphan.subject != Subject() and await ledger.get(orphan.key) is None:
        # A settlement has no subject, so a claim makes the entry. If another claim was first, that one stays.
        await ledger.claim(
            orphan.key,
            token=orphan.token,
            payload=orphan.payload,
            lease=_LEASE,
            over=orphan.token,
            subject=orphan.subject,
        )
    entry = await ledger.settle(
        orphan.key, token=orphan.token, payload=orphan.payload, settlement=orphan.settlement
    )
    if entry.state is not orphan.settlement.state:
        LOGGER.warning("%s contradicts the ledger: left where it is", file.name)
        return False
    if has_more(orphan.settlement, entry):
        LOGGER.warning(
            "%s not deleted: a person decided first, and the ledger does not have this response; "
            "resolve the entry as unknown, then import again",
            file.name,
        )
        return False
    await asyncio.to_thread(file.unlink, missing_ok=True)
    return True


def has_more(settlement: Settlement, entry: Entry) -> bool:
    """Return True if only the file has the response, since a person decided the same without it."""
    return entry.source != SERVICE and entry.body is None and settlement.body is not None
