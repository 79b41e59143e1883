"""The settings with which a client uses its ledger, and the default folders for orphan files."""

import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from logging import WARNING
from pathlib import Path
from typing import Protocol

from attrs import field, frozen
from attrs.converters import optional

from loanasync._models.masking import mask
from loanasync._settings import require_seconds, require_wait
from loanasync._telemetry.log import log
from loanasync.errors import ConfigurationError

_LEAST_KEY = 16  # bytes
_TEST_BODY = b"a test body"
_TEMPORARY_NAME = "loanasync-orphans"


class Cipher(Protocol):
    """Protocol of ciphers for response bodies, such as cryptography's ``Fernet`` and ``MultiFernet``.

    Example:
        >>> from cryptography.fernet import Fernet
        >>> from loanasync.ledger import LedgerPolicy
        >>> policy = LedgerPolicy(encrypt=Fernet(Fernet.generate_key()))
        >>> policy.encrypt.decrypt(policy.encrypt.encrypt(b"a body"))
        b'a body'
    """

    def encrypt(self, data: bytes, /) -> bytes:
        """Return the encrypted form of a body, which the ledger stores."""

    def decrypt(self, token: bytes, /) -> bytes:
        """Return the body for its encrypted form. Any exception means that it cannot be decrypted."""


def state_folder() -> Path:
    """Return the folder for the files that this package keeps for the user.

    Raises:
        RuntimeError: The user has no home directory.
    """
    return Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "loanasync"


def default_orphan_folders() -> tuple[Path, ...]:
    """Return the default folders for orphan files: one of the user, then a temporary one.

    A process without a home directory, or without a writable folder for temporary files, has fewer of them.
    """
    folders: list[Path] = []
    with suppress(RuntimeError):  # no home directory
        folders.append(state_folder() / "orphans")
    with suppress(OSError):  # no folder for temporary files is writable, or the disk is full
        temporary = Path(tempfile.gettempdir()) / _TEMPORARY_NAME
        if _belongs_to_other_user(temporary):
            log(WARNING, "%s belongs to another user: not used for orphan files", temporary)
        else:
            folders.append(temporary)
    return tuple(folders)


def _belongs_to_other_user(folder: Path) -> bool:
    """Return True if another user created this temporary folder.

    That user could read decisions from the folder, or put forged ones into it.
    """
    try:
        owner = folder.lstat().st_uid
    except FileNotFoundError:
        return False
    return owner != getattr(os, "geteuid", lambda: owner)()  # Windows: no geteuid, one folder for each user


def orphan_folders_of_others() -> tuple[Path, ...]:
    """Return the default folders that belong to another user. Only that user can import their files."""
    try:
        temporary = Path(tempfile.gettempdir()) / _TEMPORARY_NAME
    except OSError:  # there is no folder for temporary files
        return ()
    return (temporary,) if _belongs_to_other_user(temporary) else ()


def _tuple(values: Iterable[bytes]) -> tuple[bytes, ...]:
    # tuple(b"key") would be a tuple of ints: return an invalid key instead, which the validation rejects.
    return (b"",) if isinstance(values, bytes | str) else tuple(values)


def _is_key(value: object) -> bool:
    return isinstance(value, bytes) and len(value) >= _LEAST_KEY


def _key_rule(value: object) -> str:
    if isinstance(value, bytes):
        return f"must be at least {_LEAST_KEY} bytes"
    return f"must be bytes, not {type(value).__name__}" + (
        "; call .encode()" if isinstance(value, str) else ""
    )


@frozen(kw_only=True)
class LedgerPolicy:
    """The settings with which a client uses its ledger.

    Args:
        key: Secret for the HMAC keys of the entries, at least 16 bytes. A ledger that was created with a key
            needs it for ever; ledgers on servers always have one. None: an SQLite or memory ledger creates a
            secret.
        old_keys: The other keys of the ledger, before and after ``loanasync ledger rotate-key``. Give all
            clients the new `key` and the present one in `old_keys` first, then rotate. A client that lacks a
            key under which the ledger has entries is refused. Each earlier key adds one read per approval.
        encrypt: Cipher for the stored responses. The ledger receives only encrypted ones. A response is
            stored without echoed personal data and unknown members: with amounts, instalments, redirect.
        orphan_folder: Folder for decisions that could not be written to the ledger. None:
            ``$XDG_STATE_HOME/loanasync/orphans`` (``~/.local/state/loanasync/orphans`` without that
            variable), or a folder for temporary files if that cannot be written.
        patience: Seconds that one ledger operation may take. Operations before the request also end with
            ``Timeout.total``; writing the result may take `patience` once more, and is repeated for that time
            while a server restarts or is replaced.
        wait: Seconds that `LoanClient.approve` waits for another process that is requesting the same
            approval, never longer than ``Timeout.total``. Then the call raises `InFlightError`. It is short,
            so that a shopper gets a page soon after the other process was killed. `approve_many`, the
            command line and `loanasync.worker` wait until ``Timeout.total`` instead.

    Raises:
        ConfigurationError: A value is invalid.

    Example:
        >>> from loanasync.ledger import LedgerPolicy
        >>> LedgerPolicy(key=b"0123456789abcdef")
        LedgerPolicy(key=***, old_keys=***, encrypt=None, orphan_folder=None, ...)
    """

    key: bytes | None = field(default=None, repr=mask)
    old_keys: tuple[bytes, ...] = field(default=(), repr=mask, converter=_tuple)
    encrypt: Cipher | None = field(default=None, repr=mask)
    orphan_folder: Path | None = field(default=None, converter=optional(Path))
    patience: float = 10.0
    wait: float = 2.0

    def __attrs_post_init__(self) -> None:
        if self.key is not None and not _is_key(self.key):
            raise ConfigurationError("ledger_policy.key", _key_rule(self.key))
        if not all(map(_is_key, self.old_keys)):
            raise ConfigurationError("ledger_policy.old_keys", f"must be keys of at least {_LEAST_KEY} bytes")
        require_seconds("ledger_policy", patience=self.patience)
        require_wait("ledger_policy.wait", self.wait)
        if self.encrypt is not None and not _round_trips(self.encrypt):
            raise ConfigurationError(
                "ledger_policy.encrypt", "must be a cipher whose decrypt() returns what encrypt() was given"
            )

    @property
    def orphan_folders(self) -> tuple[Path, ...]:
        """The folders in which to write orphan files, in the order in which they are tried.

        Example:
            >>> from loanasync.ledger import LedgerPolicy
            >>> [folder.name for folder in LedgerPolicy(orphan_folder="orphans").orphan_folders]
            ['orphans']
        """
        return default_orphan_folders() if self.orphan_folder is None else (self.orphan_folder,)


def _round_trips(cipher: Cipher) -> bool:
    """Return True if a cipher works. Test it early: a decision that cannot be encrypted cannot be stored."""
    try:
        return cipher.decrypt(cipher.encrypt(_TEST_BODY)) == _TEST_BODY
    except Exception:  # noqa: BLE001  (user code; the exception's text may contain the secret)
        return False
