import pickle
import re
from typing import Any

import attrs
import pytest

import loanasync
from loanasync import Meta, Problem, errors

META = Meta(status=400, attempts=2, elapsed=0.5, trace_id="0" * 32, request_id="r-1", entry="c0ffee")
PROBLEMS = (Problem("email", "email", "is taken"),)
SERVICE = ("approve", PROBLEMS, META)
TRANSPORT = ("approve", "ServerDisconnectedError", "unknown", 1)
ENTRY = ("approve", "0123456789abcdef" * 4)
RESPONSE = loanasync.RawResponse(502, b'{"email":"anna@example.com"}')
DECISION = loanasync.Refused(amount=45_000, meta=META)

EXAMPLES: list[errors.LoanError] = [
    errors.InvalidRequestError(PROBLEMS),
    errors.InvalidRequestError(PROBLEMS, "approve"),
    errors.ConfigurationError("shop_id", "must be given"),
    errors.ClientClosedError(),
    errors.CircuitOpenError("approve", "unknown", 12.5),
    errors.CircuitOpenError("approve", "denied", 0, "c0ffee"),
    errors.ServiceError(*SERVICE),
    errors.RejectedError(*SERVICE),
    errors.DomainError(*SERVICE),
    errors.UserNotFoundError(*SERVICE),
    errors.ShopNotAllowedError(*SERVICE),
    errors.InvalidFiscalCodeError(*SERVICE),
    errors.AlreadyEvaluatedError(*SERVICE),
    errors.AlreadyEvaluatedError(*SERVICE, after_retry=True),
    errors.AccessDeniedError("approve", (), META),
    errors.CannotCompleteError(*SERVICE),
    errors.SystemFaultError(*SERVICE, stopped_by="quota"),
    errors.UnexpectedStatusError(*SERVICE),
    errors.UnexpectedStatusError(*SERVICE, response=RESPONSE),
    errors.UnexpectedResponseError("complete", ("body: not JSON",), "done", META),
    errors.UnexpectedResponseError("approve", ("approved: missing",), "unknown", META, PROBLEMS, RESPONSE),
    errors.UnexpectedResponseError("approve", ("body: empty",), "unknown", META),
    errors.TransportError(*TRANSPORT),  # type: ignore[arg-type]
    errors.ConnectError("approve", "ClientConnectorError errno 111", "not_sent", 1),
    errors.PoolTimeoutError("approve", "TimeoutError", "not_sent", 0, "0" * 32, "c0ffee"),
    errors.ReadTimeoutError(*TRANSPORT),  # type: ignore[arg-type]
    errors.ConnectionLostError(*TRANSPORT),  # type: ignore[arg-type]
    errors.DeadlineExceededError(*TRANSPORT),  # type: ignore[arg-type]
    errors.LedgerError(*ENTRY),
    errors.LedgerUnavailableError(*ENTRY, "OperationalError"),
    errors.LedgerMismatchError(*ENTRY, "decisions.db", "has another key: set LOANASYNC_LEDGER_KEY"),
    errors.InFlightError(*ENTRY),
    errors.OutcomeUnknownError(*ENTRY, "unknown", "ReadTimeoutError"),
    errors.OutcomeUnknownError(*ENTRY, "lost", ""),
    errors.OutcomeUnknownError(*ENTRY, "held", "asked by mail"),
    errors.PayloadMismatchError(*ENTRY, "approved"),
    errors.DecisionForgottenError("approve", "", "approved"),
    errors.NotResolvedError(*ENTRY, "unknown", "not_evaluated"),
    errors.NotResolvedError(*ENTRY, "released", "approved"),
    errors.DecisionNotRecordedError(
        *ENTRY, "refused", DECISION, "/var/spool/shop/one.json", "OperationalError"
    ),
    errors.DecisionNotRecordedError(*ENTRY, "refused", DECISION, None, "OperationalError"),
]


def test_examples_include_every_public_error() -> None:
    assert {type(error).__name__ for error in EXAMPLES} | {"LoanError"} == set(errors.__all__)


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_error_is_pickled_and_rebuilt_from_its_args(error: errors.LoanError) -> None:
    again = pickle.loads(pickle.dumps(error))  # noqa: S301  (our own bytes)
    assert again == error == type(error)(*error.args)
    assert (vars(again), hash(again), str(again)) == (vars(error), hash(error), str(error))
    assert error != errors.ConfigurationError("other", "error")


# The advice in the message of an error, by its outcome and by `repeatable`.
ADVICE = {
    "not_sent, repeatable": "the call may be repeated$|repair the ledger, then repeat the call$",
    "not_sent, final": (
        "following: email: is taken$|must be given$|create a new LoanClient|check the entry|request not sent$"
    ),
    "unknown, final": "ask (it|the service) for (it|its decision|the outcome)|call again later$",
    "done, final": "do not repeat it$",
    "approved, final": (
        "before with other data .*; repeat the call with the original data|look it up at the service, and use"
    ),
    "refused, final": "(import it with|store error.decision).*; do not request approval again$",
}


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_error_message_has_the_advice_for_its_outcome(error: errors.LoanError) -> None:
    text = str(error)
    found = {kind for kind, advice in ADVICE.items() if re.search(advice, text)}
    assert found == {f"{error.outcome}, {'repeatable' if error.repeatable else 'final'}"}, text
    assert "\n" not in text
    assert repr(error).startswith(type(error).__name__ + "(")
    assert "anna" not in repr(error) + text


