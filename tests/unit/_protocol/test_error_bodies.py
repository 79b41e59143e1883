"""Error bodies (spec §7): their problems, and which of them prove that the customer was not evaluated."""

from typing import Literal
from unicodedata import normalize

import pytest

from loanasync import Problem, RawResponse, errors
from loanasync._protocol import echo, endpoints
from loanasync._protocol import error_bodies as problems
from loanasync._protocol.error_bodies import claim_in, error_class, read_problems
from loanasync._runtime.guard import state_of
from loanasync.ledger import State
from support.builders import approval_request
from support.line_count import lines_run
from support.response_reader import APPROVE, COMPLETE, CREATE, DOCUMENTS, call_of, error_body, read

SHOWN, NAMED, MANY = 300, 60, 100


def test_message_and_name_are_truncated_at_their_limits() -> None:
    body = {
        "n" * NAMED: "x" * SHOWN,
        "m" * (NAMED + 1): "y" * (SHOWN + 1),
        "city": "line\nbreak\x1b[31m" + "z" * 100_000,
    }
    assert [(each.wire_name, each.message) for each in read_problems({"errors": body})] == [
        ("n" * NAMED, "x" * SHOWN),
        ("m" * (NAMED - 1) + "…", "y" * (SHOWN - 1) + "…"),
        ("city", "line break [31m".ljust(SHOWN - 1, "z") + "…"),
    ]
    for count in (MANY, MANY + 1):
        assert len(read_problems({"errors": {"city": ["x"] * count}})) == MANY


def test_claim_in_twice_the_text_is_twice_the_work() -> None:
    def read(text: str, count: int) -> int:
        return lines_run(lambda: claim_in({"errors": [text * count]}))

    for text in ("already ", "evaluated ", "gia ", "valutato "):
        assert read(text, 2_000) < 2.2 * read(text, 1_000)


@pytest.mark.parametrize(
    "body",
    [
        {"errors": ["User already evaluated"]},
        {"errors": {"domain": {"text": "User already evaluated"}}},
        {"message": "User already evaluated"},
        {"code": "USER_ALREADY_EVALUATED"},
        {"errors": {"userAlreadyEvaluated": ["no"]}},
        [[[["the user was evaluated on the first of May at half past ten, and already answered"]]]],
        "<p>User already&nbsp;evaluated</p>",
        {"errors": {"domain": ["Utente gi&agrave; valutato"]}},
        {"errors": {"domain": ["x" * 100_000 + " User already evaluated"]}},
        {"errors": {"domain": ["x"] * 10_000 + ["User already evaluated"]}},
    ],
    ids=lambda body: str(body)[:40],
)
def test_already_evaluated_is_found_anywhere_in_the_body(body: object) -> None:
    assert claim_in(body) == "evaluated"


@pytest.mark.parametrize(
    "text", ["evaluated", "already", "valutato gia", "Borgia valutato", "already " + "x" * 80 + " evaluated"]
)
def test_already_evaluated_needs_both_words_near_each_other(text: str) -> None:
    assert claim_in(text) == ""


@pytest.mark.parametrize(
    "body",
    [{"data": {"approved": False}}, {"message": '{"approved": true}'}, {"message": '{"approved": '}],
)
def test_decision_in_a_member_or_a_text_is_a_claim(body: object) -> None:
    assert claim_in(body) == "decided"


def test_already_evaluated_at_a_field_is_not_a_rejection() -> None:
    evaluated, rejected = ({"errors": {"city": text}} for text in ("already evaluat", "evaluated"))
    assert error_class(errors.RejectedError, evaluated, None, is_proof=True) is errors.AlreadyEvaluatedError
    assert error_class(errors.RejectedError, rejected, None, is_proof=True) is errors.RejectedError


