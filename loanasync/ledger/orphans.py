"""Orphans: responses that could not be written to the ledger. Each is stored in a file and imported later."""

import asyncio
import errno
import json
import os
import stat
import tempfile
from base64 import b64decode, b64encode
from collections.abc import Iterable
from contextlib import suppress
from logging import WARNING
from pathlib import Path
from secrets import token_hex

from attrs import asdict, field, frozen

from loanasync._telemetry.log import log
from loanasync.ledger.ledger import Ledger
from loanasync.ledger.model import FORMAT, SERVICE, Entry, Settlement, State, Subject
from loanasync.ledger.policy import default_orphan_folders

_KEY_LENGTH = 12  # characters of the entry's key at the beginning of a file name
# A ".part" file may be complete: its writer may have been killed before it renamed the file.
_SUFFIXES = (".json", ".part")


@frozen(kw_only=True)
class Orphan:
    """A response that could not be written to the ledger, and the claim that it belongs to."""

    key: str
    token: str = field(repr=False)
    payload: str = field(repr=False)
    settlement: Settlement
    subject: Subject = field(factory=Subject)
    ledger: str  # its id

    def as_json(self) -> bytes:
        """Return the content of the orphan's file."""
        members = {"format": FORMAT, **asdict(self)}
        return json.dumps(members, default=lambda body: b64encode(body).decode()).encode()

    @classmethod
    def from_json(cls, content: bytes) -> "Orphan":
        """Return the orphan for the content of a file.

        Raises:
            ValueError: The content is not a complete orphan file of this format.
        """
        try:
            members = json.loads(content)
            if members.pop("format") != FORMAT:
                raise ValueError("another format")
            settlement, subject = members.pop("settlement"), members.pop("subject")
            if settlement["body"] is not None:
                settlement["body"] = b64decode(settlement["body"], validate=True)
            settlement["state"] = State(settlement["state"])
            return cls(**members, subject=Subject(**subject), settlement=Settlement(**settlement))
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(type(error).__name__) from None


def write_orphan(folders: Iterable[Path], orphan: Orphan) -> Path | None:
    """Write an orphan to a file in the first folder that can be written.

    Returns:
        The path of the file, or None if no folder can be written.
    """
    for folder in folders:
        with suppress(Exception):
            return _write(folder, orphan)
    return None


def _write(folder: Path, orphan: Orphan) -> Path:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    prefix = f"{orphan.key[:_KEY_LENGTH]}-"
    handle, name = tempfile.mkstemp(".part", prefix, folder)  # readable only by this user
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(orphan.as_json())
            file.flush()
            os.fsync(file.fileno())
        target = folder / f"{prefix}{token_hex(8)}.json"
        try:
            Path(name).replace(target)
        except FileNotFoundError:  # an import deleted the file: write it again
            return _write(folder, orphan)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    _sync_folder(folder)
    return target


def _sync_folder(folder: Path) -> None:
    with suppress(OSError):  # Windows: folders cannot be opened, and need no sync
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


async def import_orphans(ledger: Ledger, folder: str | Path | None = None) -> int:
    """Write the responses in orphan files to the ledger, and delete the imported files.

    Run it when the ledger works again, before a person resolves entries. Run it on every machine, and for
    each folder that a client uses as ``LedgerPolicy(orphan_folder=...)``. Running it again is harmless.

    A decision is written even if it is late. A decision that the ledger already has stays unchanged. If a
    file cannot be read, is not an orphan file, or contradicts the ledger, it is kept and a warning is logged.
    Files of other ledgers are kept, too. Each client does this when it first uses its ledger.

    Args:
        ledger: The ledger.
        folder: Folder of the files; None for the default folders of `LedgerPolicy`.

    Returns:
        Number of imported files.

    Raises:
        Exception: The ledger cannot be used; the files that were not imported yet remain.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from loanasync.ledger import MemoryLedger, import_orphans
        >>> with TemporaryDirectory() as folder:
        ...     run(import_orphans(MemoryLedger(), folder))
        0
    """
    folders = await asyncio.to_thread(default_orphan_folders) if folder is None else (Path(folder),)
    number, left = await import_from_folders(ledger, folders)
    for file, reason in left:
        log(WARNING, "orphan file %s was not imported: %s", file.name, reason)
    return number


