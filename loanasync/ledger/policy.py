"""Ledger policy: the settings with which a client uses its ledger."""

import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Literal, Protocol

from attrs import field, frozen
from attrs.converters import optional

from loanasync._display.masking import mask
from loanasync._log import LOGGER
from loanasync.errors import ConfigurationError

_LEAST_KEY = 16  # bytes
_TEST_BODY = b"a body to try"
_TEMPORARY_NAME = "loanasync-orphans"


class Cipher(Protocol):
    """What encrypts the bodies of decisions; cryptography's ``Fernet`` and ``MultiFernet`` are such.

    Example:
        >>> from cryptography.fernet import Fernet
        >>> from loanasync.ledger import LedgerPolicy
        >>> policy = LedgerPolicy(encrypt=Fernet(Fernet.generate_key()))
        >>> policy.encrypt.decrypt(policy.encrypt.encrypt(b"a body"))
        b'a body'
    """

    def encrypt(self, data: bytes, /) -> bytes:
        """What is stored for a body."""

    def decrypt(self, token: bytes, /) -> bytes:
        """The body again; anything raised means that it cannot be read."""


def default_orphan_folders() -> tuple[Path, ...]:
    """Folders for answers that the ledger did not take: the user's own, and a temporary one if that fails.

    A process without a home directory, or without a writable folder for temporary files, has fewer of them.
    """
    folders: list[Path] = []
    with suppress(RuntimeError):  # no home directory
        state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
        folders.append(Path(state).expanduser() / "loanasync" / "orphans")
    with suppress(OSError):  # no folder for temporary files can be written, or the disk is full
        temporary = Path(tempfile.gettempdir()) / _TEMPORARY_NAME
        if _belongs_to_other_user(temporary):
            LOGGER.warning("%s belongs to another user: passed over", temporary)
        else:
            folders.append(temporary)
    return tuple(folders)


def _belongs_to_other_user(folder: Path) -> bool:
    """Anybody may make a folder among temporary files, and take answers out of it, or put false ones in."""
    try:
        owner = folder.lstat().st_uid
    except FileNotFoundError:
        return False
    return owner != getattr(os, "geteuid", lambda: owner)()  # Windows has none, and a folder for each user


def orphan_folders_of_others() -> tuple[Path, ...]:
    """Return the default folders that belong to another user: only that user can import their files."""
    try:
        temporary = Path(tempfile.gettempdir()) / _TEMPORARY_NAME
    except OSError:  # there is no folder for temporary files
        return ()
    return (temporary,) if _belongs_to_other_user(temporary) else ()


def _tuple(values: Iterable[bytes | str]) -> tuple[bytes | str, ...]:
    # One key without a list around it would be a list of its characters: such a value is refused below.
    return (b"",) if isinstance(values, bytes | str) else tuple(values)


def _is_key(value: object) -> bool:
    return isinstance(value, bytes) and len(value) >= _LEAST_KEY


@frozen(kw_only=True)
class LedgerPolicy:
    """What a client's ledger is to do in doubt, and how it keeps what it keeps.

    Args:
        unknown: What becomes of an approval whose outcome is not known: ``hold`` never asks it again, and a
            person settles it; ``probe`` asks once more, with the same data: a service that had decided says
            so, and then the entry is LOST, which is still for a person to settle.
        key: Secret from which entries' keys are made, at least 16 bytes; None: made from the auth token. With
            another secret, what was decided before is not found: give one of its own to a ledger that is
            to outlive the token. A client whose ledger outlives it and has no key logs a warning.
        old_keys: Secrets that `key` replaces, to be read only: a former `key` as bytes; or, for a ledger that
            had no key, the auth token of that time as a str. An approval with an entry under one of them
            keeps this entry; new entries are written under `key`. Each costs two more looks into the
            ledger. Clients that know only an old secret must have ended, or do not find the new entries.
        environment: Tells ledgers' entries apart where the address does not, such as ``staging``.
        scope: ``order_token`` makes the order's token part of the entry's key, for services that evaluate a
            customer once for each order; each approval then needs one. The specification does not say
            whether a service does (spec §3); by default a customer has one entry for each `scope` of
            `LoanClient.approve`.
        keep: What is kept of an answer: the ``decision`` itself (amounts, instalments, the redirect), without
            what it repeats of the person and without members that this version does not know; or its
            whole ``body``.
        encrypt: What encrypts the bodies of decisions before the ledger gets them.
        orphan_folder: Folder for decisions that could not be written to the ledger; None:
            ``$XDG_STATE_HOME/loanasync/orphans``, by default under
            ``~/.local/state``, or a folder for temporary files if that cannot be written.
        patience: Seconds that one move of the ledger may take. All moves before the request is sent end with
            ``Timeout.total``; afterwards, what is still to be written may take `patience` once more. So a
            call with a ledger ends after ``Timeout.total + patience`` seconds at the latest.

    Raises:
        ConfigurationError: A value that cannot be.

    Example:
        >>> from loanasync.ledger import LedgerPolicy
        >>> LedgerPolicy(key=b"0123456789abcdef")
        LedgerPolicy(unknown='hold', key=***, old_keys=***, environment='', scope='', keep='decision', ...)
    """

    unknown: Literal["hold", "probe"] = "hold"
    key: bytes | None = field(default=None, repr=mask)
    old_keys: tuple[bytes | str, ...] = field(default=(), repr=mask, converter=_tuple)
    environment: str = ""
    scope: Literal["", "order_token"] = ""
    keep: Literal["decision", "body"] = "decision"
    encrypt: Cipher | None = field(default=None, repr=mask)
    orphan_folder: Path | None = field(default=None, converter=optional(Path))
    patience: float = 10.0

    def __attrs_post_init__(self) -> None:
        if self.unknown not in ("hold", "probe"):
            raise ConfigurationError("ledger_policy.unknown", "must be 'hold' or 'probe'")
        if self.scope not in ("", "order_token"):
            raise ConfigurationError("ledger_policy.scope", "must be '' or 'order_token'")
        if self.keep not in ("decision", "body"):
            raise ConfigurationError("ledger_policy.keep", "must be 'decision' or 'body'")
        if self.key is not None and not _is_key(self.key):
            raise ConfigurationError("ledger_policy.key", f"must be at least {_LEAST_KEY} bytes")
        if not all(each != "" if isinstance(each, str) else _is_key(each) for each in self.old_keys):
            raise ConfigurationError(
                "ledger_policy.old_keys",
                f"must be keys of at least {_LEAST_KEY} bytes, or auth tokens as str",
            )
        if not self.patience > 0:
            raise ConfigurationError("ledger_policy.patience", "must be a number of seconds above 0")
        if self.encrypt is not None and not _round_trips(self.encrypt):
            raise ConfigurationError(
                "ledger_policy.encrypt", "must give back in decrypt what encrypt was given"
            )

    @property
    def orphan_folders(self) -> tuple[Path, ...]:
        """The folders to try for what the ledger did not take, in order.

        Example:
            >>> from loanasync.ledger import LedgerPolicy
            >>> [folder.name for folder in LedgerPolicy(orphan_folder="orphans").orphan_folders]
            ['orphans']
        """
        return default_orphan_folders() if self.orphan_folder is None else (self.orphan_folder,)


def _round_trips(cipher: Cipher) -> bool:
    """Tried before anything is sent: an answer that cannot be encrypted could not be kept."""
    try:
        return cipher.decrypt(cipher.encrypt(_TEST_BODY)) == _TEST_BODY
    except Exception:  # noqa: BLE001  (the shop's own; its text may show the secret)
        return False
