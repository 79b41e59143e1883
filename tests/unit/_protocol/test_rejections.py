"""Error responses to `approve`: which of them prove that the customer was not evaluated (spec §7)."""

import json
from typing import Any

import pytest

from loanasync import (
    AccessDeniedError,
    AlreadyEvaluatedError,
    CannotCompleteError,
    DomainError,
    InvalidFiscalCodeError,
    Problem,
    RawResponse,
    RejectedError,
    ServiceError,
    ShopNotAllowedError,
    SystemFaultError,
    UnexpectedResponseError,
    UnexpectedStatusError,
    UserNotFoundError,
)
from loanasync._protocol import endpoints
from loanasync._runtime.guard import state_of
from loanasync.ledger import State
from support.builders import approval_request
from support.response_reader import APPROVE, COMPLETE, CREATE, DOCUMENTS, SHOP, STREET, errors, read

BLANK = "This value should not be blank."
RELEASED, UNKNOWN, LOST = State.RELEASED, State.UNKNOWN, State.LOST
MAYBE_PROCESSED = [
    *(100, 101, 200, 202, 203, 204, 206, 299, 300, 302, 303, 304, 305, 402, 406, 408, 412, 416, 418),
    *(423, 424, 425, 451, 499, 501, 502, 503, 504, 507, 511, 520, 599, 999),
]


def state(status: int, body: object, *, attempts: int = 1, fault: str | None = None) -> State:
    """Return the ledger state after a response, and check that the outcome of the error matches."""
    error = read(APPROVE, status, body, attempts=attempts, fault=fault)
    found = State(state_of(error))
    assert (error.outcome == "not_evaluated") is (found is RELEASED)
    assert error.outcome in ("not_evaluated", "unknown")
    assert error.repeatable is False
    repeated = read(APPROVE, status, body, attempts=attempts, fault=fault, after_unknown=True)
    takeover = State(state_of(repeated))
    assert takeover is (LOST if found is LOST else UNKNOWN), "an earlier request may have been evaluated"
    return found


@pytest.mark.parametrize("status", MAYBE_PROCESSED)
def test_status_other_is_unknown(status: int) -> None:
    error = read(APPROVE, status, b"<html>")
    assert type(error) is UnexpectedStatusError
    assert error.response == RawResponse(status, b"<html>")
    assert "ask it for the outcome before repeating the call" in str(error)
    assert state(status, b"<html>") is UNKNOWN


@pytest.mark.parametrize(
    ("status", "error_class", "expected"),
    [
        (403, AccessDeniedError, RELEASED),
        (409, CannotCompleteError, UNKNOWN),
        (500, SystemFaultError, UNKNOWN),
    ],
)
def test_status_with_a_class_is_released_or_unknown(
    status: int, error_class: type[ServiceError], expected: State
) -> None:
    for body in (b"", b"<html>", b'{"error":"Access denied"}', b'{"errors":"no"}'):
        assert type(read(APPROVE, status, body)) is error_class
        assert state(status, body) is expected
        assert state(status, body, fault="truncated") is UNKNOWN  # the rest may contain a decision
        assert state(status, body, attempts=2) is UNKNOWN


@pytest.mark.parametrize(
    "content",
    [
        {"lastname": [BLANK]},
        {"lastname": BLANK},
        {"lastname": [BLANK, BLANK], "streetNumber": [BLANK], "civicNumber": [BLANK]},
        {"installments": ["too few"]},
        {"fiscalCode": ["Invalid fiscal code"]},
        {
            "actualJobEndingDate": ["Invalid date format"],
            "privacy": ["This value should be equal to 'true'."],
        },
        {"residenceStartDate": [BLANK], "salary": [BLANK]},
        {"city": ["il dominio non esiste"]},
    ],
    ids=str,
)
def test_rejection_of_known_fields_is_released(content: dict[str, Any]) -> None:
    assert type(read(APPROVE, 400, {"errors": content})) is RejectedError
    assert state(400, {"errors": content}) is RELEASED


def test_rejection_after_an_earlier_attempt_is_unknown() -> None:
    error = read(APPROVE, 400, errors(lastname=[BLANK]), attempts=2)
    assert type(error) is RejectedError
    assert "failed with status 500 and may have evaluated the customer" in str(error)
    assert state(400, errors(lastname=[BLANK]), attempts=2) is UNKNOWN


