"""Redaction of personal values in texts of the service, in many spellings."""

import json
import unicodedata
from collections.abc import Callable
from html import escape
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loanasync import Problem
from loanasync._protocol.error_bodies import read_problems
from loanasync._protocol.redaction import Redactor

SENT: dict[str, Any] = {
    "lastname": "D'Amicò Ferrè",
    "firstname": "Li",
    "email": "anna.rossi+already@example.com",
    "mobilePhone": "3331234567",
    "address": "Via Garibaldi",
    "civicNumber": "12A",
    "city": "Zoë",
    "province": "TO",
    "iban": "IT60X0542811101000000123456",
    "documentIssueDate": "1980-07-03",
    "residenceStartDate": "07/1979",
    "salary": 1_500,
    "amount": 5_000,
    "instalments": 1_234,
    "extra": [{"note": "Müller"}, {"deep": ["José", "Søren Kjær", 12.5]}],
}
CODE = "TSTXYZ00A00A000A"


def redacted(text: str, *sent: object) -> str:
    return Redactor(*(sent or (SENT, CODE)))(text, 300)


FORMS: dict[str, Callable[[str], str]] = {
    "HTML": escape,
    "HTML, numbers": lambda text: "".join(f"&#{ord(each)};" for each in text),
    "HTML twice": lambda text: escape(escape(text)),
    "percent": quote,
    "percent, plus": quote_plus,
    "percent, Latin-1": lambda text: quote(text, encoding="latin-1"),
    "percent, all": lambda text: "".join(f"%{byte:02x}" for byte in text.encode()),
    "JSON": json.dumps,
    "JSON, all": lambda text: "".join(f"\\u{ord(each):04x}" for each in text),
    "JSON twice": lambda text: json.dumps(json.dumps(text)),
    "bytes": lambda text: repr(text.encode("latin-1")),
    "NFD": lambda text: unicodedata.normalize("NFD", text),
    "full-width": lambda text: "".join(
        chr(ord(each) + 0xFEE0) if "!" <= each <= "~" else each for each in text
    ),
    "upper": str.upper,
    "lower": str.lower,
    "case-folded": str.casefold,
    "without accents": lambda text: unicodedata.normalize("NFD", text).encode("ascii", "ignore").decode(),
    "wrong charset": lambda text: text.encode().decode("latin-1"),
    "wrong charset, replaced": lambda text: text.encode("latin-1").decode("utf-8", "replace"),
    "question marks": lambda text: text.encode("ascii", "replace").decode(),
    "quoted": lambda text: f"“{text}”",
    "tagged": lambda text: f"<b>{text}</b>",
    "in a line of its own": lambda text: f"\\n{text}\\n",
    "soft hyphens": "\N{SOFT HYPHEN}".join,
}


@pytest.mark.parametrize("value", ["D'Amicò Ferrè", "Zoë", "Li", SENT["email"], "José", CODE])
@pytest.mark.parametrize("form", FORMS)
def test_redactor_value_in_another_form_is_removed(form: str, value: str) -> None:
    text = FORMS[form](value)
    shown = redacted(f"Not {text} here")
    letters = "".join(filter(str.isalnum, shown))
    assert letters in ("Nothere", "Notbhereb", "Notbbhere", "Notbhere"), shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("tst-xyz-00a00-a000a", "***"),
        ("t s t x y z 0 0 a 0 0 a 0 0 0 a", "***"),
        ("TSTXYZ00A...", "***..."),
        ("IT60 X054 2811 1010 0000 0123 456", "***"),
        ("+39 333-123.4567 or 0039/3331234567", "+39 *** or 0039/***"),
        ("393331234567", "39***"),
        ("03/07/1980, 07/03/1980, 3.7.80", "***"),
        ("3 luglio 1980", "***"),
        ("on July 3, 1980", "on ***"),
        ("3rd July 1980", "3rd ***"),
        ("19800703T000000Z", "***T000000Z"),
        ("lug 1979, 1979-07 and 07/79", "***, *** and ***"),
        ("EUR 1.500,00", "EUR ***,00"),
        ("anna.rossi and ROSSI", "***.*** and ***"),
        ("user already evaluated at example.com", "user already evaluated at example.com"),
        ("anna.rossi+already@example.com", "***"),
        ("Garibaldi is no street", "*** is no street"),
        ("user_anna_1, annaRossi2", "user_***_1, ******2"),
        ("Mueller, MULLER, Soren Kjaer", "***, ***, ***"),
        ("12a", "***"),
        ("li, LI; 'Li' and «Li»", "***, ***; '***' and «***»"),
        ("born in TO", "born in ***"),
    ],
)
def test_redactor_value_with_other_signs_is_removed(text: str, shown: str) -> None:
    assert redacted(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "This value should be between 5000 and 1500000",
        "The number of installments must be between 3 and 1234",
        "This value is not valid: it has to be online",
        "Via e-mail, 12 or 5 times, L.I.",
        "Il valore è già usato",
        "50% & more, a < b, C:\\data",
        "50%25 &amp; more, a &lt; b, C:\\new, \\u0061",
    ],
)
def test_redactor_text_without_values_stays(text: str) -> None:
    assert redacted(text) == text


