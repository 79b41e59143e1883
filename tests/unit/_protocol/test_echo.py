"""Comparison of the echoed fiscal code with the one that was sent (spec §2.1)."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loanasync import Approved, RawResponse, UnexpectedResponseError
from loanasync._protocol.echo import belongs_to_another_customer
from support.builders import FISCAL_CODE
from support.response_reader import APPROVE, read

OTHER = "TSTXYZ00A00A000B"
CODE_OF_11 = "00000000000"
# Omocodia: letters instead of digits at the seven digit positions; the check letter changes, too.
OMOCODE = "TSTXYZLLALLALLLC"
DIGIT_POSITIONS = (6, 7, 9, 10, 12, 13, 14)


def wide(code: str) -> str:
    """Return a code in full-width letters."""
    return "".join(chr(ord(each) + 0xFEE0) for each in code)


@pytest.mark.parametrize(
    "echoed",
    [
        *(FISCAL_CODE, FISCAL_CODE.lower(), f" {FISCAL_CODE}\n", wide(FISCAL_CODE), FISCAL_CODE[:-1]),
        *("TST XYZ 00A00 A000A", "tst-xyz-00a00-a000a", "TST.XYZ.00A00.A000A"),
        "tst\N{NO-BREAK SPACE}xyz\N{EN DASH}00a00\N{ZERO WIDTH SPACE}a000a",
        *(None, "", "  ", "-", "UNKNOWN"),
        # omocodia, at some or all positions
        *(OMOCODE, "tst xyz LLA 00a 000-z"),
        # masked
        *("TST*************", "***XYZ**********", "***************A", "TST***A", "TST…", "…000A", "T*T*Z*A"),
        *("****************", "***", "TSTXYZ**ALLA****", "TSTXYZLLA**A***C"),
    ],
    ids=ascii,
)
def test_echo_of_the_customer_in_another_form_is_accepted(echoed: object) -> None:
    assert not belongs_to_another_customer(echoed, FISCAL_CODE)


@pytest.mark.parametrize(
    "echoed",
    [
        *(OTHER, OTHER.lower(), "TST XYZ-00A00A000B", "TSTXYZ00A00A001A", "ABCXYZ00A00A000A", wide(OTHER)),
        *(CODE_OF_11, "000 000-00000", "0" * 16, f"IT{CODE_OF_11}", f"{OTHER}1", OTHER[1:]),
        OTHER.replace("A", "\N{CYRILLIC CAPITAL LETTER A}"),
        OTHER.replace("0", "\N{ARABIC-INDIC DIGIT ZERO}"),
        OTHER.replace("00A", "\N{COMBINING ACUTE ACCENT}00A"),
        *(f"{FISCAL_CODE}, {OTHER}", json.dumps([FISCAL_CODE, OTHER])),
        # masked
        *("ABC*************", "TST************B", "TSTXYZLMA**A***C", "*TST************", "TST***B", "B…"),
        *("…000B", "*TSTXYZ00A00A000A1", "A*T", "*XYZ*TST*", "xxx?", f"{wide('B')}***************"),
        # of another type
        *([], [FISCAL_CODE], {}, {"a": FISCAL_CODE}, 5, 0, True, False, 1.5),
    ],
    ids=ascii,
)
def test_echo_of_another_customer_is_not_accepted(echoed: object) -> None:
    assert belongs_to_another_customer(echoed, FISCAL_CODE)


@pytest.mark.parametrize("echoed", [FISCAL_CODE, "TSTXYZ00A…", "…A000C"])
def test_echo_without_omocodia_belongs_to_a_customer_with_it(echoed: str) -> None:
    assert not belongs_to_another_customer(echoed, OMOCODE)


@pytest.mark.parametrize("position", range(15))
def test_echo_omocodia_letter_stands_for_one_digit_at_its_positions(position: int) -> None:
    for digit, letter in enumerate("LMNPQRSTUV"):
        written = f"{FISCAL_CODE[:position]}{letter}{FISCAL_CODE[position + 1 :]}"
        is_same = letter == FISCAL_CODE[position] or (position in DIGIT_POSITIONS and digit == 0)
        assert belongs_to_another_customer(written, FISCAL_CODE) is not is_same


def test_echo_masked_code_that_is_too_long_is_not_accepted() -> None:
    """Matching it as a pattern would take hours."""
    assert belongs_to_another_customer("T*" * 450_000, FISCAL_CODE)


@given(st.text(alphabet="*" + FISCAL_CODE, min_size=16, max_size=16).filter(lambda text: "*" in text))
def test_echo_masked_code_agrees_exactly_where_it_is_visible(echoed: str) -> None:
    same = all(seen in ("*", sent) for seen, sent in zip(echoed, FISCAL_CODE, strict=True))
    assert belongs_to_another_customer(echoed, FISCAL_CODE) is not same


@given(st.none() | st.text() | st.integers() | st.lists(st.text()))
def test_echo_of_anything_is_compared_without_failing(echoed: object) -> None:
    assert belongs_to_another_customer(echoed, FISCAL_CODE) in (True, False)


@pytest.mark.parametrize("echoed", [OTHER, CODE_OF_11, "ABC***", [FISCAL_CODE], {"code": FISCAL_CODE}, False])
@pytest.mark.parametrize(("status", "approved"), [(201, True), (201, False), (422, False)])
def test_approve_echo_of_another_customer_is_unknown(status: int, echoed: object, *, approved: bool) -> None:
    members = {"approved": approved, "fiscalCode": echoed, "redirectUrl": "https://x.example/#t"}
    error = read(APPROVE, status, members)
    assert isinstance(error, UnexpectedResponseError)
    assert (error.reasons, error.outcome) == (("fiscalCode: belongs to another customer",), "unknown")
    assert error.response == RawResponse(status, json.dumps(members).encode())
    for shown in (repr(error), str(error), repr(error.args), str(error._repr_html_())):
        assert not [each for each in (OTHER, FISCAL_CODE, "x.example") if each in shown]


@pytest.mark.parametrize(("second", "accepted"), [(FISCAL_CODE.lower(), True), (OTHER, False), (None, True)])
def test_approve_echo_of_two_codes_needs_both_to_agree(second: str | None, *, accepted: bool) -> None:
    for codes in ((FISCAL_CODE, second), (second, FISCAL_CODE)):
        body = b'{"approved":true,"fiscalCode":%s,"fiscalCode":%s}' % tuple(
            json.dumps(code).encode() for code in codes
        )
        assert isinstance(read(APPROVE, 201, body), Approved if accepted else UnexpectedResponseError)


@pytest.mark.parametrize(
    ("status", "body", "fault"),
    [
        (201, b'{"approved":true,"fiscalCode":"TSTXYZ00A00A000B","city":"Ro', "truncated"),
        (422, b'{"approved":false,"fiscalCode":"TSTXYZ00A00A000B","city":"Ro', "truncated"),
        (201, b'{"approved":true"x"", "fiscalCode":"TSTXYZ00A00A000B"', "truncated"),
        (201, b'{"approved":true"x"", "fiscalCode":"TSTXYZ00A00A000B"', None),
    ],
)
def test_approve_unreadable_echo_of_another_customer_is_unknown(
    status: int, body: bytes, fault: str | None
) -> None:
    error = read(APPROVE, status, body, fault=fault)
    assert error.reasons == ("fiscalCode: belongs to another customer",)
    assert error.response == RawResponse(status, body)


@pytest.mark.parametrize(
    ("kind", "starts"),
    [
        (Approved, ["", "TST", "tst xyz", FISCAL_CODE, "TSTXYZLL", "TST\\u00"]),
        (UnexpectedResponseError, ["ABC", "TSTXYZ00A00A000B", "TSTY", f"{FISCAL_CODE}1"]),
    ],
)
def test_approve_echo_truncated_in_the_code_compares_its_start(kind: type, starts: list[str]) -> None:
    for start in starts:
        body = f'{{"approved":true,"fiscalCode":"{start}'.encode()
        assert isinstance(read(APPROVE, 201, body, fault="truncated"), kind), start