def test_rejection_of_an_extra_field_is_released() -> None:
    call = endpoints.APPROVE.call(SHOP, STREET, "TSTXYZ00A00A000A", approval_request(extra={"coupon": "x"}))
    assert type(read(call, 400, errors(coupon=["is used"]))) is RejectedError
    assert type(read(APPROVE, 400, errors(coupon=["is used"]))) is UnexpectedResponseError


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        {},
        {"errors": {}},
        {"errors": []},
        {"errors": None},
        {"errors": 5},
        {"errors": "The request is wrong"},
        {"errors": ["The request is wrong"]},
        {"error": "The request is wrong"},
        {"error": {"lastname": [BLANK]}},
        {"lastname": [BLANK]},
        {"errors": {"newField": [BLANK]}},
        {"errors": {"lastname": [BLANK], "newField": [BLANK]}},
        {"errors": {"": [BLANK]}},
        {"errors": {"customer": ["is not new"]}},
        {"errors": {"system": ["System error"]}},
        {"errors": {"documentCity": [BLANK]}},
        {"errors": {"lastname": []}},
        {"errors": {"lastname": None}},
        {"errors": {"lastname": [" "]}},
        {"errors": {"lastname": [BLANK, 5]}},
        {"errors": {"lastname": {"blank": BLANK}}},
        {"errors": {"lastname": [BLANK]}, "domain": ["User not found"]},
        {"errors": {"lastname": [BLANK]}, "message": "The customer was evaluated"},
        {"errors": {"domain": ["User not found"]}, "message": "The customer was evaluated"},
    ],
    ids=str,
)
def test_rejection_of_another_shape_is_unknown(body: object) -> None:
    error = read(APPROVE, 400, body)
    assert type(error) is UnexpectedResponseError
    received = body if isinstance(body, bytes) else json.dumps(body).encode()
    assert error.response == RawResponse(400, received)
    assert state(400, body) is UNKNOWN


def test_rejection_truncated_is_unknown() -> None:
    for fault in ("truncated", "timed out", "too large"):
        error = read(APPROVE, 400, errors(lastname=[BLANK]), fault=fault)
        assert (type(error), error.reasons) == (UnexpectedResponseError, (f"body: {fault}",))
        assert state(400, errors(lastname=[BLANK]), fault=fault) is UNKNOWN


def test_rejection_of_another_shape_keeps_its_problems() -> None:
    error = read(APPROVE, 400, {"errors": {"lastname": [BLANK], "newField": 5}})
    assert error.problems == (
        Problem("last_name", "lastname", BLANK),
        Problem("newField", "newField", "is not accepted"),
    )


@pytest.mark.parametrize(
    ("text", "error_class"),
    [
        ("User not found", UserNotFoundError),
        ("This sales point cannot apply for a loan", ShopNotAllowedError),
        ("Invalid fiscalCode.", InvalidFiscalCodeError),
    ],
)
def test_domain_text_of_the_specification_is_released(text: str, error_class: type[DomainError]) -> None:
    """Case, whitespace and a final full stop are ignored."""
    bare = text.removesuffix(".")
    for wording in (
        bare,
        f"{bare}.",
        text.upper(),
        text.lower(),
        f"  {text.replace(' ', '  ')}\n",
        f"{bare} ",
    ):
        for messages in ([wording], wording):
            error = read(APPROVE, 400, errors(domain=messages))
            assert type(error) is error_class, wording
            assert state(400, errors(domain=messages)) is RELEASED
            assert state(400, errors(domain=messages), attempts=2) is UNKNOWN
    assert state(400, {"errors": {"Domain": [text]}}) is RELEASED
    assert state(400, errors(domain=[text, text])) is UNKNOWN


@pytest.mark.parametrize(
    "text",
    [
        "Utente non trovato",
        "User not found!",
        "User not found..",
        "User not found: evaluated elsewhere",
        "The user not found",
        "Invalid fiscal code",
        "Codice fiscale non valido",
        "This sales point can not apply for a loan",
        "Something new",
    ],
)
def test_domain_text_of_another_wording_is_unknown(text: str) -> None:
    assert type(read(APPROVE, 400, errors(domain=[text]))) is DomainError
    assert state(400, errors(domain=[text])) is UNKNOWN


def test_domain_error_is_not_a_rejected_error() -> None:
    assert not issubclass(DomainError, RejectedError)
    assert issubclass(DomainError, ServiceError)


@pytest.mark.parametrize(
    "text",
    [
        "User already evaluated for approval",
        "User already evaluated for approval.",
        "USER ALREADY EVALUATED",
        "The user has already been evaluated",
        "This customer was evaluated already",
        "Already  evaluated:\nsee the earlier request",
        "Evaluation already done",
        "Utente già valutato",
        "L'utente è gia' stato valutato",
        "Utente gia valutato",
        "Utente gia\u0300 valutato",
    ],
)
@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 429, 502])
def test_already_evaluated_in_any_wording_is_lost(status: int, text: str) -> None:
    for content in (
        {"domain": [text]},
        {"domain": text},
        {"domain": ["User not found", text]},
        {"fiscalCode": [text]},
        {"newField": [BLANK, text]},
        {"lastname": [BLANK], "domain": [text]},
        text,
    ):
        error = read(APPROVE, status, {"errors": content})
        assert type(error) is AlreadyEvaluatedError
        assert [each.message for each in error.problems][-1] == " ".join(text.split())
        assert state(status, {"errors": content}) is LOST
        assert state(status, {"errors": content}, attempts=2) is LOST
    assert state(status, {"error": text}) is LOST


