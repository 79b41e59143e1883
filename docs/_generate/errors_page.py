"""Generates the table of docs/reference/errors.md from instances of the error classes."""

from typing import Any, Literal

import attrs
from attrs import frozen

from loanasync import Meta, Refused, errors
from loanasync._models.decisions import OTHER_ORDER
from loanasync.errors import NOT_PROCESSED, LoanError

# Base classes that no call raises; their subclasses are listed.
ABSTRACT = (LoanError, errors.ServiceError, errors.TransportError, errors.LedgerError)


@frozen
class Row:
    """A line of the table: when an error is raised, and an instance of it.

    `after_fault` is the same error of a call with an earlier 500, `others` have other outcomes.
    """

    when: str
    error: LoanError
    after_fault: LoanError | None = None
    others: tuple[LoanError, ...] = ()

    @property
    def examples(self) -> tuple[LoanError, ...]:
        fault = () if self.after_fault is None else (self.after_fault,)
        return (self.error, *self.others, *fault)


def responded(kind: type[errors.ServiceError], when: str, status: int = 400) -> Row:
    first, second = (kind("approve", (), Meta(status, attempts, 0.1)) for attempts in (1, 2))
    return Row(when, first, second)


def unsent(kind: type[errors.TransportError], when: str) -> Row:
    return Row(
        when,
        kind("approve", "TimeoutError", "not_sent", 1),
        kind("approve", "TimeoutError", "unknown", 2),
    )


def sent(kind: type[errors.TransportError], when: str) -> Row:
    return Row(when, kind("approve", "TimeoutError", "unknown", 1))


def blocked(state: Literal["unknown", "lost", "held"]) -> LoanError:
    return errors.OutcomeUnknownError("approve", "c0ffee", state, "")


def mismatch(state: str) -> LoanError:
    return errors.PayloadMismatchError("approve", "c0ffee", state)


def not_recorded(outcome: Literal["approved", "refused"]) -> LoanError:
    decision = Refused(meta=Meta(422, 1, 0.1))
    return errors.DecisionNotRecordedError("approve", "c0ffee", outcome, decision, None, "OSError")


OPERATIONS = ("approve", "create_request", "upload_documents", "complete")
TOO_MANY_REQUESTS = 429  # in another row of the table
UNPROCESSED = ", ".join(str(status) for status in sorted(NOT_PROCESSED - {TOO_MANY_REQUESTS}))

