"""The errors of the ledger and of a client's memory: a branch of the tree in `errors`."""

from typing import TYPE_CHECKING, Literal

from attrs import define

from loanasync._results import RawResponse
from loanasync.errors.root import LoanError, Outcome

if TYPE_CHECKING:
    from loanasync._results import Decision


Unsettled = Literal["unknown", "lost", "held"]
_AGAIN = "repeat it with the first data to get the decision, or give another application its own scope"
_ADVICE = {
    "inflight": "wait for that request, then call again with its data",
    "unknown": "ask the service for the outcome of that request",
    "approved": _AGAIN,
    "refused": _AGAIN,
}
_OUTCOMES: dict[str, Outcome] = {"approved": "approved", "refused": "refused"}
_SHOWN = 12  # characters of an entry's key that tell it from all others


@define(slots=False, repr=False)
class LedgerError(LoanError):
    """The ledger or the client's memory prevents the call, or the ledger could not be written.

    Catch its subclasses for what to do about each.

    Args:
        operation: The call, ``approve``.
        key: Key of the entry in the ledger: an HMAC, which names nobody. Empty without a ledger.

    Attributes:
        trace_id: Id of the trace of the call in hexadecimal; None without a trace.

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

    def __attrs_post_init__(self) -> None:
        self.entry: str | None = self.key or None
        self.trace_id: str | None = None

    @property
    def _entry(self) -> str:
        return f"{self.operation}, entry {self.key[:_SHOWN]}" if self.key else self.operation

    def __str__(self) -> str:
        return f"{self._entry}: see the ledger"


@define(slots=False, repr=False)
class LedgerUnavailableError(LedgerError):
    """The ledger could not be used, so no request was sent: repair the ledger and call again.

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

    repeatable = True

    def __str__(self) -> str:
        return (
            f"{self._entry}: the ledger cannot be used ({self.cause_type}); request not sent: "
            "repair the ledger; then the call may be repeated"
        )


class InFlightError(LedgerError):
    """Another call or worker is waiting for the response to this approval, and it did not arrive in time.

    No request was sent. Call again later: then the decision is there, or its outcome is unknown.

    Example:
        >>> print(InFlightError("approve", "c0ffee"))
        approve, entry c0ffee: this approval is in progress elsewhere; request not sent: call again later
    """

    outcome: Outcome = "unknown"

    def __str__(self) -> str:
        return f"{self._entry}: this approval is in progress elsewhere; request not sent: call again later"


@define(slots=False, repr=False)
class OutcomeUnknownError(LedgerError):
    """This approval was requested before, and its outcome is not known; no request was sent.

    Ask the service for its decision. With a ledger, write it to the entry with ``loanasync.ledger.resolve``.
    ``approve(..., repeat_unknown=True)`` sends the request again all the same.

    Args:
        state: ``unknown`` if the service may have decided, ``lost`` if it reported that it has and the
            decision did not arrive, ``held`` if a person blocked the entry.
        note: The cause, such as the name of an error's class.
        response: The response that could not be classified, if the client's memory has it.

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
    response: RawResponse | None = None

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.outcome: Outcome = "unknown"

    def __str__(self) -> str:
        cause = {
            "unknown": "an earlier request has an unknown outcome",
            "lost": "the service has decided, and its decision did not arrive",
            "held": "a person blocked this entry",
        }[self.state]
        note = f" ({self.note})" if self.note else ""
        return f"{self._entry}: {cause}{note}; request not sent: ask the service for its decision"


@define(slots=False, repr=False)
class PayloadMismatchError(LedgerError):
    """This customer's approval was requested before with other data; no request was sent.

    Repeat it with the data of the first request if it is the same application. Another application needs a
    separate ``scope``. Without a ledger this is raised only while the first request is in progress.

    Args:
        state: State of the first request, such as ``approved`` or ``inflight``.

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

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.outcome: Outcome = _OUTCOMES.get(self.state, "unknown")

    def __str__(self) -> str:
        return (
            f"{self._entry}: it was requested with other data before and is {self.state}; request not sent: "
            f"{_ADVICE.get(self.state, _ADVICE['unknown'])}"
        )


@define(slots=False, repr=False)
class DecisionNotRecordedError(LedgerError):
    """The service has decided, and the decision could not be written to the ledger. Store `decision` now.

    Do not request approval again. If there is a `file`, it holds the decision, and
    ``loanasync.ledger.import_orphans`` writes it to the ledger later.

    Args:
        outcome: ``approved`` or ``refused``.
        decision: The decision.
        file: Path of the file on this machine that holds the decision; None if it could not be written.
        cause_type: Name of the class of the ledger's error.

    Example:
        >>> refused = Refused(meta=Meta(status=422, attempts=1, elapsed=0.2))
        >>> error = DecisionNotRecordedError("approve", "c0ffee", "refused", refused, None, "OSError")
        >>> error.outcome, error.decision.approved, error.repeatable
        ('refused', False, False)
    """

    outcome: Literal["approved", "refused"]
    decision: "Decision"
    file: str | None
    cause_type: str

    def __str__(self) -> str:
        kept = (
            "it was written to a file: import it with import_orphans"
            if self.file is not None
            else "and no file could be written: store this error's decision, it is the only copy"
        )
        return (
            f"{self._entry}: the service decided ({self.outcome}), the ledger could not be written "
            f"({self.cause_type}), {kept}; do not request approval again"
        )
