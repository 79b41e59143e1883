"""The header of a ledger: its identity, and the checks that a client runs before its first operation."""

import hmac
import json
from secrets import token_bytes, token_hex
from typing import Any, Literal, TypeAlias

from attrs import asdict, evolve, field, frozen

from loanasync._models.masking import mask
from loanasync.errors import LedgerMismatchError
from loanasync.ledger.model import FORMAT
from loanasync.ledger.policy import Cipher, LedgerPolicy

_CHECK = b"loanasync ledger "  # followed by the id of the ledger
_SECRET_BYTES = 32
_NOT_STORED = ("name", "transaction")

Mark: TypeAlias = Literal["", "lost writes", "copy", "moved"]
_MARKS: dict[Mark, str] = {
    "lost writes": "has lost writes, so it may lack customers that were requested: import the orphan files,",
    "copy": "is a copy, so it may lack customers that were requested: import the orphan files,",
    "moved": "was moved: name the ledger to which it was copied, or if that is not used,",
}

# It does not suggest a new ledger for the same customers: all of them would be requested again.
OTHER_FORMAT = (
    "has another format, which this version of loanasync cannot read: keep it, and finish its approvals with "
    "the version that wrote it. Name a new ledger for other customers only"
)


def mismatch(ledger: str, reason: str) -> LedgerMismatchError:
    """Return the error for a ledger that does not fit. A client adds its operation and the entry."""
    return LedgerMismatchError("ledger", "", ledger, reason)


@frozen(kw_only=True)
class Header:
    """The identity of a ledger, stored in the ledger itself.

    Args:
        name: Name of the ledger in messages, such as its path; not stored.
        id: Random id.
        service: Normalized base URL of the service whose decisions the ledger has.
        keys: Check values of the keys under which entries exist, the present one first.
        secrets: The keys themselves in hexadecimal, the present one first, if the ledger made its own.
        cipher: A known text, encrypted by the clients' cipher and in hexadecimal; empty without a cipher.
        generation: Grows with each change of the header.
        epoch: Grows when the store lost writes, and when a person confirms it. Numbers of writes are compared
            within an epoch.
        mark: The reason for which no client sends until a person confirms; empty without one.
        transaction: Number of the write that stored the header, if the store knows it; not stored.
    """

    name: str = field(eq=False)
    id: str
    service: str
    keys: tuple[str, ...]
    secrets: tuple[str, ...] = field(default=(), repr=mask)
    cipher: str = ""
    generation: int = 1
    epoch: int = 1
    mark: Mark = ""
    transaction: int = field(default=0, eq=False)

    def as_json(self) -> str:
        """Return the stored form of the header."""
        members = asdict(self, filter=lambda each, _: each.name not in _NOT_STORED)
        return json.dumps({"format": FORMAT, **members})

    @classmethod
    def from_json(cls, text: str | bytes, name: str, transaction: int = 0) -> "Header":
        """Return the header for its stored form.

        Args:
            text: The stored form.
            name: Name of the ledger in messages.
            transaction: Number of the write that stored it, if the store knows it.

        Raises:
            LedgerMismatchError: The ledger has another format.
        """
        members: dict[str, Any] = json.loads(text)
        if members.pop("format") != FORMAT:
            raise mismatch(name, OTHER_FORMAT)
        lists = {"keys": tuple(members["keys"]), "secrets": tuple(members["secrets"])}
        return cls(name=name, transaction=transaction, **{**members, **lists})

    def is_restored(self, generation: int, transaction: int) -> bool:
        """Return True if the store has an earlier generation, or this one written by another transaction.

        Each change of a header raises its generation.
        """
        return self.transaction not in (0, transaction) and generation <= self.generation


def new_header(
    name: str, service: str, policy: LedgerPolicy, *, makes_secret: bool, ledger: str = ""
) -> Header:
    """Return the header of a new ledger.

    Args:
        name: Name of the ledger in messages.
        service: Normalized base URL.
        policy: The policy of the ledger's clients.
        makes_secret: Let the ledger make its own secret if the policy has no key.
        ledger: Id of the ledger; empty for a new one.

    Raises:
        LedgerMismatchError: The policy needs a key.
    """
    if policy.key is None and not makes_secret:
        raise mismatch(name, "needs a key: set LOANASYNC_LEDGER_KEY or LedgerPolicy(key=...)")
    number = ledger or token_hex(8)
    key = token_bytes(_SECRET_BYTES) if policy.key is None else policy.key
    secrets = (key.hex(),) if policy.key is None else ()
    cipher = "" if policy.encrypt is None else cipher_check(policy.encrypt, number)
    return Header(
        name=name,
        id=number,
        service=service,
        keys=(_check_value(key, number),),
        secrets=secrets,
        cipher=cipher,
    )


