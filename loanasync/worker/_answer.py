"""From a message of a queue to an answer that ends it, or to an error with which it is delivered again."""

from typing import TYPE_CHECKING, Any, TypeAlias

from loanasync._decisions import Approved, Decision, Refused
from loanasync._rules import normalize_fiscal_code
from loanasync.bulk._rows import Row, result_of
from loanasync.errors import (
    ClientClosedError,
    DecisionNotRecordedError,
    InFlightError,
    LedgerError,
    LedgerUnavailableError,
    LoanError,
    ServiceError,
    TransportError,
    UnexpectedReplyError,
)
from loanasync.worker._message import Question, question_of

if TYPE_CHECKING:
    from loanasync._client import LoanClient

__all__ = ["Answer", "answer", "told_of"]

Answer: TypeAlias = dict[str, Any]

_TOLD = ("amount", "net_amount", "instalments", "zero_interest_rate", "payment_day_of_month")


async def answer(client: "LoanClient", message: object) -> Answer:
    """Ask what a message asks. What this returns is final; what it raises may be delivered again.

    It returns an object of plain JSON, which has nothing of the person but the redirect:

    ==============  =====================================================================================
    ``status``      ``approved``, ``refused``, ``rejected``, ``unknown`` or ``error``, as of `RowResult`
    ``again``       whether the question may be put once more, mended where need be
    ``decision``    ``approved``, ``amount``, ``net_amount``, ``instalments``, ``zero_interest_rate``,
                    ``payment_day_of_month`` and ``redirect_url``; None without a decision
    ``error``       ``type``, ``message`` and ``problems``; with a ledger's error, and with an unknown
                    outcome, ``entry``, its key in the ledger; None without an error. A decision that could
                    not be recorded comes with an error, whose ``file`` says where it was spooled
    ``meta``        ``status``, ``attempts``, ``elapsed`` and ``trace_id``, as far as there was an answer
    ==============  =====================================================================================

    Args:
        client: With a ledger: a queue delivers more than once.
        message: What `message` made.

    Raises:
        LoanError: Provably nothing was sent, or another worker is asking (`InFlightError`,
            `LedgerUnavailableError`, `ClientClosedError`, a `TransportError` of ``request_sent`` "no").

    Example:
        >>> from loanasync.worker import answer, message
        >>> told = run(answer(client, message(fiscal_code, request)))
        >>> told["status"], told["decision"]["amount"], told["error"]
        ('approved', 45000, None)
    """
    ended, entry = await _asked(client, message)
    del message  # personal: must not stand in a traceback
    if isinstance(ended, Exception) and _may_be_delivered_again(ended):
        try:
            raise ended
        finally:
            del ended  # or error, traceback and frame would hold each other
    told = told_of(ended)
    if told["status"] == "unknown":
        told["error"] |= entry
    return told


async def _asked(client: "LoanClient", message: object) -> tuple[Decision | Exception, dict[str, str]]:
    question = None
    try:
        question = question_of(message)
        decision = await client.approve(
            question.fiscal_code,
            question.request,
            additional_data_needed=question.additional_data_needed,
            scope=question.scope,
        )
    except Exception as error:  # noqa: BLE001  (each has its answer)
        error.__traceback__ = error.__context__ = None  # its frames know the customer
        return error, _entry_of(client, question)
    return decision, {}


def _entry_of(client: "LoanClient", question: Question | None) -> dict[str, str]:
    recorder = client._recorder  # noqa: SLF001  (of this package)
    if question is None or recorder is None or not isinstance(question.fiscal_code, str):
        return {}
    from loanasync.ledger._keys import key_of  # noqa: PLC0415  (it brings SQLite, which who has a ledger has)

    shop, code = client._options.shop, normalize_fiscal_code(question.fiscal_code)  # noqa: SLF001  (of this package)
    return {"entry": key_of(shop, code, recorder.policy, question.scope)}


def _may_be_delivered_again(error: Exception) -> bool:
    match error:
        case InFlightError() | LedgerUnavailableError() | ClientClosedError():
            return True
        case TransportError():
            return error.request_sent == "no"
        case _:
            return False


def told_of(ended: Decision | Exception) -> Answer:
    """An outcome as plain JSON."""
    result = result_of(0, _NO_ROW, ended)
    return {
        "status": result.status,
        "again": result.may_be_repeated,
        "decision": None if result.decision is None else _decision(result.decision),
        "error": None if result.error is None else _error(result.error),
        "meta": _meta(result.decision if result.decision is not None else result.error),
    }


def _decision(decision: Decision) -> dict[str, Any]:
    redirect = decision.redirect_url if isinstance(decision, Approved) else None
    told = {name: getattr(decision, name) for name in _TOLD}
    return {"approved": decision.approved, **told, "redirect_url": redirect}


def _error(error: Exception) -> dict[str, Any]:
    # The text of an error that is not ours may quote a person.
    told: dict[str, Any] = {"type": type(error).__name__, "message": _says(error)}
    problems = getattr(error, "problems", ())
    told["problems"] = [
        {"field": each.field, "wire_name": each.wire_name, "message": each.message} for each in problems
    ]
    if isinstance(error, LedgerError):
        told["entry"] = error.key
    if isinstance(error, DecisionNotRecordedError):
        told["file"] = error.file
    return told


def _says(error: Exception) -> str:
    return str(error) if isinstance(error, LoanError) else "no error of loanasync's: see its type"


def _meta(ended: object) -> dict[str, Any] | None:
    if not isinstance(ended, Approved | Refused | ServiceError | UnexpectedReplyError):
        return None
    meta = ended.meta
    return {
        "status": meta.status,
        "attempts": meta.attempts,
        "elapsed": round(meta.elapsed, 6),
        "trace_id": meta.trace_id,
    }


_NO_ROW = Row("", None)  # type: ignore[arg-type]  # a message is no row of a table: what is read is the outcome