@pytest.mark.parametrize(
    "text",
    [
        "Utilisateur déjà évalué",
        "Usuario ya evaluado",
        "Benutzer bereits bewertet",
        "Utente gia esaminato",
        "User previously assessed",
    ],
)
def test_already_evaluated_in_an_unknown_language_is_not_released(text: str) -> None:
    for status in (400, 409):
        for content in ({"domain": [text]}, {"customer": [text]}, text):
            assert state(status, {"errors": content}) is UNKNOWN


def test_already_evaluated_after_the_message_limit_is_not_released() -> None:
    """Only 100 messages of 5000 characters are read; the rest could mean "already evaluated"."""
    text = "User already evaluated"
    assert state(400, errors(lastname=[BLANK] * 99 + [text])) is LOST
    for messages in ([BLANK] * 100 + [text], [f"{BLANK}{' ' * 5000}{text}"]):
        assert state(400, errors(lastname=messages)) is not RELEASED
        assert state(400, errors(domain=messages)) is not RELEASED


def test_already_evaluated_in_a_repeated_name_is_lost() -> None:
    """`decode` only keeps the last value of a repeated name."""
    body = b'{"error": "User already evaluated", "error": "Access denied"}'
    for status in (400, 403, 404, 409):
        assert state(status, body) is LOST
    rejection = b'{"errors": {"city": ["no"], "city": ["no"]}}'
    error = read(APPROVE, 400, rejection)
    assert (type(error), error.response) == (UnexpectedResponseError, RawResponse(400, rejection))
    assert read(COMPLETE, 400, rejection).outcome == "unknown"


@pytest.mark.parametrize(("attempts", "after_retry"), [(1, False), (2, True)])
def test_already_evaluated_has_after_retry(attempts: int, *, after_retry: bool) -> None:
    for status in (400, 409):
        error = read(APPROVE, status, errors(domain=["User already evaluated"]), attempts=attempts)
        assert isinstance(error, AlreadyEvaluatedError)
        assert error.after_retry is after_retry


def test_invalid_fiscal_code_has_its_problem_at_the_field() -> None:
    """Spec §7 lists it as a validation error and as a domain error."""
    validation = read(APPROVE, 400, errors(fiscalCode=["Invalid fiscal code"]))
    domain = read(APPROVE, 400, errors(domain=["Invalid fiscalCode."]))
    assert validation.problems == (Problem("fiscal_code", "fiscalCode", "Invalid fiscal code"),)
    assert domain.problems == (Problem("fiscal_code", "domain", "Invalid fiscalCode."),)
    for call in (COMPLETE, DOCUMENTS):
        assert read(call, 400, errors(domain=["Invalid fiscalCode."])).problems[0].field == "fiscal_code"
    for call in (APPROVE, COMPLETE):
        (problem,) = read(call, 400, errors(domain=["Codice fiscale non valido"])).problems
        assert (problem.field, problem.code) == ("fiscal_code", "fiscal_code.format")
    other = read(APPROVE, 400, errors(domain=["User not found"]))
    assert other.problems[0].field == "domain"


def test_other_calls_accept_fields_of_any_name_and_language() -> None:
    """Other calls do not evaluate a customer, and messages of a completion may be localized (spec §7)."""
    for call in (COMPLETE, CREATE, DOCUMENTS):
        for name in ("documentCity", "newField"):
            error = read(call, 400, errors(**{name: ["Questo valore non dovrebbe essere vuoto."]}))
            assert (type(error), error.outcome) == (RejectedError, "not_evaluated")
        for texts in (["Something new"], ["User not found", "Something new"], ["The user not found"]):
            assert read(call, 400, errors(domain=texts)).outcome == "unknown"
        assert read(call, 400, errors(domain=["User not found"], city=["no"])).outcome == "unknown"
        assert read(call, 400, {**errors(city=["no"]), "message": "saved"}).outcome == "unknown"


@pytest.mark.parametrize("depth", [100, 900, 985, 1_010, 1_100, 20_000])
@pytest.mark.parametrize(
    "body", [b'{"errors":{"domain":%s}}', b'{"errors":%s}', b'{"errors":{"city":["no"]},"x":%s}']
)
def test_rejection_of_any_depth_is_unknown(body: bytes, depth: int) -> None:
    for nested in (b"[" * depth + b"]" * depth, b'{"a":' * depth + b"1" + b"}" * depth):
        for call in (APPROVE, COMPLETE, CREATE, DOCUMENTS):
            assert read(call, 400, body % nested).outcome == "unknown"
