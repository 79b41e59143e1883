"""Messages of a queue: creation, parsing, and the approval that each message requests."""

from collections.abc import Mapping
from contextlib import suppress
from datetime import date
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
from opentelemetry import trace
from opentelemetry.trace import format_trace_id

from loanasync._display.masking import JSON
from loanasync._models.requests import AdditionalData, ApprovalRequest
from loanasync._results import Approved, Decision, Problem, Refused
from loanasync.bulk.rows import Row, result_of
from loanasync.errors import (
    AccessDeniedError,
    ClientClosedError,
    ConfigurationError,
    DecisionNotRecordedError,
    InFlightError,
    InvalidRequestError,
    LoanError,
    ServiceError,
    ShopNotAllowedError,
    UnexpectedResponseError,
    UnexpectedStatusError,
)

if TYPE_CHECKING:
    from loanasync._client import LoanClient


_MEMBERS = ("fiscal_code", "request", "additional_data_needed", "scope")


def message(
    fiscal_code: str, request: ApprovalRequest, *, additional_data_needed: bool = False, scope: str = ""
) -> dict[str, Any]:
    """Return the arguments of `LoanClient.approve` as a message for a queue: plain JSON, all personal.

    Args:
        fiscal_code: The customer's fiscal code.
        request: Its members go under their own names, those that are None not at all; a date as
            ``YYYY-MM-DD``.
        additional_data_needed: Whether the service asked for the conditional block (spec §2.1).
        scope: Distinguishes applications of one customer.

    Example:
        >>> from loanasync.worker import message
        >>> told = message(fiscal_code, request, scope="order 7")
        >>> sorted(told), told["request"]["amount"]
        (['additional_data_needed', 'fiscal_code', 'request', 'scope'], 45000)
    """
    return {
        "fiscal_code": fiscal_code,
        "request": _members(request),
        "additional_data_needed": additional_data_needed,
        "scope": scope,
    }


def _members(model: ApprovalRequest | AdditionalData) -> dict[str, Any]:
    values = attrs.asdict(model, recurse=False)
    return {name: _plain(value) for name, value in values.items() if value is not None and value != {}}


def _plain(value: object) -> object:
    match value:
        case AdditionalData():
            return _members(value)
        case Mapping():
            return dict(value)
        case date():
            return value.isoformat()
        case str():  # the name of a choice, too
            return str(value)
    return value


def arguments_of(received: object) -> dict[str, Any]:
    """Return the arguments of `LoanClient.approve` that a message has; their values are not checked.

    Raises:
        InvalidRequestError: It is no such message.
    """
    if not isinstance(received, dict):
        raise InvalidRequestError((_wrong("message", f"must be an object, not {type(received).__name__}"),))
    unknown = [str(name) for name in received if name not in _MEMBERS]
    problems = [_wrong(name, "is not a member of this message") for name in unknown]
    problems += [_wrong(name, "is required") for name in _MEMBERS[:2] if name not in received]
    asked = received.get("request")
    if "request" in received and not isinstance(asked, dict):
        problems.append(_wrong("request", "must be an object"))
    needed = received.get("additional_data_needed", False)
    if not isinstance(needed, bool):
        problems.append(_wrong("additional_data_needed", "must be true or false"))
    if problems or not isinstance(asked, dict):
        raise InvalidRequestError(tuple(problems))
    return {**received, "request": _request(asked)}


def _request(members: dict[str, JSON]) -> ApprovalRequest:
    values: dict[str, Any] = dict(members)
    additional = values.get("additional")
    if isinstance(additional, dict):
        additional = dict(additional)
        with suppress(KeyError, TypeError, ValueError):  # left as it is, for the rules to name
            since = additional["residence_start_date"]
            additional["residence_start_date"] = date.fromisoformat(since)
        values["additional"] = AdditionalData(**additional)
    return ApprovalRequest(**values)


def _wrong(name: str, what: str) -> Problem:
    return Problem(name, "", what)


TaskResult: TypeAlias = dict[str, Any]

_TOLD = ("amount", "net_amount", "instalments", "zero_interest_rate", "payment_day_of_month")


