"""Decisions of `approve`, read from the status and from a complete or partial body (spec §3, §4.1, §7)."""

import json
from typing import Any

import pytest

from loanasync import AlreadyEvaluatedError, Approved, Problem, RawResponse, Refused, UnexpectedResponseError
from loanasync._protocol import endpoints
from loanasync._protocol.messages import End
from support.builders import FISCAL_CODE, approval_request
from support.line_count import lines_run
from support.response_reader import APPROVE, call_of, error_body, read

LARGEST = 1 << 20


def unknown(status: int, body: object, fault: str | None = None) -> UnexpectedResponseError:
    """Read an unexpected response, and check that the error contains it."""
    error = read(APPROVE, status, body, fault=fault)
    assert isinstance(error, UnexpectedResponseError), error
    assert (error.operation, error.outcome, error.status) == ("approve", "unknown", status)
    received = body if isinstance(body, bytes) else json.dumps(body).encode()
    assert error.response == RawResponse(status, received)
    return error


def decided(
    kind: type[Approved | Refused],
    status: int,
    body: object,
    fault: str | None = None,
    redirect_url: str | None = None,
) -> Any:
    """Read a decision from a body with this redirect URL."""
    decision = read(APPROVE, status, body, fault=fault)
    assert isinstance(decision, kind), decision
    assert (decision.meta.status, getattr(decision, "redirect_url", None)) == (status, redirect_url)
    return decision


MISSING, TYPE = "approved: missing", "approved: expected a boolean"
TWICE, NO_JSON, NO_OBJECT = "approved: given more than once", "body: not JSON", "body: not a JSON object"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, MISSING),
        ({"redirectUrl": "https://x.example/#t"}, MISSING),
        *(({"approved": value}, TYPE) for value in ("true", 1, None)),
        (b'{"approved":true,"approved":true}', TWICE),
        (b'{"approved":true,"\\u0061pproved":false}', TWICE),
        (b"", "body: empty"),
        (b"<html>", NO_JSON),
        (b"[true]", NO_OBJECT),
        (b'"approved"', NO_OBJECT),
    ],
    ids=str,
)
def test_approve_201_without_a_boolean_is_unknown(body: object, reason: str) -> None:
    assert unknown(201, body).reasons == (reason,)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"approved": True}, "approved: contradicts status 422"),
        ({}, MISSING),
        *(({"approved": value}, TYPE) for value in ("false", 0, None)),
        (b'{"approved":false,"approved":false}', TWICE),
        (b"<html>", NO_JSON),
        (b'{"approved":false', NO_JSON),
        (b"[]", NO_OBJECT),
        (b"false", NO_OBJECT),
        (b'{"approved":false,"city":"Forl\xec"}', "body: not UTF-8"),
    ],
    ids=str,
)
def test_approve_422_without_approved_false_is_unknown(body: object, reason: str) -> None:
    error = unknown(422, body)
    assert (error.reasons, error.problems) == ((reason,), ())


@pytest.mark.parametrize("fault", ["truncated", "timed out"])
@pytest.mark.parametrize(
    "part",
    [
        b'{"approved":true',
        b'<br />\n<b>Notice</b>: {x} is "undefined" in a[0] of f() {}\n{"approved":true,"city":"Ro',
        b'{"approved" : true , "redirectUrl":"https://x.exa',
        b'{"amount":45000,"approved":true,"note":"\\"approved\\": false","city":"Ro',
        b'{"note":"{[","approved":true,"x":[{"y":1}],"net',
        b'{"x":{"y":[1]},"city":"Forl\\u00ec","approved":true,"net',
        b'{"fiscalCode":"TSTXYZ00A00A000A","approved":true,',
        b'{"approved":true,"fiscalCode":"TSTXYZ0',
        b'\xef\xbb\xbf{"approved":true,',
    ],
    ids=str,
)
def test_approve_201_truncated_after_approved_true_is_approved(part: bytes, fault: str) -> None:
    assert decided(Approved, 201, part, fault).meta.unread == ("body",)


