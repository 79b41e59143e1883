"""Comparison of the echoed fiscal code with the one that was sent (spec §2.1)."""

import json
import pickle
from time import process_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loanasync import Approved, LoanError, RawResponse, Refused, UnexpectedResponseError
from loanasync._protocol.echo import belongs_to_another_customer
from loanasync.testing import response, scripted_client
from support.builders import FISCAL_CODE, approval_request
from support.response_reader import APPROVE, read

OTHER = "TSTXYZ00A00A000B"
CODE_OF_11 = "00000000000"
# Omocodia: letters instead of digits at the seven digit positions; the check letter changes, too.
OMOCODE = "TSTXYZLLALLALLLC"
DIGIT_POSITIONS = (6, 7, 9, 10, 12, 13, 14)


@pytest.mark.parametrize(
    "echoed",
    [
        FISCAL_CODE,
        FISCAL_CODE.lower(),
        f" {FISCAL_CODE}\n",
        "TST XYZ 00A00 A000A",
        "tst-xyz-00a00-a000a",
        None,
        "",
        "  ",
        "-",
        "".join(chr(ord(each) + 0xFEE0) for each in FISCAL_CODE),
        "tst\N{NO-BREAK SPACE}xyz\N{EN DASH}00a00\N{ZERO WIDTH SPACE}a000a",
        "TST.XYZ.00A00.A000A",
        FISCAL_CODE[:-1],
        "UNKNOWN",
    ],
    ids=ascii,
)
def test_echo_same_code_in_another_form_is_accepted(echoed: object) -> None:
    assert not belongs_to_another_customer(echoed, FISCAL_CODE)


@pytest.mark.parametrize(
    "echoed",
    [
        OTHER,
        OTHER.lower(),
        "TST XYZ-00A00A000B",
        "TSTXYZ00A00A001A",
        "ABCXYZ00A00A000A",
        CODE_OF_11,
        "000 000-00000",
        "0" * 16,
        "".join(chr(ord(each) + 0xFEE0) for each in OTHER),
        OTHER.replace("A", "\N{CYRILLIC CAPITAL LETTER A}"),
        OTHER.replace("0", "\N{ARABIC-INDIC DIGIT ZERO}"),
        OTHER.replace("00A", "\N{COMBINING ACUTE ACCENT}00A"),
        f"IT{CODE_OF_11}",
        f"{OTHER}1",
        OTHER[1:],
        f"{FISCAL_CODE}, {OTHER}",
        json.dumps([FISCAL_CODE, OTHER]),
    ],
    ids=ascii,
)
def test_echo_of_another_code_belongs_to_another_customer(echoed: str) -> None:
    assert belongs_to_another_customer(echoed, FISCAL_CODE)


@pytest.mark.parametrize(
    "echoed", [[], [FISCAL_CODE], {}, {"a": FISCAL_CODE}, 5, 0, True, False, 1.5], ids=repr
)
def test_echo_of_another_type_belongs_to_another_customer(echoed: object) -> None:
    assert belongs_to_another_customer(echoed, FISCAL_CODE)


def test_echo_with_omocodia_belongs_to_the_customer() -> None:
    assert not belongs_to_another_customer(OMOCODE, FISCAL_CODE)
    assert not belongs_to_another_customer(FISCAL_CODE, OMOCODE)
    assert not belongs_to_another_customer(OMOCODE, OMOCODE)
    assert not belongs_to_another_customer("tst xyz LLA 00a 000-z", FISCAL_CODE), (
        "some digits, another check letter"
    )


@pytest.mark.parametrize("digit", range(10))
@pytest.mark.parametrize("position", DIGIT_POSITIONS)
def test_echo_omocodia_letter_stands_for_one_digit(position: int, digit: int) -> None:
    letter = "LMNPQRSTUV"[digit]
    written = f"{FISCAL_CODE[:position]}{letter}{FISCAL_CODE[position + 1 :]}"
    assert belongs_to_another_customer(written, FISCAL_CODE) is (digit != 0)


@pytest.mark.parametrize("position", sorted({*range(15)} - {*DIGIT_POSITIONS}))
def test_echo_omocodia_letter_elsewhere_is_not_accepted(position: int) -> None:
    written = f"{FISCAL_CODE[:position]}L{FISCAL_CODE[position + 1 :]}"
    assert belongs_to_another_customer(written, FISCAL_CODE)


def test_echo_check_letter_counts_without_omocodia() -> None:
    assert belongs_to_another_customer(OTHER, FISCAL_CODE)


@pytest.mark.parametrize(
    "echoed",
    [
        "TST*************",
        "***XYZ**********",
        "***************A",
        "TST***A",
        "TST…",
        "…000A",
        "T*T*Z*A",
        "****************",
        "***",
        "TSTXYZ**ALLA****",
        "TSTXYZLLA**A***C",
    ],
)
def test_echo_masked_code_that_agrees_is_accepted(echoed: str) -> None:
    assert not belongs_to_another_customer(echoed, FISCAL_CODE)


@pytest.mark.parametrize(
    "echoed",
    [
        "ABC*************",
        "TST************B",
        "TSTXYZLMA**A***C",
        "\N{FULLWIDTH LATIN CAPITAL LETTER B}***************",
        "*TST************",
        "TST***B",
        "B…",
        "…000B",
        "*TSTXYZ00A00A000A1",
        "A*T",
        "*XYZ*TST*",
        "xxx?",
    ],
)
def test_echo_masked_code_that_differs_is_not_accepted(echoed: str) -> None:
    assert belongs_to_another_customer(echoed, FISCAL_CODE)