async def handle(client: "LoanClient", message: object) -> TaskResult:
    """Request the approval that a message describes. A result is final; an error may be delivered again.

    The result is an object of plain JSON, which holds nothing of the person but the redirect:

    ==============  =====================================================================================
    ``status``      ``approved``, ``refused``, ``rejected``, ``unknown`` or ``error``, as in `RowResult`
    ``outcome``     ``not_sent``, ``not_evaluated``, ``unknown``, ``approved`` or ``refused``
    ``repeatable``  True if the same message may be put in the queue again, unchanged
    ``decision``    ``approved``, ``amount``, ``net_amount``, ``instalments``, ``zero_interest_rate``,
                    ``payment_day_of_month`` and ``redirect_url``; None without a decision. A decision that a
                    person settled may have no redirect and no amounts
    ``not_stored``  None; with a decision that the ledger could not store, the error as below, and
                    ``file``, the path of the orphan file
    ``error``       ``type``, ``message``, ``problems`` and ``entry``, the key of the ledger entry, None
                    without one; None with a decision
    ``meta``        ``status`` of the response, ``attempts``, ``elapsed``, ``trace_id`` and ``entry``; each is
                    None if it is not known
    ==============  =====================================================================================

    Args:
        client: With a ledger: a queue delivers more than once.
        message: What `message` made.

    Raises:
        LoanError: The message must be delivered again, since nothing was evaluated: the error is
            `repeatable`, another worker is requesting this approval (`InFlightError`), the client is closed
            (`ClientClosedError`), its settings are wrong (`ConfigurationError`), or the service accepts
            nothing from this shop or from this address (`AccessDeniedError`, `ShopNotAllowedError`, and
            `UnexpectedStatusError` with a status such as 401, 404 or 429).

    Example:
        >>> from loanasync.worker import handle, message
        >>> told = run(handle(client, message(fiscal_code, request)))
        >>> told["status"], told["decision"]["amount"], told["error"]
        ('approved', 45000, None)
    """
    ended = await _asked(client, message)
    del message  # personal: must not stand in a traceback
    if isinstance(ended, LoanError) and _may_be_delivered_again(ended):
        try:
            raise ended
        finally:
            del ended  # or error, traceback and frame would hold each other
    return task_result(ended)


async def _asked(client: "LoanClient", message: object) -> Decision | Exception:
    try:
        return await client.approve(**arguments_of(message))
    except Exception as error:  # noqa: BLE001  (each has its answer)
        error.__traceback__ = error.__context__ = None  # its frames know the customer
        return error


def _may_be_delivered_again(error: LoanError) -> bool:
    is_ours = isinstance(error, InFlightError | ClientClosedError | ConfigurationError)
    return error.repeatable or is_ours or is_denied(error)


def is_denied(error: LoanError) -> bool:
    """Return True if the service refused to process a request, for a reason that no customer gave."""
    kinds = AccessDeniedError | ShopNotAllowedError | UnexpectedStatusError
    return isinstance(error, kinds) and error.outcome == "not_evaluated"


def task_result(ended: Decision | Exception) -> TaskResult:
    """Return a decision or an error as plain JSON."""
    result = result_of(0, _NO_ROW, ended)
    error = None if result.error is None else _error(result.error)
    is_decided = result.decision is not None
    return {
        "status": result.status,
        "outcome": result.outcome,
        "repeatable": result.repeatable,
        "decision": None if result.decision is None else _decision(result.decision),
        "not_stored": error if is_decided else None,
        "error": None if is_decided else error,
        "meta": _meta(result.error if result.decision is None else result.decision),
    }


def _decision(decision: Decision) -> dict[str, Any]:
    redirect = decision.redirect_url if isinstance(decision, Approved) else None
    told = {name: getattr(decision, name) for name in _TOLD}
    return {"approved": decision.approved, **told, "redirect_url": redirect}


def _error(error: Exception) -> dict[str, Any]:
    ours = error if isinstance(error, LoanError) else None
    told: dict[str, Any] = {
        "type": type(error).__name__,
        # The text of an error that is not ours may quote a person.
        "message": str(ours) if ours else "no error of loanasync's: see its type",
        "problems": [attrs.asdict(each) for each in getattr(error, "problems", ())],
        "entry": ours.entry if ours else None,
    }
    if isinstance(error, DecisionNotRecordedError):
        told["file"] = error.file
    return told


def _meta(ended: Decision | Exception | None) -> dict[str, Any]:
    if isinstance(ended, Approved | Refused | ServiceError | UnexpectedResponseError):
        meta = ended.meta
        return {
            "status": meta.status,
            "attempts": meta.attempts,
            "elapsed": round(meta.elapsed, 6),
            "trace_id": meta.trace_id or _current_trace(),
            "entry": meta.entry,
        }
    return {
        "status": None,
        "attempts": getattr(ended, "attempts", 0) if isinstance(ended, LoanError) else None,
        "elapsed": None,
        "trace_id": getattr(ended, "trace_id", None) or _current_trace(),
        "entry": ended.entry if isinstance(ended, LoanError) else None,
    }


def _current_trace() -> str | None:
    context = trace.get_current_span().get_span_context()
    return format_trace_id(context.trace_id) if context.is_valid else None


_NO_ROW = Row("", None)  # type: ignore[arg-type]  # a message is no row of a table: what is read is the outcome
