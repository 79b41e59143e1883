"""One call in the journal: plain to a program that asks, masked wherever it is shown."""

from collections.abc import Mapping
from typing import Any

from attrs import define, field

from loanasync.sandbox.journal.masking import MASK, masked, masked_answer, pseudonym


@define(kw_only=True, eq=False)
class Entry:
    """One call. Attributes are as they were sent; what is printed or exported is masked.

    Args:
        number: Counted from 1, across the whole life of the sandbox.
        at: When it was answered, seconds since 1970.
        method: HTTP method.
        route: Path template, such as ``/api/shops/{shopId}/requests``.
        operation: create_request, approve, upload_documents or complete; empty for any other path.
        fiscal_code: The customer's; empty when there is none.
        status: HTTP status that was answered; None when the fault left nothing to answer.
        elapsed: Seconds that the sandbox took, its waits for faults included.
        evaluated: Whether this very call decided the request.
        fault: The fault with its phase, such as ``resetafter``; empty for none.
        request: The JSON object that came; None when it was none.
        answer: The JSON value that was answered, also when a fault spoiled it on its way; None for no body.
        findings: Rules of the protocol that this call broke.
        canned: Whether the answer is one that a rule wrote.

    Example:
        >>> call = sandbox.journal[0]
        >>> call.operation, call.status, call.evaluated
        ('create_request', 201, False)
        >>> call.masked()["fiscal_code"]
        '***'
    """

    number: int
    at: float
    method: str
    route: str
    operation: str
    fiscal_code: str
    status: int | None
    elapsed: float
    evaluated: bool
    fault: str
    request: Mapping[str, Any] | None
    answer: Mapping[str, Any] | list[Any] | None
    findings: tuple[str, ...] = field(default=())
    canned: bool = False

    def masked(self) -> dict[str, Any]:
        """Everything of it that may be shown, as JSON."""
        return {
            "number": self.number,
            "at": round(self.at, 3),
            "method": self.method,
            "route": self.route,
            "operation": self.operation,
            "fiscal_code": MASK if self.fiscal_code else "",
            "customer": pseudonym(self.fiscal_code),
            "status": self.status,
            "elapsed": round(self.elapsed, 6),
            "evaluated": self.evaluated,
            "fault": self.fault,
            "request": masked(self.request),
            "answer": self._masked_answer(),
            "findings": list(self.findings),
        }

    def _masked_answer(self) -> dict[str, Any] | list[Any] | None:
        """Return the body of the response as it may be shown: messages that a rule wrote are masked, too."""
        if self.canned and isinstance(self.answer, Mapping):
            return masked(self.answer)
        return masked_answer(self.answer, self.request, self.fiscal_code)

    def __repr__(self) -> str:
        told = self.status if self.status is not None else "no answer"
        parts = [f"#{self.number} {self.operation or f'{self.method} {self.route}'} -> {told}"]
        parts += ["evaluated"] if self.evaluated else []
        parts += [self.fault] if self.fault else []
        return f"<Entry {', '.join(parts)}>"

    def __str__(self) -> str:
        who = f" customer {pseudonym(self.fiscal_code)[:6]}" if self.fiscal_code else ""
        broken = f" [{', '.join(self.findings)}]" if self.findings else ""
        return f"{self!r}{broken}{who}, {self.elapsed * 1000:.1f} ms"
