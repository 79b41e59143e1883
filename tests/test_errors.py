import pickle
import re
from typing import Any

import pytest

import loanasync
from loanasync import Meta, Problem, errors

META = Meta(status=400, attempts=2, elapsed=0.5, trace_id="0" * 32)
PROBLEMS = (Problem("email", "email", "is taken"),)
SERVICE = ("approve", PROBLEMS, META)
TRANSPORT = ("approve", "ServerDisconnectedError", "maybe", 1)
ENTRY = ("approve", "0123456789abcdef" * 4)
DECISION = loanasync.Refused(amount=45_000, meta=META)

EXAMPLES: list[errors.LoanError] = [
    errors.InvalidRequestError(PROBLEMS),
    errors.ConfigurationError("shop_id", "must be given"),
    errors.ClientClosedError(),
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
    errors.UnexpectedReplyError("approve", ("body: empty",), "approved", META),
    errors.UnexpectedReplyError("approve", ("body: empty",), "refused", META),
    errors.UnexpectedReplyError("approve", ("body: empty",), "unknown", META),
    errors.TransportError(*TRANSPORT),  # type: ignore[arg-type]
    errors.ConnectError("approve", "ClientConnectorError errno 111", "no", 1),
    errors.PoolTimeoutError("approve", "TimeoutError", "no", 0),
    errors.ReadTimeoutError(*TRANSPORT),  # type: ignore[arg-type]
    errors.ConnectionLostError(*TRANSPORT),  # type: ignore[arg-type]
    errors.DeadlineExceededError(*TRANSPORT),  # type: ignore[arg-type]
    errors.LedgerError(*ENTRY),
    errors.LedgerUnavailableError(*ENTRY, "OperationalError"),
    errors.InFlightError(*ENTRY),
    errors.OutcomeUnknownError(*ENTRY, "unknown", "ReadTimeoutError"),
    errors.OutcomeUnknownError(*ENTRY, "lost", ""),
    errors.OutcomeUnknownError(*ENTRY, "held", "asked by mail"),
    errors.PayloadMismatchError(*ENTRY, "approved"),
    errors.DecisionNotRecordedError(
        *ENTRY, "refused", DECISION, "/var/spool/shop/one.json", "OperationalError"
    ),
    errors.DecisionNotRecordedError(*ENTRY, "approved", None, None, "OperationalError"),
]


def test_every_public_error_has_an_example_here() -> None:
    assert {type(error).__name__ for error in EXAMPLES} | {"LoanError"} == set(errors.__all__)


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_survives_pickling_and_is_rebuilt_from_its_args(error: errors.LoanError) -> None:
    again = pickle.loads(pickle.dumps(error))  # noqa: S301  (our own bytes)
    assert again == error == type(error)(*error.args)
    assert (vars(again), hash(again), str(again)) == (vars(error), hash(error), str(error))
    assert error != errors.ConfigurationError("other", "error")


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_says_what_to_do(error: errors.LoanError) -> None:
    advice = "mend|must|make|check|ask|repeat|settle|call|allow|let|see|final"
    assert re.search(rf"\b({advice})\b", str(error)), str(error)
    assert "\n" not in str(error)
    assert repr(error).startswith(type(error).__name__ + "(")


@pytest.mark.parametrize("name", errors.__all__)
def test_an_errors_docstring_tells_when_it_comes(name: str) -> None:
    kind: Any = getattr(errors, name)
    assert getattr(loanasync, name) is kind
    assert kind.__doc__ is not None
    assert len(kind.__doc__) > 40


def test_the_drawn_tree_is_the_tree() -> None:
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


def test_after_a_fault_already_evaluated_gives_other_advice() -> None:
    plain, after = (errors.AlreadyEvaluatedError(*SERVICE, after_retry=each) for each in (False, True))
    assert "do not ask again" in str(plain)
    assert "its decision did not arrive" in str(after)
    assert plain != after


def test_what_was_surely_not_sent_may_be_repeated() -> None:
    assert "nothing was sent" in str(errors.ConnectError("approve", "x", "no", 1))
    assert "may have reached the service" in str(errors.ConnectError("approve", "x", "maybe", 2))


def test_service_errors_tell_status_and_attempts() -> None:
    error = errors.SystemFaultError(*SERVICE)
    assert (error.status, error.attempts, error.stopped_by) == (400, 2, "attempts")
    assert errors.UnexpectedReplyError("approve", (), "unknown", META).status == 400


@pytest.mark.parametrize(
    ("status", "told"), [(202, True), (204, True), (301, False), (429, False), (502, True), (504, True)]
)
def test_a_gateways_error_tells_that_the_call_may_have_been_carried_out(status: int, *, told: bool) -> None:
    error = errors.UnexpectedStatusError("approve", (), Meta(status, 1, 0.1))
    assert ("settle its outcome before repeating it" in str(error)) is told
