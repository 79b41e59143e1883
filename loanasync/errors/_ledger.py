"""What keeps a client with a ledger from asking, or from remembering: a branch of the tree in `errors`."""

from typing import TYPE_CHECKING, Literal

from attrs import define

from loanasync.errors._failure import LoanError

if TYPE_CHECKING:
    from loanasync._decisions import Decision

__all__ = [
    "DecisionNotRecordedError",
    "InFlightError",
    "LedgerError",
    "LedgerUnavailableError",
    "OutcomeUnknownError",
    "PayloadMismatchError",
]

Unsettled = Literal["unknown", "lost", "held"]
_SHOWN = 12  # characters of an entry's key that tell it from all others


@define(slots=False, repr=False)
class LedgerError(LoanError):
    """The ledger keeps the call from being made, or its decision could not be written to it.

    Catch its subclasses for what to do about each.

    Args:
        operation: The call, ``approve``.
        key: The entry's key in the ledger: an HMAC, which names nobody to who has not the secret.

    Example:
        >>> from loanasync.ledger import SqliteLedger
        >>> shop = sandbox.client(ledger=SqliteLedger("/nowhere/decisions.db"))
        >>> try:
        ...     run(shop.approve(fiscal_code, request))
        ... except LedgerError as error:
        ...     print(type(error).__name__)
        LedgerUnavailableError
        >>> run(shop.aclose())
    """

    operation: str
    key: str

    @property
    def _entry(self) -> str:
        return f"{self.operation}, entry {self.key[:_SHOWN]}"

    def __str__(self) -> str:
        return f"{self._entry}: see the ledger"


@define(slots=False, repr=False)
class LedgerUnavailableError(LedgerError):
    """The ledger could not be asked, so nothing was sent: mend the ledger and call again.

    Args:
        cause_type: Name of the underlying error's class.

    Example:
        >>> from loanasync.ledger import SqliteLedger
        >>> shop = sandbox.client(ledger=SqliteLedger("/nowhere/decisions.db"))
        >>> try:
        ...     run(shop.approve(fiscal_code, request))
        ... except LedgerUnavailableError as error:
        ...     print(error.cause_type)
        FileNotFoundError
        >>> run(shop.aclose())
    """

    cause_type: str

    def __str__(self) -> str:
        return (
            f"{self._entry}: the ledger cannot be used ({self.cause_type}); nothing was sent: "
            "make the ledger work, then the call may be repeated"
        )


class InFlightError(LedgerError):
    """Another worker asks for this very approval, and its answer did not come while we waited.

    Nothing was sent. Call again later: then the decision is there, or it is known to be unknown.

    Example:
        >>> print(InFlightError("approve", "c0ffee"))
        approve, entry c0ffee: another worker asks for this approval; nothing was sent: repeat the call later
    """

    def __str__(self) -> str:
        return (
            f"{self._entry}: another worker asks for this approval; nothing was sent: repeat the call later"
        )


@define(slots=False, repr=False)
class OutcomeUnknownError(LedgerError):
    """This approval was asked before, and what the service decided is not known here; nothing was sent.

    Settle it with the service, and then the entry with ``loanasync.ledger.resolve``.

    Args:
        state: ``unknown`` when the service may have decided, ``lost`` when it says that it has and the
            decision did not reach the ledger, ``held`` when a person said that nobody must ask.
        note: What led to it, such as the name of an error's class.

    Example:
        >>> import attrs
        >>> from loanasync.ledger import MemoryLedger
        >>> shop = sandbox.client(ledger=MemoryLedger())
        >>> lost = attrs.evolve(request, email="anna+resetafter@example.com")
        >>> for _ in range(2):
        ...     try:
        ...         run(shop.approve(fiscal_code, lost))
        ...     except LoanError as error:
        ...         print(type(error).__name__)
        ConnectionLostError
        OutcomeUnknownError
        >>> run(shop.aclose())
    """

    state: Unsettled
    note: str

    def __str__(self) -> str:
        happened = {
            "unknown": "it was asked before, and whether the service decided is not known",
            "lost": "the service has decided, and its decision did not reach the ledger",
            "held": "a person holds it",
        }[self.state]
        note = f" ({self.note})" if self.note else ""
        return (
            f"{self._entry}: {happened}{note}; nothing was sent: ask the service what it decided, "
            "and settle the entry with that"
        )


@define(slots=False, repr=False)
class PayloadMismatchError(LedgerError):
    """This customer's approval is in the ledger already, asked with other data; nothing was sent.

    Repeat it with the data of the first time, if it is the same application; another one needs a ``scope``
    of its own.

    Args:
        state: The entry's state, such as ``approved``.

    Example:
        >>> import attrs
        >>> from loanasync.ledger import MemoryLedger
        >>> shop = sandbox.client(ledger=MemoryLedger())
        >>> decision = run(shop.approve(fiscal_code, request))
        >>> try:
        ...     run(shop.approve(fiscal_code, attrs.evolve(request, amount=70_000)))
        ... except PayloadMismatchError as error:
        ...     print(error.state)
        approved
        >>> run(shop.aclose())
    """

    state: str

    def __str__(self) -> str:
        return (
            f"{self._entry}: it was asked with other data before and is {self.state}; nothing was sent: "
            "repeat it with the data of then, or give another application its own scope"
        )


@define(slots=False, repr=False)
class DecisionNotRecordedError(LedgerError):
    """The service has decided, and the ledger could not be written: here is the decision. Keep it.

    Do not ask again. When there is a `file`, the answer lies in it, and
    ``loanasync.ledger.import_orphans`` writes it to the ledger once that works again.

    Args:
        outcome: ``approved`` or ``refused``.
        decision: What the service answered; None when its answer was cut off after the status.
        file: Where on this machine the answer was written to; None when that failed, too.
        cause_type: Name of the class of the ledger's error.

    Example:
        >>> error = DecisionNotRecordedError("approve", "c0ffee", "refused", None, None, "OSError")
        >>> error.outcome, error.decision
        ('refused', None)
    """

    outcome: Literal["approved", "refused"]
    decision: "Decision | None"
    file: str | None
    cause_type: str

    def __str__(self) -> str:
        kept = (
            "it lies in a file: let import_orphans bring it to the ledger"
            if self.file is not None
            else "and no file could be written: keep this error's decision, it is the only copy"
        )
        return (
            f"{self._entry}: the service decided ({self.outcome}), the ledger could not be written "
            f"({self.cause_type}), {kept}; do not ask again"
        )
