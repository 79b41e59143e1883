"""Errors of the ledger and of the memory of a client."""

from typing import TYPE_CHECKING, Literal

from attrs import define

from loanasync._results import RawResponse
from loanasync.errors.root import LoanError, Outcome

if TYPE_CHECKING:
    from loanasync._results import Decision


UnresolvedState = Literal["unknown", "lost", "held"]
_DECIDED_ADVICE = (
    "repeat the call with the original data to get the decision, "
    "or pass a different scope for a new application"
)
_MISMATCH_ADVICE = {
    "inflight": "wait for that request, then repeat the call with its data",
    "unknown": "ask the service for the outcome of that request",
    "approved": _DECIDED_ADVICE,
    "refused": _DECIDED_ADVICE,
}
_OUTCOMES: dict[str, Outcome] = {"approved": "approved", "refused": "refused"}
_CONTRADICTION_ADVICE = "ask the service for the outcome, then look at the entry with loanasync ledger show"
_NOT_RESOLVED = {
    "missing": (
        "this customer has no entry; check the fiscal code, the scope and the order token, and the shop, "
        "the key and the environment of the client"
    ),
    "ambiguous": (
        "entries in several scopes have this order token; pass the scope, too, or no order token for the one "
        "without scope"
    ),
    "inflight": "a request is in progress; ask the service for the outcome when it has ended",
    "unknown": (
        "the approval was requested again after an earlier request; ask the service for the outcome of the "
        "last one. If it was not evaluated, release the entry with loanasync ledger resolve"
    ),
}
_KEY_LENGTH = 12  # characters of an entry's key in messages, enough to identify the entry


@define(slots=False, repr=False)
class LedgerError(LoanError):
    """The ledger or the client's memory prevents the call, or the ledger could not be written.

    Catch its subclasses to handle each case.

    Args:
        operation: Name of the call, ``approve``.
        key: Key of the entry in the ledger, an HMAC without personal data. Empty without a ledger.

    Attributes:
        trace_id: Trace id of the call in hexadecimal, None without a trace.

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
        return f"{self.operation}, entry {self.key[:_KEY_LENGTH]}" if self.key else self.operation

    def __str__(self) -> str:
        return f"{self._entry}: ledger error; check the entry in the ledger"


@define(slots=False, repr=False)
class LedgerUnavailableError(LedgerError):
    """The ledger is not available, so no request was sent. Repair the ledger and repeat the call.

    Args:
        cause_type: Name of the underlying error's class.
        reason: The cause and the remedy if they are known, such as a full disk, otherwise empty.

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
    reason: str = ""

    repeatable = True

    def __str__(self) -> str:
        cause = f"{self.cause_type}: {self.reason}" if self.reason else self.cause_type
        return (
            f"{self._entry}: the ledger is not available ({cause}); request not sent; "
            "repair the ledger, then repeat the call"
        )


@define(slots=False, repr=False)
class LedgerMismatchError(LedgerError):
    """The ledger does not fit this client, so no request was sent. Nothing was changed in the ledger.

    Without this check, the records of earlier requests would not be found, and every customer would be
    requested again. Correct the settings; a worker waits until then.

    Args:
        ledger: Name of the ledger, such as its path or its address without the password.
        reason: The difference, such as another key, and the remedy.

    Example:
        >>> reason = "is encrypted: set LOANASYNC_LEDGER_CIPHER"
        >>> print(LedgerMismatchError("approve", "", "decisions.db", reason))
        approve: the ledger decisions.db is encrypted: set LOANASYNC_LEDGER_CIPHER; request not sent
    """

    ledger: str
    reason: str

    def __str__(self) -> str:
        return f"{self._entry}: the ledger {self.ledger} {self.reason}; request not sent"


class InFlightError(LedgerError):
    """The approval is still being decided by another worker or call. This call sent no request.

    `approve` raises it after waiting for `LedgerPolicy.wait` seconds, or for its argument `wait`. Show the
    shopper "your request is still being decided", with a button that repeats the call with the same data.
    This is safe, although `repeatable` is False. A later call returns the decision once the other worker has
    it. If that worker was killed, a later call raises `OutcomeUnknownError` once its lease has expired.

    Example:
        >>> print(InFlightError("approve", "c0ffee"))
        approve, entry c0ffee: still being decided by another worker; request not sent; call again later
    """

    outcome: Outcome = "unknown"

    def __str__(self) -> str:
        return f"{self._entry}: still being decided by another worker; request not sent; call again later"


