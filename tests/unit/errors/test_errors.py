"""The public errors: `outcome`, `repeatable`, messages, copies, and the page that a shop shows after each."""

import copy
import pickle
import re
from typing import Any, get_args

import attrs
import pytest

import loanasync
from errors_page import ROWS, for_operation
from loanasync import LoanError, Meta, Problem, errors
from loanasync._models.decisions import OTHER_ORDER
from loanasync._models.texts import Advice
from loanasync.errors import Outcome

META = Meta(status=400, attempts=2, elapsed=0.5, trace_id="0" * 32, request_id="r-1", entry="c0ffee")
PROBLEMS = (Problem("email", "email", "is taken"),)
SERVICE = ("approve", PROBLEMS, META)
ENTRY = ("approve", "0123456789abcdef" * 4)
RESPONSE = loanasync.RawResponse(502, b'{"email":"anna@example.com"}')
DECISION = loanasync.Refused(email="anna@example.com", meta=META)


def service(kind: type[errors.ServiceError], status: int, attempts: int = 1, **meta: Any) -> LoanError:
    return kind("approve", PROBLEMS, attrs.evolve(META, status=status, attempts=attempts, **meta))


def unexpected(outcome: Any, problems: tuple[Problem, ...] = ()) -> LoanError:
    return errors.UnexpectedResponseError("approve", ("body: empty",), outcome, META, problems, RESPONSE)


PROVING: list[tuple[type[errors.ServiceError], int]] = [  # unless an earlier attempt has failed
    (errors.RejectedError, 400), (errors.UserNotFoundError, 400), (errors.ShopNotAllowedError, 400),
    (errors.InvalidFiscalCodeError, 400), (errors.AccessDeniedError, 403),
    (errors.UnexpectedStatusError, 404), (errors.UnexpectedStatusError, 429),
]  # fmt: skip
NOT_PROVING: list[tuple[type[errors.ServiceError], int]] = [
    (errors.ServiceError, 400), (errors.DomainError, 400), (errors.AlreadyEvaluatedError, 400),
    (errors.CannotCompleteError, 409), (errors.SystemFaultError, 500),
    *((errors.UnexpectedStatusError, status) for status in (303, 408, 502)),
]  # fmt: skip
WITHOUT_RESPONSE: list[type[errors.TransportError]] = [
    errors.TransportError, errors.ConnectError, errors.PoolTimeoutError, errors.ReadTimeoutError,
    errors.ConnectionLostError, errors.DeadlineExceededError,
]  # fmt: skip
# Errors by their outcome.
TABLE: dict[Outcome, list[LoanError]] = {
    "not_sent": [
        errors.InvalidRequestError(PROBLEMS, "approve"),
        errors.ConfigurationError("shop_id", "must be given"),
        errors.ClientClosedError(),
        errors.CircuitOpenError("approve", 12.5),
        errors.CircuitOpenError("approve", 0, "c0ffee"),
        *(kind("approve", "TimeoutError", "not_sent", 1, "0" * 32, "c0ffee") for kind in WITHOUT_RESPONSE),
        errors.LedgerError(*ENTRY),
        errors.LedgerUnavailableError(*ENTRY, "OSError"),
        errors.LedgerMismatchError(*ENTRY, "decisions.db", "has another key: set LOANASYNC_LEDGER_KEY"),
    ],
    "not_evaluated": [service(*row) for row in PROVING],
    "unknown": [
        *(service(*row, attempts=2) for row in PROVING),
        *(service(*row, after_unknown=True) for row in PROVING),
        *(service(*row, attempts=attempts) for row in NOT_PROVING for attempts in (1, 2)),
        errors.AlreadyEvaluatedError(*SERVICE, after_retry=True),
        errors.SystemFaultError(*SERVICE, stopped_by="quota"),
        errors.UnexpectedStatusError(*SERVICE, response=RESPONSE),
        unexpected("unknown"),
        unexpected("unknown", PROBLEMS),
        *(kind("approve", "ServerDisconnectedError", "unknown", 1) for kind in WITHOUT_RESPONSE),
        errors.InFlightError(*ENTRY),
        errors.DecisionForgottenError(*ENTRY, "unknown"),
        *(errors.OutcomeUnknownError(*ENTRY, state, "by mail") for state in get_args(errors.UnresolvedState)),
        *(errors.PayloadMismatchError(*ENTRY, state) for state in ("inflight", "unknown", "lost", "held")),
        *(
            errors.NotResolvedError(*ENTRY, state, "refused")
            for state in ("missing", "ambiguous", "inflight", "unknown", "released")
        ),
    ],
    "approved": [
        errors.DecisionForgottenError(*ENTRY, "approved"),
        errors.PayloadMismatchError(*ENTRY, "approved"),
        errors.NotResolvedError(*ENTRY, "approved", "refused"),
        errors.DecisionNotRecordedError(*ENTRY, "approved", DECISION, None, "OSError"),
    ],
    "refused": [
        errors.DecisionForgottenError(*ENTRY, "refused"),
        errors.PayloadMismatchError(*ENTRY, "refused"),
        errors.NotResolvedError(*ENTRY, "refused", "approved"),
        errors.DecisionNotRecordedError(*ENTRY, "refused", DECISION, "/var/spool/one.json", "OSError"),
    ],
    "done": [unexpected("done")],
}
EXAMPLES = [error for found in TABLE.values() for error in found]
REPEATABLE = (errors.CircuitOpenError, errors.LedgerUnavailableError, *WITHOUT_RESPONSE)