@pytest.mark.parametrize(
    ("body", "redirect_url"),
    [
        (b'{"approved":true,"redirectUrl":https://x.example}', None),
        (b'{"approved":true,"redirectUrl":"https:\\/\\/x.example"} <b>Notice</b>', "https://x.example"),
        (b'{"approved":true,"redirectUrl":"https://x.example","amount":NaN}', "https://x.example"),
        (
            '{"redirectUrl":"https://x.example","approved":true,"city":"Forlì"}'.encode("latin-1"),
            "https://x.example",
        ),
        (b'{"approved":true,"redirectUrl":"https://x.example/\xec","amount":NaN}', None),
        (b'{"approved":true,"redirectUrl":"https://x.example","redirectUrl":"https://y.example", NaN}', None),
        (b'{"approved":true,"redirectUrl":" ","amount":NaN}', None),
        (b'{"approved":true,"redirectUrl":" https://x.example\\r\\n","amount":NaN}', "https://x.example"),
        (b'{"approved":true,"redirectUrl":"https://x.exa\\nmple","amount":NaN}', None),
        (b'Warning: x\n{"approved":true,"redirectUrl":"https://x.example"}', "https://x.example"),
        (b'{"approved":true,"redirectUrl":7,"amount":NaN}', None),
    ],
)
def test_approve_201_with_broken_json_is_approved(body: bytes, redirect_url: str | None) -> None:
    decision = decided(Approved, 201, body, redirect_url=redirect_url)
    assert (decision.raw, decision.meta.unread) == ({}, ("body",))


@pytest.mark.parametrize(
    "part",
    [
        b"",
        b"{",
        b'{"approved"',
        b'{"approved":tru',
        b'{"approved":"true",',
        b'{"approved":1,',
        b'{"approved":false,"amount":4',
        b'{"approved":true,"approved":true,',
        b'{"approved":true,"approved":fal',
        b'{"data":{"approved":true},"x',
        b'{"data":{"approved":true',
        b'{"approved":true,"data":{"approved":false},"x',
        b'{"list":[{"approved":true}],"x',
        b'[{"approved":true},',
        b'Notice: [{"approved":true},',
        b'"approved":true',
        b'{"note":"\\"approved\\": true","am',
        b'{"x":1}{"approved":true,',
        b'{"approved":true,"\\u0061pproved":false,',
        b'{"x\\"approved":true,',
        b"<html>approved",
    ],
    ids=str,
)
def test_approve_201_truncated_without_one_true_is_unknown(part: bytes) -> None:
    assert unknown(201, part, "truncated").reasons == ("body: truncated",)


@pytest.mark.parametrize(
    "body",
    [
        b'{"approved":true""approved":false',
        b'{"approved":true,"\\],"approved":false',
        b'{"x":"y"","approved":true,"approved":false',
        b'{"approved":true}{"approved":true}',
    ],
)
def test_invalid_json_with_a_repeated_name_is_unknown(body: bytes) -> None:
    for fault in (None, "truncated"):
        unknown(201, body, fault)
        unknown(422, body, fault)


