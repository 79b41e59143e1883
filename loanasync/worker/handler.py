"""Queue messages: creation, parsing, and the approval that each message requests."""

import math
from collections.abc import Mapping
from datetime import date
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
from opentelemetry import trace
from opentelemetry.trace import format_trace_id

from loanasync._client import LoanClient
from loanasync._models.decisions import Approved, Decision, Problem, printable
from loanasync._models.requests import AdditionalData, ApprovalRequest
from loanasync._protocol.schema import read_model
from loanasync.bulk.next_steps import next_step
from loanasync.bulk.rows import result_of
from loanasync.errors import (
    ConfigurationError,
    DecisionNotRecordedError,
    InvalidRequestError,
    LoanError,
)

if TYPE_CHECKING:
    from loanasync.ledger import Ledger


_MEMBERS = ("fiscal_code", "request", "additional_data_needed", "order_id")


def message(
    fiscal_code: str, request: ApprovalRequest, *, additional_data_needed: bool = False, order_id: str = ""
) -> dict[str, Any]:
    """Return the arguments of `LoanClient.approve` as a queue message: a dict of plain JSON values.

    The message contains personal data. Its ``request`` has the attributes of `ApprovalRequest` under their
    Python names. Attributes that are None are left out, and dates are written as ``YYYY-MM-DD``.

    Args:
        fiscal_code: The customer's fiscal code.
        request: The request.
        additional_data_needed: True if the service needs the conditional block (spec §2.1).
        order_id: Number of the order, as in `LoanClient.approve`.

    Example:
        >>> from loanasync.worker import message
        >>> queued = message(fiscal_code, request, order_id="A-1001")
        >>> sorted(queued), queued["request"]["amount"]
        (['additional_data_needed', 'fiscal_code', 'order_id', 'request'], 45000)
    """
    return {
        "fiscal_code": fiscal_code,
        "request": _members(request),
        "additional_data_needed": additional_data_needed,
        "order_id": order_id,
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
        case str():  # also a StrEnum
            return str(value)
    return value


def arguments_of(received: object) -> dict[str, Any]:
    """Return the arguments of `LoanClient.approve` in a message, without checking their values.

    Raises:
        InvalidRequestError: The message does not have the form of `message`.
    """
    if not isinstance(received, dict):
        text = f"must be an object, not {type(received).__name__}"
        raise InvalidRequestError((Problem("message", "", text, "message.object"),))
    unknown = [str(name) for name in received if name not in _MEMBERS]
    problems = [Problem(name, "", "is not a member of this message", "unknown_field") for name in unknown]
    if "fiscal_code" not in received:
        problems.append(Problem("fiscal_code", "", "is required", "fiscal_code.required"))
    if not isinstance(received.get("additional_data_needed", False), bool):
        code = "additional_data_needed.yes_no"
        problems.append(Problem("additional_data_needed", "", "must be true or false", code))
    sent = received.get("request")
    if not isinstance(sent, dict):
        problems.append(Problem("request", "", "must be an object", "request.object"))
        raise InvalidRequestError(tuple(problems))
    request, found = read_model(ApprovalRequest, {name: sent[name] for name in sent if name != "extra"})
    if problems or found:
        raise InvalidRequestError((*problems, *found.values()))
    return {**received, "request": attrs.evolve(request, extra=sent.get("extra", {}))}


TaskResult: TypeAlias = dict[str, Any]

_DECISION_MEMBERS = ("amount", "net_amount", "instalments", "zero_interest_rate", "payment_day_of_month")


async def handle(client: LoanClient, message: object) -> TaskResult:
    """Request the approval that a message describes.

    If this returns a result, the approval is final: acknowledge the message. If it raises, this delivery
    evaluated nobody: let the queue deliver the message again.

    The result is a dict of plain JSON values. Its only personal value is the redirect URL.

    ==============  =====================================================================================
    ``status``      ``approved``, ``refused``, ``rejected``, ``unknown``, ``failed`` or ``not_sent``, as in
                    `RowResult`
    ``outcome``     ``not_sent``, ``not_evaluated``, ``unknown``, ``approved`` or ``refused``
    ``repeatable``  True if the same message may be put into the queue again, unchanged
    ``decision``    ``approved``, ``amount``, ``net_amount``, ``instalments``, ``zero_interest_rate``,
                    ``payment_day_of_month`` and ``redirect_url``; None without a decision. A decision that a
                    person recorded may have no redirect URL and no amounts
    ``not_stored``  None, unless there is a decision that the ledger could not store: then the members of
                    ``error``, and ``file``, the path of the orphan file
    ``error``       ``type``, ``message``, ``problems`` (the fields of each `Problem`) and ``entry`` (the key
                    of the ledger entry or None); None with a decision
    ``meta``        ``status`` of the response, ``attempts``, ``elapsed`` (seconds), ``trace_id`` and
                    ``entry``; each is None if it is not known, and ``attempts`` is 0
    ==============  =====================================================================================

    Args:
        client: A client with a ledger, since a queue may deliver a message more than once. A `MemoryLedger`
            is accepted in tests: from a client with ``transport=``, or of ``Sandbox.client``.
        message: A message made by `message`.

    Raises:
        LoanError: The message must be delivered again. The error is `repeatable`; or another worker is
            requesting this approval (`InFlightError`); or the client is closed (`ClientClosedError`); or its
            settings are wrong, or it has no ledger that outlives the process (`ConfigurationError`); or the
            ledger does not fit (`LedgerMismatchError`). Or the request was sent, and the service denies
            access to this shop or address: then the outcome is ``not_evaluated`` (`AccessDeniedError`,
            `ShopNotAllowedError`, and `UnexpectedStatusError` with a status such as 401, 404 or 429). Stop
            after a few of these.

    Example:
        >>> from loanasync.ledger import MemoryLedger
        >>> from loanasync.worker import handle, message
        >>> shop = sandbox.client(ledger=MemoryLedger())
        >>> result = run(handle(shop, message(fiscal_code, request)))
        >>> result["status"], result["decision"]["amount"], result["error"]
        ('approved', 45000, None)
        >>> run(shop.aclose())
    """
    result = await _approve(client, message)
    del message  # it contains personal data, which a traceback may show
    if isinstance(result, LoanError) and next_step(result) != "finish":
        try:
            raise result
        finally:
            del result  # break the reference cycle of error, traceback and frame
    return task_result(result)


def required_ledger(client: LoanClient) -> "Ledger":
    """Return the ledger of a client.

    Raises:
        ConfigurationError: It has none, or one that forgets before the messages are finished.
    """
    from loanasync.ledger import MemoryLedger  # noqa: PLC0415  (a client without a ledger does not load it)

    ledger = client.ledger
    if ledger is None or (isinstance(ledger, MemoryLedger) and not client._is_for_tests):  # noqa: SLF001  (of this package)
        raise ConfigurationError(
            "ledger",
            "must outlive the worker, because a queue may deliver a message more than once: pass "
            "ledger=SqliteLedger(path), PostgresLedger(url) or RedisLedger(url) to LoanClient",
        )
    return ledger


async def _approve(client: LoanClient, message: object) -> Decision | Exception:
    try:
        required_ledger(client)
        # Wait for another worker until `timeout.total`: each redelivery costs the queue more. Wait for the
        # response even longer, since the event loop may stop between two tasks.
        return await client._approve_row(**arguments_of(message), wait=math.inf)  # noqa: SLF001  (of this package)
    except Exception as error:  # noqa: BLE001  (`task_result` reports any exception)
        error.__traceback__ = error.__context__ = None  # the frames contain personal data
        return error


def task_result(result: Decision | Exception) -> TaskResult:
    """Return a decision or an error as plain JSON."""
    row = result_of(0, None, result)  # type: ignore[arg-type]  # the row is not used here
    error = None if row.error is None else _error(row.error)
    is_decided = row.decision is not None
    return {
        "status": row.status,
        "outcome": row.outcome,
        "repeatable": row.repeatable,
        "decision": None if row.decision is None else _decision(row.decision),
        "not_stored": error if is_decided else None,
        "error": None if is_decided else error,
        "meta": _meta(row.error if row.decision is None else row.decision),
    }


def _decision(decision: Decision) -> dict[str, Any]:
    redirect = decision.redirect_url if isinstance(decision, Approved) else None
    members = {name: getattr(decision, name) for name in _DECISION_MEMBERS}
    return {"approved": decision.approved, **members, "redirect_url": redirect}


def _error(error: LoanError) -> dict[str, Any]:
    members: dict[str, Any] = {
        "type": type(error).__name__,
        "message": str(error),
        "problems": [attrs.asdict(printable(each)) for each in getattr(error, "problems", ())],
        "entry": error.entry,
    }
    if isinstance(error, DecisionNotRecordedError):
        members["file"] = error.file
    return members


def _meta(result: Decision | LoanError | None) -> dict[str, Any]:
    source = getattr(result, "meta", result)
    elapsed = getattr(source, "elapsed", None)
    return {
        "status": getattr(source, "status", None),
        "attempts": getattr(source, "attempts", 0),
        "elapsed": None if elapsed is None else round(elapsed, 6),
        "trace_id": getattr(source, "trace_id", None) or _current_trace(),
        "entry": getattr(source, "entry", None),
    }


def _current_trace() -> str | None:
    context = trace.get_current_span().get_span_context()
    return format_trace_id(context.trace_id) if context.is_valid else None