GROUPS: dict[str, list[Row]] = {
    "before anything is sent": [
        Row("the request breaks rules of the specification", errors.InvalidRequestError(())),
        Row("a setting of the client is invalid", errors.ConfigurationError("shop_id", "must be given")),
        Row("the client was closed before the call", errors.ClientClosedError()),
        Row("the circuit breaker is open; `approve` only", errors.CircuitOpenError("approve", 30.0)),
    ],
    "the service responded": [
        responded(errors.RejectedError, "400 with messages for fields, and no `domain`"),
        responded(errors.UserNotFoundError, '400 "User not found"'),
        responded(errors.ShopNotAllowedError, '400 "This sales point cannot apply for a loan"'),
        responded(errors.InvalidFiscalCodeError, '400 "Invalid fiscalCode."'),
        responded(
            errors.AlreadyEvaluatedError,
            '400 or another status with "User already evaluated for approval", or a variant of this text',
        ),
        Row(
            "the same text, if the decision of [another order](../explanation/orders.md) is known",
            errors.AlreadyEvaluatedError("approve", (), Meta(400, 1, 0.1), note=OTHER_ORDER),
        ),
        responded(errors.DomainError, "400 with any other message under `domain`"),
        responded(errors.AccessDeniedError, "403", 403),
        responded(errors.CannotCompleteError, "409 to `approve`", 409),
        responded(errors.SystemFaultError, "500 to the last attempt", 500),
        responded(
            errors.UnexpectedStatusError,
            f'a status that means "not processed" in HTTP: {UNPROCESSED}',
            min(NOT_PROCESSED),
        ),
        responded(errors.UnexpectedStatusError, "429: too many requests", TOO_MANY_REQUESTS),
        responded(
            errors.UnexpectedStatusError,
            "any other 3xx or 4xx, such as 302, 303 or 408; also 409 to the other calls",
            408,
        ),
        responded(errors.UnexpectedStatusError, "any other status, such as 204 or 502", 502),
        Row(
            "201 or 422 without a readable decision, or about another customer; any other 400; "
            'a 403, a 500 or a status that means "not processed", if its response is '
            "[not certainly whole](../contributing/reliability.md#proof); any other status with a boolean "
            "`approved`; for the other calls, a success whose body is not JSON",
            errors.UnexpectedResponseError("approve", (), "unknown", Meta(201, 1, 0.1)),
        ),
        Row(
            "from `complete` only: 200, but the body cannot be read; the data are saved",
            errors.UnexpectedResponseError("complete", (), "done", Meta(200, 1, 0.1)),
        ),
    ],
    "no response": [
        unsent(
            errors.ConnectError,
            "no connection; or a function `auth_token` failed; or your program raised an exception, "
            "for example in a signal handler",
        ),
        unsent(errors.PoolTimeoutError, "no free slot or connection in time"),
        unsent(errors.DeadlineExceededError, "`Timeout.total` ran out before the request was sent"),
        sent(errors.DeadlineExceededError, "`Timeout.total` ran out later, without a ledger"),
        Row(
            "`Timeout.total` ran out later, with a ledger: the response is still awaited",
            errors.DeadlineExceededError("approve", "TimeoutError", "unknown", 1, entry="c0ffee"),
        ),
        unsent(errors.ReadTimeoutError, "`Timeout.attempt` ran out before the request was sent"),
        sent(errors.ReadTimeoutError, "`Timeout.attempt` ran out later"),
        sent(
            errors.ConnectionLostError,
            "the connection broke, or your program raised an exception, after the request was sent",
        ),
    ],
    "the ledger or the client's memory": [
        Row(
            "the ledger is not available",
            errors.LedgerUnavailableError("approve", "c0ffee", "OSError"),
        ),
        Row(
            "the ledger has another key, cipher or service, is missing, or has lost writes",
            errors.LedgerMismatchError("approve", "", "decisions.db", "has another key"),
        ),
        Row(
            "still being decided by another call or worker: call again later",
            errors.InFlightError("approve", "c0ffee"),
        ),
        Row("an earlier request has an unknown outcome", blocked("unknown")),
        Row("the service has decided an earlier request, but its decision did not arrive", blocked("lost")),
        Row(
            "an earlier request had the error `AlreadyEvaluatedError` because of another order",
            errors.OutcomeUnknownError("approve", "c0ffee", "lost", OTHER_ORDER),
        ),
        Row(
            "requested before with other data: still being decided, approved or refused",
            mismatch("inflight"),
            others=(mismatch("approved"), mismatch("refused")),
        ),
        Row("requested before with other data, with an unknown outcome", mismatch("unknown")),
        Row(
            "decided within the hour, without a ledger, and the decision is no longer kept",
            errors.DecisionForgottenError("approve", "", "approved"),
            others=(errors.DecisionForgottenError("approve", "", "refused"),),
        ),
        Row(
            "the customer was erased with `loanasync ledger forget`",
            errors.DecisionForgottenError("approve", "c0ffee", "unknown"),
        ),
        Row(
            "from `resolve` only: the customer has no entry, or an entry that contradicts the stated outcome",
            errors.NotResolvedError("resolve", "", "missing", "refused"),
            others=(
                errors.NotResolvedError("resolve", "c0ffee", "approved", "refused"),
                errors.NotResolvedError("resolve", "c0ffee", "refused", "approved"),
            ),
        ),
        Row(
            "decided, but the ledger could not be written; has the decision",
            not_recorded("approved"),
            others=(not_recorded("refused"),),
        ),
    ],
}


ROWS = [row for rows in GROUPS.values() for row in rows]


def for_operation(row: Row, operation: str) -> tuple[LoanError, ...]:
    """Return the examples of a row as errors of another call; none if that call does not raise them."""
    made_for = row.error.operation
    if made_for is None or made_for == operation:
        return row.examples
    is_general = made_for == "approve" and isinstance(row.error, errors.ServiceError | errors.TransportError)
    is_general |= made_for == "approve" and isinstance(row.error, errors.UnexpectedResponseError)
    is_general &= not isinstance(row.error, errors.CannotCompleteError) and not getattr(row.error, "note", "")
    if not is_general or row.error.entry is not None:
        return ()
    changed: Any = attrs.evolve  # mypy does not know that these classes are attrs classes
    return tuple(changed(each, operation=operation) for each in row.examples)


def line(row: Row) -> str:
    """Return the line of an error. The page of `approve` is first, another one is that of the other calls."""
    examples = (for_operation(row, name)[:1] for name in OPERATIONS)
    pages = "; ".join(dict.fromkeys(f"`{error.advice}`" for found in examples for error in found)) or "-"
    outcomes = ", ".join(f"`{each.outcome}`" for each in (row.error, *row.others))
    outcomes += ", repeatable" * row.error.repeatable
    return f"| `{type(row.error).__name__}` | {row.when} | {outcomes} | {pages} |"


def tables() -> str:
    lines: list[str] = []
    for title, rows in GROUPS.items():
        lines += [f"### {title[0].upper()}{title[1:]}", ""]
        lines += ["| error | when | outcome | page |", "|---|---|---|---|", *map(line, rows), ""]
    return "\n".join(lines)