def test_errors_are_exported_by_the_package() -> None:
    """tests/docs/test_docstrings.py checks their docstrings."""
    assert [name for name in errors.__all__ if getattr(loanasync, name) is not getattr(errors, name)] == []


def test_tree_in_the_docstring_matches_the_classes() -> None:
    drawn: dict[str, str] = {}
    above = ["LoanError"]
    for line in str(errors.__doc__).splitlines():
        branch = re.match(r" {4}([│ ]*)[├└]── (\w+Error)", line)
        if branch:
            depth = len(branch[1]) // 4 + 1
            drawn[branch[2]] = above[depth - 1]
            above[depth:] = [branch[2]]
    real = {name: getattr(errors, name).__mro__[1].__name__ for name in errors.__all__ if name != "LoanError"}
    assert drawn == real


def responded(kind: Any, operation: str, status: int = 400, attempts: int = 1) -> errors.LoanError:
    error: errors.LoanError = kind(operation, (), Meta(status, attempts, 0.1))
    return error


EVALUATED, STATUS = errors.AlreadyEvaluatedError, errors.UnexpectedStatusError
AFTER_500 = "an earlier attempt of this call failed with status 500 and may have evaluated the customer; "
NOT_AGAIN = "do not request approval again"
ASK_BEFORE = "for the outcome before repeating the call"


@pytest.mark.parametrize(
    ("error", "ending"),
    [
        (errors.ConnectError("approve", "x", "not_sent", 1), "not sent; the call may be repeated"),
        (errors.ConnectError("approve", "x", "unknown", 2), f"received the request; ask it {ASK_BEFORE}"),
        (EVALUATED(*SERVICE), f"was evaluated before; ask the service for its decision, {NOT_AGAIN}"),
        (
            EVALUATED(*SERVICE, after_retry=True),
            f"{AFTER_500}its decision did not arrive; ask the service for it, {NOT_AGAIN}",
        ),
        (responded(errors.UserNotFoundError, "create_request"), "status 400: check the fiscal code"),
        (responded(errors.UserNotFoundError, "approve"), "code, and call create_request for it first"),
        *((responded(STATUS, "approve", status), f"ask it {ASK_BEFORE}") for status in (202, 204, 502)),
        *((responded(STATUS, "approve", status), "base_url and any proxy") for status in (301, 429)),
        (responded(STATUS, "approve", 429, attempts=2), f"{AFTER_500}ask the service {ASK_BEFORE}"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_error_message_ends_with_the_next_step(error: errors.LoanError, ending: str) -> None:
    assert str(error).endswith(ending)


@pytest.mark.parametrize("operation", ["create_request", "upload_documents", "complete"])
def test_error_text_of_other_calls_names_their_possible_effect(operation: str) -> None:
    """Only `approve` evaluates the customer, so no other call may have."""
    kinds = [getattr(errors, name) for name in errors.__all__]
    found = [kind for kind in kinds if issubclass(kind, errors.ServiceError)]
    assert len(found) > 8
    for kind in found:
        for attempts in (1, 2):
            known = "this customer was evaluated before" if kind is errors.AlreadyEvaluatedError else ""
            assert "evaluat" not in str(responded(kind, operation, 500, attempts)).replace(known, "")
    advice = "may have carried out the call; the call decides nothing and may be repeated"
    assert str(responded(errors.SystemFaultError, operation, 500)).endswith(advice)
    assert str(responded(errors.AccessDeniedError, operation, 403, attempts=2)).endswith(advice)
    lost = str(errors.ConnectionLostError(operation, "x", "unknown", 1))
    assert lost.endswith("received the request; the call decides nothing and may be repeated")
    again = str(errors.AlreadyEvaluatedError(operation, (), META, after_retry=True))
    assert "this customer was evaluated before" in again


def test_error_of_a_response_has_its_status_and_attempts() -> None:
    error = errors.SystemFaultError(*SERVICE)
    assert (error.status, error.attempts, error.stopped_by) == (400, 2, "attempts")
    assert errors.UnexpectedResponseError("approve", (), "unknown", META).status == 400


def test_pickled_error_keeps_all_fields_of_its_problems() -> None:
    """Problems with other codes are equal, so the test of equality does not compare them."""
    problem = Problem("email", "email", "is taken", "email.taken", {"least": 3}, "call us")
    again = pickle.loads(pickle.dumps(errors.InvalidRequestError((problem,))))  # noqa: S301  (our own bytes)
    assert attrs.astuple(again.problems[0]) == attrs.astuple(problem)
    assert str(again).endswith("email: is taken; call us")