def test_echo_masked_code_that_is_too_long_is_compared_fast() -> None:
    began = process_time()
    assert belongs_to_another_customer("T*" * 450_000, FISCAL_CODE)
    assert process_time() - began < 1.0


@given(st.text(alphabet="*" + FISCAL_CODE, min_size=16, max_size=16).filter(lambda text: "*" in text))
def test_echo_masked_code_agrees_exactly_where_it_is_visible(echoed: str) -> None:
    same = all(seen in ("*", sent) for seen, sent in zip(echoed, FISCAL_CODE, strict=True))
    assert belongs_to_another_customer(echoed, FISCAL_CODE) is not same


@given(st.none() | st.text() | st.integers() | st.lists(st.text()))
def test_echo_of_anything_is_compared_without_failing(echoed: object) -> None:
    assert belongs_to_another_customer(echoed, FISCAL_CODE) in (True, False)


@pytest.mark.parametrize(
    "echoed", [FISCAL_CODE, FISCAL_CODE.lower(), "TST XYZ-00A00A000A", OMOCODE, "TST***", "", None]
)
@pytest.mark.parametrize(("status", "kind"), [(201, Approved), (422, Refused)])
def test_approve_echo_of_the_customer_keeps_the_decision(
    status: int, kind: type[Approved | Refused], echoed: object
) -> None:
    decision = read(APPROVE, status, {"approved": kind is Approved, "fiscalCode": echoed})
    assert isinstance(decision, kind)
    assert decision.raw["fiscalCode"] == echoed


@pytest.mark.parametrize(
    "echoed", [OTHER, CODE_OF_11, "ABC***", [FISCAL_CODE], {"code": FISCAL_CODE}, 5, False]
)
@pytest.mark.parametrize(("status", "approved"), [(201, True), (201, False), (422, False)])
def test_approve_echo_of_another_customer_is_unknown(status: int, approved: bool, echoed: object) -> None:  # noqa: FBT001  (parametrised)
    members = {"approved": approved, "fiscalCode": echoed, "redirectUrl": "https://x.example/#t"}
    error = read(APPROVE, status, members)
    assert isinstance(error, UnexpectedResponseError)
    assert (error.reasons, error.outcome) == (("fiscalCode: belongs to another customer",), "unknown")
    assert (error.status, error.repeatable) == (status, False)
    assert error.response == RawResponse(status, json.dumps(members).encode())


@pytest.mark.parametrize(("second", "accepted"), [(FISCAL_CODE.lower(), True), (OTHER, False), (None, True)])
def test_approve_echo_of_two_codes_needs_both_to_agree(second: str | None, *, accepted: bool) -> None:
    for codes in ((FISCAL_CODE, second), (second, FISCAL_CODE)):
        body = b'{"approved":true,"fiscalCode":%s,"fiscalCode":%s}' % tuple(
            json.dumps(code).encode() for code in codes
        )
        assert isinstance(read(APPROVE, 201, body), Approved if accepted else UnexpectedResponseError)


@pytest.mark.parametrize(("status", "part"), [(201, b'{"approved":true'), (422, b'{"approved":false')])
def test_approve_truncated_echo_of_another_customer_is_unknown(status: int, part: bytes) -> None:
    body = part + b',"fiscalCode":"TSTXYZ00A00A000B","city":"Ro'
    error = read(APPROVE, status, body, fault="truncated")
    assert isinstance(error, UnexpectedResponseError)
    assert (error.reasons, error.response) == (
        ("fiscalCode: belongs to another customer",),
        RawResponse(status, body),
    )


@pytest.mark.parametrize(
    ("start", "accepted"),
    [
        ("", True),
        ("TST", True),
        ("tst xyz", True),
        (FISCAL_CODE, True),
        ("TSTXYZLL", True),
        ("TST\\u00", True),
        ("ABC", False),
        ("TSTXYZ00A00A000B", False),
        ("TSTY", False),
        (f"{FISCAL_CODE}1", False),
    ],
)
def test_approve_echo_truncated_in_the_code_compares_its_start(start: str, *, accepted: bool) -> None:
    body = f'{{"approved":true,"fiscalCode":"{start}'.encode()
    outcome = read(APPROVE, 201, body, fault="truncated")
    assert isinstance(outcome, Approved if accepted else UnexpectedResponseError)


def test_approve_echo_in_invalid_json_is_unknown() -> None:
    body = b'{"approved":true"x"", "fiscalCode":"TSTXYZ00A00A000B"'
    for fault in (None, "truncated"):
        assert read(APPROVE, 201, body, fault=fault).reasons == ("fiscalCode: belongs to another customer",)


async def failure(members: dict[str, Any]) -> LoanError:
    with pytest.raises(UnexpectedResponseError) as caught:
        await scripted_client(response(201, members)).approve(FISCAL_CODE, approval_request())
    return caught.value


async def test_approve_error_of_another_customer_has_the_response() -> None:
    members = {"approved": True, "fiscalCode": OTHER, "redirectUrl": "https://x.example/#t"}
    error = await failure(members)
    assert isinstance(error, UnexpectedResponseError)
    assert error.response is not None
    assert (error.response.status, json.loads(error.response.body)) == (201, members)
    again = pickle.loads(pickle.dumps(error))  # noqa: S301  (our own bytes)
    assert again.response == error.response


async def test_approve_error_of_another_customer_has_no_personal_data() -> None:
    error = await failure({"approved": True, "fiscalCode": OTHER, "redirectUrl": "https://x.example/#t"})
    for shown in (repr(error), str(error), repr(error.args), str(error._repr_html_())):
        assert not [each for each in (OTHER, FISCAL_CODE, "x.example") if each in shown]
