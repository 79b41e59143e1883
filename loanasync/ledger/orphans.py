"""Orphans: decisions that could not be written to the ledger, one file each, and their import."""

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

from loanasync._log import LOGGER
from loanasync.ledger.model import FORMAT, SERVICE, Entry, Settlement, State, Subject
from loanasync.ledger.policy import default_orphan_folders
from loanasync.ledger.protocol import DecisionLedger

_KEY_LENGTH = 12  # characters of the key with which the name of a file begins
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
        members = asdict(self.settlement)
        body = None if self.settlement.body is None else b64encode(self.settlement.body).decode()
        target = {"format": FORMAT, "key": self.key, "token": self.token, "payload": self.payload}
        return json.dumps({**target, "subject": asdict(self.subject), **members, "body": body}).encode()

    @classmethod
    def from_json(cls, content: bytes) -> "Orphan":
        """An orphan from its file.

        Raises:
            ValueError: It is none.
        """
        try:
            members = json.loads(content)
            number = members.pop("format")
            if not 1 <= number <= FORMAT:
                raise ValueError("another format")
            subject = Subject(**members.pop("subject")) if number == FORMAT else Subject()
            ids = {name: members.pop(name) for name in ("key", "token", "payload")}
            body = members.pop("body")
            members["body"] = None if body is None else b64decode(body, validate=True)
            settlement = Settlement(**{**members, "state": State(members["state"])})
            return cls(**ids, subject=subject, settlement=settlement)
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(type(error).__name__) from None


def write_orphan(folders: Iterable[Path], orphan: Orphan) -> Path | None:
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
        target = folder / f"{orphan.key[:_KEY_LENGTH]}-{token_hex(8)}.json"
        try:
            Path(name).replace(target)
        except FileNotFoundError:  # an import has read the whole file, and deleted it
            return _write(folder, orphan)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    _sync_folder(folder)
    return target


def _sync_folder(folder: Path) -> None:
    with suppress(OSError):  # a system whose folders cannot be opened keeps names by itself
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@frozen
class NotImported:
    """A file or folder that was not imported, and the reason."""

    path: Path
    reason: str


@frozen
class ImportResult:
    """The result of an import: the number of responses that the ledger has now, and what is left."""

    number: int
    left: tuple[NotImported, ...]


async def import_orphans(ledger: DecisionLedger, folder: str | Path | None = None) -> int:
    """Bring answers that lie in files to the ledger, and delete the files of those that are there.

    A decision lands however late it comes; one that is in the ledger already stays as it is. A file that
    cannot be read, is no answer, or contradicts the ledger is left and named in the log, and the next one
    follows. To be done again does no harm. Run it on every machine, and for each folder that a client was
    given as ``LedgerPolicy(orphan_folder=...)``, before a person resolves entries.

    Args:
        ledger: The ledger, working again.
        folder: Where the files are, if not where a client without a ``orphan_folder`` of its own puts them.

    Returns:
        How many answers the ledger has now.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from loanasync.ledger import MemoryLedger, import_orphans
        >>> with TemporaryDirectory() as folder:
        ...     run(import_orphans(MemoryLedger(), folder))
        0
    """
    folders = await asyncio.to_thread(default_orphan_folders) if folder is None else (Path(folder),)
    done = await import_from_folders(ledger, folders)
    for each in done.left:
        LOGGER.warning("%s was not imported: %s", each.path.name, each.reason)
    return done.number


async def import_from_folders(ledger: DecisionLedger, folders: Iterable[Path]) -> ImportResult:
    """Import the files of several folders as `import_orphans` does, without log."""
    number, left = 0, []
    for folder in folders:
        try:
            files = await asyncio.to_thread(orphan_files, folder)
        except OSError as error:
            left.append(NotImported(folder, _reason(error)))
            continue
        for file in files:
            try:
                reason = await _import_file(ledger, file)
            except FileNotFoundError:  # another import has brought it meanwhile
                continue
            except Exception as error:  # noqa: BLE001  (of the file's content, unless the ledger fails, too)
                await ledger.get("")
                reason = _reason(error)
            if reason:
                left.append(NotImported(file, reason))
            else:
                number += 1
    return ImportResult(number, tuple(left))


def orphan_files(folder: Path, key: str = "") -> list[Path]:
    """Return the files of a folder that may hold a response; none where the folder does not exist.

    Args:
        folder: The folder.
        key: Key of an entry, for the files of this entry alone.

    Raises:
        OSError: The folder cannot be read.
    """
    # A file whose writer was killed before it had its name can be whole.
    kinds = (".json",) if key else (".json", ".part")
    try:
        files = sorted(folder.iterdir())
    except FileNotFoundError:
        return []
    return [file for file in files if file.suffix in kinds and file.name.startswith(key[:_KEY_LENGTH])]


def _reason(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or type(error).__name__


async def _import_file(ledger: DecisionLedger, file: Path) -> str:
    """Bring a response to the ledger. Return the reason why it is left, or an empty text."""
    try:
        orphan = Orphan.from_json(await asyncio.to_thread(file.read_bytes))
    except ValueError:
        return "it is not whole, or holds something else"
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
        return f"it contradicts the ledger, where the entry is {entry.state.value}"
    if has_unstored_response(orphan.settlement, entry):
        return (
            "a person decided first, and the ledger does not have this response: "
            "resolve the entry as unknown, then import again"
        )
    await asyncio.to_thread(file.unlink, missing_ok=True)
    return ""


def has_unstored_response(settlement: Settlement, entry: Entry) -> bool:
    """Return True if only the file has the response, since a person decided the same without it."""
    return entry.source != SERVICE and entry.body is None and settlement.body is not None