@pytest.mark.parametrize("outcome", get_args(Outcome))
def test_error_has_its_outcome_and_repeatable(outcome: Outcome) -> None:
    """A program may only repeat a call that was not sent."""
    for error in TABLE[outcome]:
        assert error.outcome == outcome, type(error)
        assert error.repeatable is (outcome == "not_sent" and isinstance(error, REPEATABLE)), type(error)


def test_examples_include_every_public_error() -> None:
    assert {type(error).__name__ for error in EXAMPLES} | {"LoanError"} == set(errors.__all__)


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_error_is_copied_pickled_and_rebuilt_from_its_args(error: errors.LoanError) -> None:
    pickled = pickle.loads(pickle.dumps(error))  # noqa: S301  (our own bytes)
    for again in (pickled, copy.copy(error), copy.deepcopy(error)):
        assert again == error == type(error)(*error.args)
        assert (vars(again), hash(again), str(again)) == (vars(error), hash(error), str(error))
    assert error not in [each for each in EXAMPLES if type(each) is not type(error)]


@pytest.mark.parametrize(
    ("error", "entry"),
    [
        (service(errors.RejectedError, 400), "c0ffee"),
        (unexpected("unknown"), "c0ffee"),
        (errors.InFlightError(*ENTRY), ENTRY[1]),
        (errors.InFlightError("approve", ""), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_error_has_the_entry_of_its_call(error: LoanError, entry: str | None) -> None:
    assert error.entry == entry


MAY_BE_REPEATED = "the call may be repeated$|repair the ledger, then repeat the call$"
DECIDED = (
    "before with other data .*; repeat the call with the data and the order_id|"
    "look it up at the service, and use|"
    "(import it with|store error.decision).*; do not request approval again$|look at the entry with"
)
# The advice in the message of an error, by its outcome.
ADVICE: dict[Outcome, str] = {
    "not_sent": (
        f"{MAY_BE_REPEATED}|following: email: is taken$|must be given$|create a new LoanClient|"
        "check the entry|request not sent$"
    ),
    "not_evaluated": (
        "correct these fields, then|(check|ask) (the fiscal code|the service|the customer|shop_id|base_url)"
    ),
    "unknown": (
        "ask (it|the service) for (it|its decision|the outcome)|call again later$|see the problems|"
        "check the fiscal code|pass the order_id|customer --as released$|"
        "wait for that request, then repeat the call with its data$"
    ),
    "done": "do not repeat it$",
    "approved": DECIDED,
    "refused": DECIDED,
}


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_error_message_has_the_advice_for_its_outcome(error: errors.LoanError) -> None:
    text = str(error)
    assert re.search(ADVICE[error.outcome], text), text
    assert bool(re.search(MAY_BE_REPEATED, text)) is error.repeatable, text
    assert "\n" not in text
    assert repr(error).startswith(type(error).__name__ + "(")
    assert "anna" not in repr(error) + text


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


def responded(kind: Any, operation: str, status: int = 400, attempts: int = 1) -> LoanError:
    error: LoanError = kind(operation, (), Meta(status, attempts, 0.1))
    return error


EVALUATED, STATUS = errors.AlreadyEvaluatedError, errors.UnexpectedStatusError
EVALUATION = "may have evaluated the customer"
AFTER_500 = f"an earlier attempt of this call failed with status 500 and {EVALUATION}; "
OTHER_CALLS = ("create_request", "upload_documents", "complete")
NOT_SENT = "request not sent; the call may be repeated"
NOT_AGAIN = "do not request approval again"
ASK_BEFORE = "for the outcome before repeating the call"


@pytest.mark.parametrize(
    ("error", "ending"),
    [
        (errors.ConnectError("approve", "x", "not_sent", 1), NOT_SENT),
        (errors.CircuitOpenError("approve", 12.1), "after 13 s the call may be repeated"),
        (
            errors.ReadTimeoutError("approve", "program: ZeroDivisionError", "unknown", 1),
            f"(program: ZeroDivisionError): the service may have received the request; ask it {ASK_BEFORE}",
        ),
        *(
            (
                errors.ConnectError("approve", f"ClientConnectorCertificateError: {cause}", "not_sent", 1),
                f"{said} (ClientConnectorCertificateError: {cause}): {NOT_SENT}",
            )
            for cause, said in (
                ("wrong host", "certificate is for another host; check base_url"),
                ("basic constraints", "breaks a rule; ask the service for a correct one"),
            )
        ),
        *(
            (errors.ConnectError("approve", cause, "not_sent", 1), f"check proxy{rest} ({cause}): {NOT_SENT}")
            for cause, rest in (
                ("ClientHttpProxyError status 407", ""),
                ("ClientProxyConnectionError errno 111", " and the network"),
            )
        ),
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
        (
            responded(errors.SystemFaultError, "approve", 500, attempts=3),
            f"gave up after 3 attempts, stopped by attempts; the service {EVALUATION}; ask it {ASK_BEFORE}",
        ),
        (
            errors.OutcomeUnknownError(*ENTRY, "lost", OTHER_ORDER),
            "this customer was evaluated for another order; request not sent",
        ),
        *(
            (
                errors.DecisionNotRecordedError(*ENTRY, "refused", DECISION, file, "x"),
                f"{advice}; {NOT_AGAIN}",
            )
            for file, advice in (("a", "import it with import_orphans"), (None, "it is the only copy"))
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_error_message_ends_with_the_next_step(error: errors.LoanError, ending: str) -> None:
    assert str(error).endswith(ending)


@pytest.mark.parametrize("operation", OTHER_CALLS)
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


# The page that a shop shows after an error: `advice` and `text`.


@pytest.mark.parametrize("operation", OTHER_CALLS)
def test_lost_response_of_other_calls_is_not_a_lost_decision(operation: str) -> None:
    lost: list[LoanError] = [
        errors.ConnectionLostError(operation, "ConnectionLostError", "unknown", 1),
        errors.ReadTimeoutError(operation, "ConnectionLostError", "unknown", 1),
        errors.DeadlineExceededError(operation, "ConnectionLostError", "unknown", 1),
        responded(errors.SystemFaultError, operation, 500),
        responded(errors.UnexpectedStatusError, operation, 502),
        errors.UnexpectedResponseError(operation, (), "unknown", Meta(201, 1, 0.1)),
    ]
    assert {error.advice for error in lost} == {"try_later"}
    assert "decision" not in "".join(error.text() for error in lost)


CORRECTABLE = (errors.RejectedError, errors.UserNotFoundError)
MISMATCH, LATE = errors.PayloadMismatchError, ("approve", "TimeoutError", "unknown", 1)


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        *((MISMATCH(*ENTRY, state), "ask_service") for state in ("unknown", "lost", "held")),
        *((MISMATCH(*ENTRY, state), "other_data") for state in ("inflight", "approved", "refused")),
        (responded(errors.UnexpectedStatusError, "approve", 429), "try_later"),
        (responded(errors.UnexpectedStatusError, "approve", 429, attempts=2), "ask_service"),
        *((responded(kind, "approve"), "correct_form") for kind in CORRECTABLE),
        *((responded(kind, "approve", attempts=2), "ask_service") for kind in CORRECTABLE),
        *((responded(kind, "complete", attempts=2), "correct_form") for kind in CORRECTABLE),
        *((responded(errors.UnexpectedStatusError, "complete", code), "ask_service") for code in (302, 409)),
        (errors.DeadlineExceededError(*LATE, entry="c0ffee"), "wait"),  # type: ignore[arg-type]
        (errors.DeadlineExceededError(*LATE), "ask_service"),  # type: ignore[arg-type]
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_advice_depends_on_state_attempts_and_ledger(error: LoanError, advice: str) -> None:
    assert error.advice == advice


def test_every_error_has_a_page_and_a_text_in_each_language() -> None:
    shown: dict[str, set[str]] = {}
    for row in ROWS:
        for operation in ("approve", *OTHER_CALLS):
            for error in for_operation(row, operation):
                texts = {error.text("en"), error.text("it-IT")}
                assert len(texts) == 2
                assert all(text.endswith(".") and text not in str(error) for text in texts)
                shown.setdefault(error.advice, set()).add(error.text("en"))
    assert shown.keys() == set(get_args(Advice))
    assert sum(map(len, shown.values())) > len(shown)