@pytest.mark.parametrize("code", ["TSTXYZ80L43A000A", "TSTXYZULLQPALLLZ", "tstxyz80l43a000a"])
def test_redactor_date_of_birth_in_the_fiscal_code_is_removed(code: str) -> None:
    """A woman born on 3 July 1980; in the second code, all digits are replaced by letters (omocodia)."""
    for text in ("03/07/1980", "1980-07-03", "3 luglio 1980", "July 3, 1980", "3.7.80"):
        assert redacted(f"born {text}: too young", code) == "born ***: too young"
    assert redacted("born 04/07/1980", code) == "born 04/07/1980"


def test_redactor_names_written_as_one_word_are_removed() -> None:
    sent = {"firstname": "Bo", "lastname": "Lee"}
    assert redacted("bolee, user LEEBO.", sent) == "***, user ***."


def test_redactor_words_of_prose_stay() -> None:
    """A long value is masked as a whole and in long parts, but not word by word."""
    prose = "please send the contract by mail to the office"
    assert redacted("the contract by mail", prose) == "***"
    assert redacted("send it to the office", prose) == "send it to the office"


@pytest.mark.parametrize(
    ("value", "shown"), [("Abcdefg", "unabcdefgable, ***!"), ("Abcdefgh", "un***able, ***!")]
)
def test_redactor_within_a_word_removes_eight_letters(value: str, shown: str) -> None:
    assert redacted(f"un{value.lower()}able, {value}!", value) == shown


@pytest.mark.parametrize("longer", [*range(570, 602, 3)])
def test_redactor_truncated_text_ends_before_a_value(longer: int) -> None:
    """A truncated text may end within a value, which would not be recognised."""
    for value in (CODE, "Li", "D'Amicò Ferrè", SENT["email"]):
        start = "Li " * (longer // 3)
        shown = redacted(start + quote(value) * 40)
        assert set(shown) <= set("* …"), shown


def test_redactor_text_encoded_too_often_is_masked() -> None:
    text = CODE
    for _ in range(9):
        text = "".join(f"%{byte:02x}" for byte in text.encode())
        assert redacted(text[:500]) == "***"


def test_redactor_with_too_many_values_masks_the_text() -> None:
    assert redacted("no", [f"value {number}" for number in range(20_000)]) == "***"
    assert redacted("too large", ["x" * 1_000_000] * 9) == "too large", "pictures are cut"


def test_redactor_finds_nested_values() -> None:
    deep: Any = CODE
    for _ in range(5_000):
        deep = [deep]
    assert redacted(f"not {CODE}", deep) == "not ***"


@given(st.text(min_size=4, max_size=40), st.text(max_size=20), st.text(max_size=20))
def test_redactor_any_value_between_spaces_is_removed(value: str, before: str, after: str) -> None:
    shown = Redactor(value)(f"{before} {value} {after}", 300)
    if sum(map(str.isalnum, unicodedata.normalize("NFKD", value).casefold())) >= 4:
        assert value not in shown


def test_redaction_keeps_field_names_and_masks_others() -> None:
    sent = {"city": "Street Number", "lastname": "Lastname", "people": {"anna@example.com": 1}}
    body = {"errors": {"streetNumber": "a", "lastname": "b", "people[anna@example.com]": "c"}}
    assert read_problems(body, sent) == (
        Problem("street_number", "streetNumber", "a"),
        Problem("last_name", "lastname", "b"),
        Problem("people[***]", "people[***]", "c"),
    )