@pytest.mark.parametrize("character", ["\ufdfa", "\ufdfb", "\u3302", "\ufb04"])
def test_normalized_texts_have_a_bounded_size(character: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFKC replaces one Arabic ligature by eighteen characters; a long text would block the event loop."""
    sizes = [0]

    def counted_normalize(form: Literal["NFKC"], text: str) -> str:
        plain = normalize(form, text)
        sizes.append(len(plain))
        return plain

    monkeypatch.setattr(problems, "normalize", counted_normalize)
    monkeypatch.setattr(echo, "normalize", counted_normalize)
    text = character * 20_000
    assert claim_in(text) == ""
    assert claim_in(f"{text} already evaluated") == "evaluated"
    assert echo.belongs_to_another_customer(text, "TSTXYZ00A00A000A")
    assert max(sizes) < 6 * len(text)


@pytest.mark.parametrize(
    ("name", "message", "code"),
    [
        ("postalCode", "This value should not be blank.", "postal_code.blank"),
        ("postalCode", " this VALUE should not  be blank", "postal_code.blank"),
        ("amount", "This value should be between 5000 and 1500000", "amount.range"),
        ("amount", "This value should be between 5000 and 9000", "amount.rejected"),
        ("installments", "The number of installments must be between 3 and 60", "instalments.range"),
        ("citizenship", "This value should be one of the available options.", "citizenship.choice"),
        ("fiscalCode", "Invalid fiscal code", "fiscal_code.format"),
        ("actualJobEndingDate", "Invalid date format", "actualJobEndingDate.date"),
        ("privacy", "This value should be equal to 'true'.", "privacy.accepted"),
        ("city", 5, "city.not_accepted"),
        ("city", "User not found", "city.rejected"),
        ("documentCity", "Questo campo è vuoto", "document_city.rejected"),
        ("newField", "This value should not be blank.", "rejected"),
        ("newField", "no", "rejected"),
        ("domain", "User not found", "fiscal_code.user_not_found"),
        ("Domain", "Utente non trovato", "fiscal_code.user_not_found"),
        ("domain", "User already evaluated for approval", "domain.already_evaluated"),
        ("domain", "The user was evaluated already!", "domain.rejected"),
        ("domain", "This sales point cannot apply for a loan", "domain.shop_not_allowed"),
        ("domain", "Invalid fiscalCode.", "fiscal_code.format"),
        ("domain", "The campaign has ended", "domain.rejected"),
        ("system", "System error", "system.error"),
    ],
)
def test_known_message_has_a_code(name: str, message: object, code: str) -> None:
    [problem] = read_problems({"errors": {name: [message]}})
    assert (problem.wire_name, problem.code) == (name, code)
    assert (problem.text("it") == problem.message) == ("rejected" in code)


@pytest.mark.parametrize(
    ("body", "message", "code"),
    [
        ({"error": "Access denied"}, "Access denied", "access_denied"),
        ({"errors": "User already evaluated for approval", "error": "b"},
         "User already evaluated for approval", "already_evaluated"),
        ({"errors": "The request cannot be completed"}, "The request cannot be completed", "rejected"),
    ],
)  # fmt: skip
def test_message_without_a_field_has_a_code(body: dict[str, str], message: str, code: str) -> None:
    [problem] = read_problems(body)
    assert (problem, problem.code) == (Problem("", "", message), code)


def test_code_and_params_of_a_message_do_not_contain_its_texts() -> None:
    body = {"errors": {"Zzqplant": ["Zzqplant is taken"], "city": ["Zzqplant"], "domain": ["Zzqplant"]}}
    found = read_problems(body)
    assert [each.code for each in found] == ["rejected", "city.rejected", "domain.rejected"]
    assert [str(each) for each in found] == ["***: ***", "city: ***", "domain: ***"]
    assert "Zzqplant" not in repr(found)


@pytest.mark.parametrize("gap", [" ", "\n", " " * 10_000])
def test_message_that_begins_like_a_listed_one_is_not_printed(gap: str) -> None:
    for name, text in (("domain", "User not found"), ("city", "This value should not be blank.")):
        [problem] = read_problems({"errors": {name: f"{text}{gap}Zzqplant"}})
        assert "Zzqplant" not in f"{problem} {problem!r}"


def test_range_of_the_service_has_params() -> None:
    amount, count = read_problems({"errors": {
        "amount": "This value should be between 5000 and 1500000",
        "instalments": "The number of installments must be between 3 and 60",
    }})  # fmt: skip
    assert amount.params == {"least": 5_000, "most": 1_500_000}
    assert count.text("it") == "Inserire un numero intero tra 3 e 60."


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
    call = call_of(endpoints.APPROVE, approval_request(extra={"coupon": "x"}))
    assert type(read(call, 400, error_body(coupon=["is used"]))) is errors.RejectedError
    assert type(read(APPROVE, 400, error_body(coupon=["is used"]))) is errors.UnexpectedResponseError


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("User not found", errors.UserNotFoundError),
        ("This sales point cannot apply for a loan", errors.ShopNotAllowedError),
        ("Invalid fiscalCode.", errors.InvalidFiscalCodeError),
    ],
)
def test_domain_text_of_the_specification_has_its_class(text: str, kind: type[errors.DomainError]) -> None:
    """`contract/test_states.py` has the state for each form of these texts."""
    for messages in ([text], text, [f"  {text.upper()}\n"]):
        assert type(read(APPROVE, 400, error_body(domain=messages))) is kind
    assert state(400, {"errors": {"Domain": [text]}}) is RELEASED


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
    assert state(400, error_body(lastname=[BLANK] * 99 + [text])) is LOST
    for messages in ([BLANK] * 101, [BLANK] * 100 + [text], [f"{BLANK}{' ' * 5000}{text}"]):
        assert state(400, error_body(lastname=messages)) is not RELEASED
        assert state(400, error_body(domain=messages)) is not RELEASED


def test_rejection_with_a_repeated_name_is_unknown() -> None:
    """`decode` only keeps the last value of a repeated name."""
    rejection = b'{"errors": {"city": ["no"], "city": ["no"]}}'
    error = read(APPROVE, 400, rejection)
    assert (type(error), error.response) == (errors.UnexpectedResponseError, RawResponse(400, rejection))
    assert read(COMPLETE, 400, rejection).outcome == "unknown"


def test_invalid_fiscal_code_has_its_problem_at_the_field() -> None:
    """Spec §7 lists it as a validation error and as a domain error."""
    validation = read(APPROVE, 400, error_body(fiscalCode=["Invalid fiscal code"]))
    domain = read(APPROVE, 400, error_body(domain=["Invalid fiscalCode."]))
    assert validation.problems == (Problem("fiscal_code", "fiscalCode", "Invalid fiscal code"),)
    assert domain.problems == (Problem("fiscal_code", "domain", "Invalid fiscalCode."),)
    for call in (COMPLETE, DOCUMENTS):
        assert read(call, 400, error_body(domain=["Invalid fiscalCode."])).problems[0].field == "fiscal_code"
    for call in (APPROVE, COMPLETE):
        (problem,) = read(call, 400, error_body(domain=["Codice fiscale non valido"])).problems
        assert (problem.field, problem.code) == ("fiscal_code", "fiscal_code.format")
    other = read(APPROVE, 400, error_body(domain=["User not found"]))
    assert (other.problems[0].field, other.problems[0].wire_name) == ("fiscal_code", "domain")


def test_other_calls_accept_fields_of_any_name_and_language() -> None:
    """Other calls do not evaluate a customer, and messages of a completion may be localized (spec §7)."""
    for call in (COMPLETE, CREATE, DOCUMENTS):
        for name in ("documentCity", "newField"):
            error = read(call, 400, error_body(**{name: ["Questo valore non dovrebbe essere vuoto."]}))
            assert (type(error), error.outcome) == (errors.RejectedError, "not_evaluated")
        for texts in (["Something new"], ["User not found", "Something new"], ["The user not found"]):
            assert read(call, 400, error_body(domain=texts)).outcome == "unknown"
        assert type(read(call, 400, error_body(domain=["Utente non trovato"]))) is errors.UserNotFoundError
        assert read(call, 400, error_body(domain=["User not found"], city=["no"])).outcome == "unknown"
        assert read(call, 400, {**error_body(city=["no"]), "message": "saved"}).outcome == "unknown"


@pytest.mark.parametrize("depth", [100, 900, 985, 1_010, 1_100, 20_000])
@pytest.mark.parametrize(
    "body", [b'{"errors":{"domain":%s}}', b'{"errors":%s}', b'{"errors":{"city":["no"]},"x":%s}']
)
def test_rejection_of_any_depth_is_unknown(body: bytes, depth: int) -> None:
    for nested in (b"[" * depth + b"]" * depth, b'{"a":' * depth + b"1" + b"}" * depth):
        for call in (APPROVE, COMPLETE, CREATE, DOCUMENTS):
            assert read(call, 400, body % nested).outcome == "unknown"


@pytest.mark.parametrize(
    "message",
    [
        "Valutazione già effettuata",
        "Cliente valutato",
        "The customer is being EVALUATED.",
        "evaluation&nbsp;pending",
        "\N{FULLWIDTH LATIN CAPITAL LETTER E}valuation done",
    ],
)
def test_message_that_mentions_an_evaluation_is_not_released(message: str) -> None:
    for status, body in (
        (400, error_body(city=[message])),
        (403, {"error": message}),
        (404, {"message": message}),
    ):
        assert state(status, body) in (UNKNOWN, LOST)
    assert read(COMPLETE, 400, error_body(city=["Cliente valutato"])).outcome == "not_evaluated"


@pytest.mark.parametrize("message", ["svalutazione", "valutabile", "Rivalutato"])
def test_message_with_a_part_of_an_evaluation_word_is_released(message: str) -> None:
    assert state(400, error_body(city=[message])) is RELEASED


def test_page_that_mentions_an_evaluation_once_is_released() -> None:
    assert state(404, b"<html>Evaluation copy of a proxy</html>") is RELEASED


@pytest.mark.parametrize("piece", [b"[],", b"0,", b'"",', b'{"a":0},'])
def test_large_error_body_is_read_as_text(piece: bytes) -> None:
    """Reading a million nested values would block the event loop for seconds."""

    def work(size: int) -> int:
        body = b'{"errors":{"city":[%s0]}}' % (piece * (size // len(piece)))
        return lines_run(lambda: state(403, body))

    work(1_000)
    assert work(1 << 20) < 2_000


def test_combining_marks_are_normalized_in_short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their order takes quadratic time."""
    sizes = []

    def counted_normalize(form: Literal["NFKC"], text: str) -> str:
        sizes.append(len(text))
        return normalize(form, text)

    monkeypatch.setattr(problems, "normalize", counted_normalize)
    assert state(403, "\u0301\u0327\u0323".encode() * 1_000) is RELEASED
    assert max(sizes) <= 100