def keys_of(header: Header, policy: LedgerPolicy) -> tuple[bytes, ...]:
    """Return the keys under which the ledger has entries, the present one first.

    Raises:
        LedgerMismatchError: The policy lacks one of the keys.
    """
    if header.secrets:
        if policy.key is not None:
            raise mismatch(
                header.name,
                "has its own secret, so it needs no key: remove LOANASYNC_LEDGER_KEY or LedgerPolicy.key",
            )
        return tuple(bytes.fromhex(each) for each in header.secrets)
    by_check = {_check_value(key, header.id): key for key in (policy.key, *policy.old_keys) if key}
    if by_check.keys() >= set(header.keys):
        return tuple(by_check[each] for each in header.keys)
    known = set(by_check)
    del by_check  # secret: must not be in the traceback
    if not known:
        reason = "was created with a key: set LOANASYNC_LEDGER_KEY or LedgerPolicy(key=...) to that key"
    elif header.keys[0] not in known:
        reason = "has another key: set LOANASYNC_LEDGER_KEY or LedgerPolicy(key=...) to the key of the ledger"
    else:
        reason = (
            "has entries under an earlier key: add that key to LOANASYNC_LEDGER_OLD_KEYS or "
            "LedgerPolicy(old_keys=...)"
        )
    raise mismatch(header.name, reason)


def check_cipher(header: Header, policy: LedgerPolicy) -> None:
    """Check that a client reads and writes the responses in the ledger with the ledger's cipher.

    Raises:
        LedgerMismatchError: The policy has another cipher, none, or one that the ledger does not have.
    """
    if not header.cipher:
        if policy.encrypt is not None:
            raise mismatch(
                header.name,
                "was created without a cipher: remove LOANASYNC_LEDGER_CIPHER or LedgerPolicy.encrypt",
            )
        return
    if policy.encrypt is None:
        raise mismatch(header.name, "is encrypted: set LOANASYNC_LEDGER_CIPHER or LedgerPolicy(encrypt=...)")
    try:
        text = policy.encrypt.decrypt(bytes.fromhex(header.cipher))
    except Exception:  # noqa: BLE001  (user code; the exception's text may contain the secret)
        text = b""
    if text != _text(header.id):
        raise mismatch(
            header.name,
            "has another cipher: set LOANASYNC_LEDGER_CIPHER or LedgerPolicy.encrypt to that of the ledger",
        )


def check_service(header: Header, service: str) -> None:
    """Check that the ledger belongs to the service of a client.

    Raises:
        LedgerMismatchError: It belongs to another service.
    """
    if header.service != service:
        raise mismatch(
            header.name,
            f"belongs to {header.service}, and the client uses {service}: name the ledger of this service. "
            "If the service has moved, run loanasync ledger confirm --service URL",
        )


def marked(header: Header) -> LedgerMismatchError:
    """Return the error for a ledger with a mark."""
    steps = "compare the ledger with the service, then run loanasync ledger confirm"
    return mismatch(header.name, f"{_MARKS[header.mark]} {steps}")


def rotated(header: Header, policy: LedgerPolicy) -> Header:
    """Return the header with a new present key: `LedgerPolicy.key`, or a new secret of the ledger.

    The check value of the cipher is written again, for a cipher that decrypts with several keys. A policy
    with a cipher may therefore have the present key.

    Raises:
        LedgerMismatchError: The policy lacks a key, has another cipher, or has the present key and no cipher.
    """
    keys_of(header, policy)
    if policy.encrypt is not None:
        check_cipher(header, policy)
        header = evolve(header, cipher=cipher_check(policy.encrypt, header.id))
    if header.secrets:
        key = token_bytes(_SECRET_BYTES)
        header = evolve(header, secrets=(key.hex(), *header.secrets))
    elif policy.key is not None and _check_value(policy.key, header.id) != header.keys[0]:
        key = policy.key
    elif policy.encrypt is not None:
        return header
    else:
        raise mismatch(
            header.name,
            "has this key already: set LOANASYNC_LEDGER_KEY to the new key and LOANASYNC_LEDGER_OLD_KEYS to "
            "the present one",
        )
    check = _check_value(key, header.id)
    return evolve(header, keys=(check, *(each for each in header.keys if each != check)))


def _check_value(key: bytes, ledger: str) -> str:
    return hmac.digest(key, _text(ledger), "sha256").hex()[:32]


def cipher_check(cipher: Cipher, ledger: str) -> str:
    """Return the check value of a cipher: a known text that it has encrypted, in hexadecimal."""
    return cipher.encrypt(_text(ledger)).hex()


def _text(ledger: str) -> bytes:
    return _CHECK + ledger.encode()