async def import_from_folders(
    ledger: Ledger, folders: Iterable[Path], key: str = ""
) -> tuple[int, list[tuple[Path, str]]]:
    """Import the files of several folders, or only those of one entry. Skip the files of other ledgers.

    Returns:
        The number of imported files, and the files and folders that remain, each with the reason.
    """
    number, left = 0, []
    for folder in folders:
        try:
            files = await asyncio.to_thread(orphan_files, folder, key)
        except OSError as error:
            left.append((folder, _reason(error)))
            continue
        for file in files:
            try:
                reason = await _import_file(ledger, file)
            except FileNotFoundError:  # another import has deleted it
                continue
            except Exception as error:  # noqa: BLE001  (usually caused by the content of the file)
                await ledger.get("")  # raises if the ledger itself cannot be used
                reason = _reason(error)
            if reason:
                left.append((file, reason))
            number += reason == ""
    return number, left


def orphan_files(folder: Path, key: str = "") -> list[Path]:
    """Return the files of a folder that may be orphans; an empty list if the folder does not exist.

    Args:
        folder: The folder.
        key: Key of an entry, to return only the files of this entry.

    Raises:
        OSError: The folder cannot be read.
    """
    try:
        files = sorted(folder.iterdir())
    except FileNotFoundError:
        return []
    return [file for file in files if file.suffix in _SUFFIXES and file.name.startswith(key[:_KEY_LENGTH])]


def _reason(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or type(error).__name__


def is_of_other(content: bytes, ledger: str) -> bool:
    """Return True if the content of a file names another ledger than the one with this id."""
    try:
        return bool(json.loads(content)["ledger"] != ledger)
    except (KeyError, RecursionError, TypeError, ValueError):
        return False


def orphans_of(ledger: str, folders: Iterable[Path]) -> list[Path]:
    """Return the orphan files of the ledger with this id, and those that cannot be read."""
    found = []
    for folder in folders:
        with suppress(OSError):
            found += [each for each in orphan_files(folder) if not _names_other(each, ledger)]
    return found


def _names_other(file: Path, ledger: str) -> bool:
    try:
        return is_of_other(_content(file), ledger)
    except OSError:
        return False


def _content(file: Path) -> bytes:
    mode = file.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # reading a pipe or a device may never end
        raise OSError(errno.EINVAL, "it is a pipe or a device")
    return file.read_bytes()


async def _import_file(ledger: Ledger, file: Path) -> str | None:
    """Import one file. Return the reason why it was not, or an empty text; None for another ledger."""
    content = await asyncio.to_thread(_content, file)
    if is_of_other(content, (await ledger.header()).id):
        return None
    try:
        orphan = Orphan.from_json(content)
    except ValueError:
        return "it is incomplete, or not an orphan file of this version"
    entry = await ledger.settle(
        orphan.key,
        token=orphan.token,
        payload=orphan.payload,
        settlement=orphan.settlement,
        subject=orphan.subject,
    )
    if entry.state not in (orphan.settlement.state, State.ERASED):
        return f"it contradicts the ledger, where the entry is {entry.state.value}"
    if entry.state is not State.ERASED and has_unstored_response(orphan.settlement, entry):
        if entry.state is State.UNKNOWN:
            return "the ledger has another response: read both, move the file away, and resolve the entry"
        return (
            "a person decided first, and the ledger does not have this response: "
            "resolve the entry as unknown, then import again"
        )
    await asyncio.to_thread(file.unlink, missing_ok=True)
    return ""


def has_unstored_response(settlement: Settlement, entry: Entry) -> bool:
    """Return True if the entry lacks the settlement's response.

    A person decided first, without it; or there is another response that could not be classified.
    """
    if settlement.state is State.UNKNOWN:
        return settlement.body not in (None, entry.body)
    return entry.source != SERVICE and entry.body is None and settlement.body is not None
