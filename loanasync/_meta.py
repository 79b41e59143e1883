"""Metadata of responses and errors: status, attempts, correlation, problems, and the response as received."""

from attrs import field, frozen

from loanasync._display import mask

__all__ = ["Meta", "Problem", "RawResponse"]


@frozen
class Problem:
    """One broken rule, in one shape whether this package or the service found it.

    Args:
        field: Our name of the field, such as ``postal_code``; a wire name we do not know as it came.
        wire_name: The name under which the service knows it, such as ``postalCode``.
        message: A sentence that helps to mend it. It never repeats the value.

    Example:
        >>> print(Problem("amount", "amount", "must be between 5000 and 1500000 euro cents"))
        amount: must be between 5000 and 1500000 euro cents
    """

    field: str
    """Our name of the field; a wire name that we do not know as it came (spec §7)."""
    wire_name: str
    """The name under which the service knows it (spec §7)."""
    message: str
    """What helps to mend it; never the value (spec §7)."""

    def __str__(self) -> str:
        # spec §7: the one message of a 403 and of a 409 belongs to no field
        return f"{self.field}: {self.message}" if self.field else self.message

    def _repr_html_(self) -> str:
        from loanasync import _html as html  # noqa: PLC0415  (in a notebook only)

        return html.card("Problem", "bad", pairs=html.rows(self))


@frozen(slots=False)  # made with each call, and so in half the time
class Meta:
    """How an answer came about: nothing personal in it, safe to log.

    Args:
        status: HTTP status of the last answer. If a person settled the decision, the status of the response
            that the ledger keeps; without one, 201 if it is approved and 422 if it is refused.
        attempts: How many requests were sent for this call; more than 1 only after a 500.
        elapsed: Seconds from the call's first step to its answer, waiting and sleeping included.
        trace_id: The trace's 32 hex digits when a trace was recorded or passed on, else None.
        unread: Wire names of members that came with a type outside spec §2 and therefore are None as
            attributes; ``raw`` still holds them. ``body`` if the body as a whole could not be read.
        request_id: The service's id of the request, from a response header such as ``X-Request-Id``.
        date: The response header ``Date``.
        retry_after: The response header ``Retry-After``.
        entry: Key of the call's entry in the ledger, None without a ledger.
        after_unknown: True if an earlier call for this approval has an unknown outcome.

    Example:
        >>> decision = run(client.approve(fiscal_code, request))
        >>> decision.meta.status, decision.meta.attempts, decision.meta.unread
        (201, 1, ())
    """

    status: int
    """HTTP status of the last answer (spec §4); by the state of the entry if a person settled it."""
    attempts: int
    """Requests sent for this call; more than 1 only after a 500 (spec §7)."""
    elapsed: float
    """Seconds from the call's first step to its answer, waiting and sleeping included."""
    trace_id: str | None = None
    """The trace's 32 hex digits, when a trace was recorded or passed on."""
    unread: tuple[str, ...] = ()
    """Wire names of members that came with a type outside the specification (spec §2)."""
    request_id: str | None = None
    """The service's id of the request, from a response header."""
    date: str | None = None
    """The response header ``Date``."""
    retry_after: str | None = None
    """The response header ``Retry-After``."""
    entry: str | None = None
    """Key of the call's entry in the ledger."""
    after_unknown: bool = False
    """True if an earlier call for this approval has an unknown outcome."""


@frozen
class RawResponse:
    """A response as it was received, kept so that nothing is lost. It is personal, and masked when printed.

    Args:
        status: HTTP status.
        body: The bytes that arrived, at most 1 MiB; incomplete if the connection broke.

    Example:
        >>> from loanasync import RawResponse
        >>> RawResponse(201, b"{")
        RawResponse(status=201, body=***)
    """

    status: int
    """HTTP status (spec §4)."""
    body: bytes = field(repr=mask)
    """The bytes that arrived (spec §2.1)."""
