"""What every answer and every error says besides its body: how it came about, and what is wrong."""

from attrs import frozen

__all__ = ["Meta", "Problem"]


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
        status: HTTP status of the last answer.
        attempts: How many requests were sent for this call; more than 1 only after a 500.
        elapsed: Seconds from the call's first step to its answer, waiting and sleeping included.
        trace_id: The trace's 32 hex digits when a trace was recorded or passed on, else None.
        unread: Wire names of members that came with a type outside spec §2 and therefore are None as
            attributes; ``raw`` still holds them.

    Example:
        >>> decision = run(client.approve(fiscal_code, request))
        >>> decision.meta.status, decision.meta.attempts, decision.meta.unread
        (201, 1, ())
    """

    status: int
    """HTTP status of the last answer (spec §4)."""
    attempts: int
    """Requests sent for this call; more than 1 only after a 500 (spec §7)."""
    elapsed: float
    """Seconds from the call's first step to its answer, waiting and sleeping included."""
    trace_id: str | None = None
    """The trace's 32 hex digits, when a trace was recorded or passed on."""
    unread: tuple[str, ...] = ()
    """Wire names of members that came with a type outside the specification (spec §2)."""