@define(slots=False, repr=False)
class OutcomeUnknownError(LedgerError):
    """This approval was requested before, and its outcome is unknown; no request was sent.

    Ask the service for its decision. With a ledger, write it to the entry with `LoanClient.resolve`.
    To send the request again anyway, call ``approve(..., repeat_unknown=True)``.

    Args:
        state: ``unknown``: the service may have decided. ``lost``: the service has decided, but its decision
            did not arrive. ``held``: a person blocked the entry.
        note: The cause, such as the name of an error's class.
        response: The response that could not be interpreted, if the client's memory contains it.

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

    state: UnresolvedState
    note: str
    response: RawResponse | None = None

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.outcome: Outcome = "unknown"

    def __str__(self) -> str:
        cause = {
            "unknown": "an earlier request has an unknown outcome",
            "lost": "the service has decided, but its decision did not arrive",
            "held": "a person blocked this entry",
        }[self.state]
        note = f" ({self.note})" if self.note else ""
        return f"{self._entry}: {cause}{note}; request not sent; ask the service for its decision"


@define(slots=False, repr=False)
class DecisionForgottenError(LedgerError):
    """The service decided within the last hour, and the client no longer has the decision.

    Only a client without a ledger raises it: it keeps the last 10,000 decisions. No request was sent. Ask the
    service for the decision, and pass a ledger to `LoanClient`.

    Args:
        outcome: ``approved`` or ``refused``.

    Example:
        >>> print(DecisionForgottenError("approve", "", "approved"))
        approve: the service has decided (approved), but this client keeps only its last decisions; reque...
    """

    outcome: Literal["approved", "refused"]

    def __str__(self) -> str:
        return (
            f"{self._entry}: the service has decided ({self.outcome}), but this client keeps only its last "
            "decisions; request not sent; look it up at the service, and use a ledger"
        )


@define(slots=False, repr=False)
class PayloadMismatchError(LedgerError):
    """This customer's approval was requested before with other data; no request was sent.

    If it is the same application, repeat the call with the data of the first request. For a new application
    pass a different ``scope``. A client without a ledger compares the approvals of the last hour.

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
            f"{self._entry}: this approval was requested before with other data (state: {self.state}); "
            f"request not sent; {_MISMATCH_ADVICE.get(self.state, _MISMATCH_ADVICE['unknown'])}"
        )


@define(slots=False, repr=False)
class NotResolvedError(LedgerError):
    """`LoanClient.resolve` wrote nothing, because the entry does not permit the stated outcome.

    Check the customer, the scope and the order token. If they are right, ask the service for the outcome, and
    look at the entry with ``loanasync ledger show``.

    Args:
        state: ``missing``: the customer has no entry. ``ambiguous``: the customer has entries of this order
            token in several scopes. Otherwise the state of the entry, which contradicts the stated outcome.
            For ``not_evaluated`` this includes ``inflight``, a request in progress, and ``unknown``: the
            approval was requested again after an earlier request.
        stated: The stated outcome.

    Example:
        >>> from loanasync.ledger import MemoryLedger
        >>> from loanasync.testing import approved, scripted_client
        >>> shop = scripted_client(approved(), ledger=MemoryLedger())
        >>> decision = run(shop.approve(fiscal_code, request))
        >>> try:
        ...     run(shop.resolve(fiscal_code, "refused", source="webhook"))
        ... except NotResolvedError as error:
        ...     print(error.state, error.outcome)
        approved approved
    """

    state: str
    stated: str

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        self.outcome: Outcome = _OUTCOMES.get(self.state, "unknown")

    def __str__(self) -> str:
        reason = _NOT_RESOLVED.get(self.state, f"the entry is {self.state}; {_CONTRADICTION_ADVICE}")
        return f"{self._entry}: not recorded as {self.stated}: {reason}"


@define(slots=False, repr=False)
class DecisionNotRecordedError(LedgerError):
    """The service has decided, but the decision could not be written to the ledger. Store `decision` now.

    Do not request approval again. If `file` is not None, it contains the decision. Call
    ``loanasync.ledger.import_orphans`` to write it to the ledger later.

    Args:
        outcome: ``approved`` or ``refused``.
        decision: The decision.
        file: Path of the orphan file on this machine, None if it could not be written.
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
        advice = (
            "the decision was saved to a file; import it with import_orphans"
            if self.file is not None
            else "no file could be written; store error.decision, it is the only copy"
        )
        return (
            f"{self._entry}: the service has decided ({self.outcome}), but the ledger could not be written "
            f"({self.cause_type}); {advice}; do not request approval again"
        )
