"""Error responses to `approve`: which of them prove that the customer was not evaluated (spec §7)."""

import pytest

from loanasync import (
    AlreadyEvaluatedError,
    DomainError,
    InvalidFiscalCodeError,
    Problem,
    RawResponse,
    RejectedError,
    ShopNotAllowedError,
    UnexpectedResponseError,
    UserNotFoundError,
)
from loanasync._protocol import endpoints
from loanasync._runtime.guard import state_of
from loanasync.ledger import State
from support.builders import approval_request
from support.response_reader import APPROVE, COMPLETE, CREATE, DOCUMENTS, SHOP, STREET, errors, read

BLANK = "This value should not be blank."
RELEASED, UNKNOWN, LOST = State.RELEASED, State.UNKNOWN, State.LOST


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


def test_rejection_of_an_extra_field_is_released() -> None:
    call = endpoints.APPROVE.call(SHOP, STREET, "TSTXYZ00A00A000A", approval_request(extra={"coupon": "x"}))
    assert type(read(call, 400, errors(coupon=["is used"]))) is RejectedError
    assert type(read(APPROVE, 400, errors(coupon=["is used"]))) is UnexpectedResponseError


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
    spaced = f"  {text.replace(' ', '  ')}\n"
    for wording in (bare, f"{bare}.", text.upper(), text.lower(), spaced, f"{bare} "):
        for messages in ([wording], wording):
            error = read(APPROVE, 400, errors(domain=messages))
            assert type(error) is error_class, wording
            assert state(400, errors(domain=messages)) is RELEASED
            assert state(400, errors(domain=messages), attempts=2) is UNKNOWN
    assert state(400, {"errors": {"Domain": [text]}}) is RELEASED
    assert state(400, errors(domain=[text, text])) is UNKNOWN


@pytest.mark.parametrize(
    "text",
    ["Utilisateur déjà évalué", "Usuario ya evaluado", "Benutzer bereits bewertet", "Utente gia esaminato"],
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
    assert (other.problems[0].field, other.problems[0].wire_name) == ("fiscal_code", "domain")


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