def test_truncated_body_with_many_names_is_read_once() -> None:
    """Reading each occurrence separately would take quadratic time."""

    def work(count: int) -> int:
        body = b'{"x":[%s' % (b"0," * 10_000) + b'"approved":1,' * count
        return lines_run(lambda: read(APPROVE, 201, body, fault="truncated"))

    once = work(1)  # first: the first reading also compiles regular expressions
    assert work(10) < once + 1_000
    unknown(201, b"{" + b'"approved":true,' * (LARGEST // 16 - 1), "truncated")


@pytest.mark.parametrize("body", [b"", b" \r\n\t"], ids=str)
def test_approve_422_with_an_empty_body_needs_proof(body: bytes) -> None:
    assert decided(Refused, 422, body).meta.unread == ("body",)
    for error in (
        read(APPROVE, 422, body, end="closed"),
        read(APPROVE, 422, body, end="cut"),
        read(APPROVE, 422, body, is_followed=True),
    ):
        assert isinstance(error, UnexpectedResponseError)


@pytest.mark.parametrize("end", ["closed", "cut"])
def test_approve_422_cut_off_without_a_length_needs_one_false(end: End) -> None:
    for body, kind in (
        (b'{"approved":false,"city":"Ro', Refused),
        (b'\xef\xbb\xbf\n{"approved":false,"city":"Ro', Refused),
        (b'{"approved":false}', Refused),
        (b'Notice {"approved":false,"city":"Ro', UnexpectedResponseError),
        (b'{"approved":false,"approved":false,', UnexpectedResponseError),
        (b'{"approved":fal', UnexpectedResponseError),
    ):
        assert isinstance(read(APPROVE, 422, body, end=end), kind), body


def test_approve_reads_json_behind_marks_and_line_breaks() -> None:
    marked = b'\r\n\xef\xbb\xbf \xef\xbb\xbf{"approved":%s,"amount":45000}'
    assert read(APPROVE, 201, marked % b"true").amount == 45000
    assert read(APPROVE, 422, marked % b"false").amount == 45000


def test_approve_422_with_validation_errors_keeps_its_problems() -> None:
    """Many web frameworks return 422 for a request that fails their validation."""
    error = unknown(
        422, error_body(lastname=["This value should not be blank."], email="anna@example.com: no")
    )
    assert error.problems == (
        Problem("last_name", "lastname", "This value should not be blank."),
        Problem("email", "email", "anna@example.com: no"),
    )
    assert "last_name: This value should not be blank.; email: ***" in str(error)


def test_approve_already_evaluated_with_approved_keeps_the_response() -> None:
    body = {"approved": True, **error_body(domain=["User already evaluated for approval"])}
    error = read(APPROVE, 400, body)
    assert type(error) is AlreadyEvaluatedError
    assert error.response == RawResponse(400, json.dumps(body).encode())


@pytest.mark.parametrize(
    "body",
    [
        b'{"approved":true,"redirectUrl":"https://a.example","redirectUrl":"https://b.example"}',
        b'{"approved":true,"redirectUrl":5}',
        b'{"approved":true,"redirectUrl":" "}',
    ],
)
def test_approve_unusable_redirect_keeps_the_decision(body: bytes) -> None:
    """It is unknown which of two redirect URLs is right, so neither is returned (spec §1.3)."""
    assert decided(Approved, 201, body).meta.unread == ("redirectUrl",)


WITH_TOKEN = call_of(endpoints.APPROVE, approval_request(order_token="T-1"))


@pytest.mark.parametrize(
    ("echo", "is_reused", "reason"),
    [
        ({"fiscalCode": FISCAL_CODE, "orderToken": "T-1", "amount": 45_000}, True, None),
        ({"fiscalCode": FISCAL_CODE.lower(), "orderToken": None}, True, None),
        ({"fiscalCode": f"{FISCAL_CODE[:4]}****{FISCAL_CODE[8:]}", "orderToken": 5}, True, None),
        ({}, False, None),
        ({"fiscalCode": ""}, False, None),
        ({"amount": 45_001}, False, None),
        ({}, True, "fiscalCode: missing on a used connection"),
        ({"fiscalCode": None}, True, "fiscalCode: missing on a used connection"),
        ({"fiscalCode": "****"}, True, "fiscalCode: missing on a used connection"),
        ({"fiscalCode": "UNKNOWN"}, True, "fiscalCode: missing on a used connection"),
        ({"orderToken": "T-2"}, False, "orderToken: belongs to another order"),
        ({"fiscalCode": FISCAL_CODE, "amount": 45_001}, True, "amount: belongs to another order"),
    ],
    ids=str,
)
def test_decision_about_another_request_is_unknown(
    echo: dict[str, object],
    is_reused: bool,  # noqa: FBT001  (a column of the table)
    reason: str | None,
) -> None:
    """On a used connection, a response may belong to an earlier request."""
    whole = json.dumps({"approved": True, **echo}).encode()
    for body in (whole, whole[:-1] + b', "city": "Ro'):  # also if the body is cut off
        found = read(WITH_TOKEN, 201, body, is_reused=is_reused)
        if reason is None:
            assert isinstance(found, Approved)
        else:
            assert isinstance(found, UnexpectedResponseError)
            is_stray = is_reused and "fiscalCode" in reason
            assert (found.reasons, found.response) == ((reason,), RawResponse(201, body, is_stray))
