"""Decisions of `approve`, read from the status and from a complete or partial body (spec §3, §4.1, §7)."""

import json

import pytest

from loanasync import (
    AlreadyEvaluatedError,
    Approved,
    Problem,
    RawResponse,
    Refused,
    UnexpectedResponseError,
)
from loanasync.testing import response, scripted_client
from support.builders import FISCAL_CODE, approval_request
from support.line_count import lines_run
from support.response_reader import APPROVE, errors, read

LARGEST = 1 << 20


def unknown(status: int, body: object, fault: str | None = None) -> UnexpectedResponseError:
    """Read an unexpected response, and check that the error contains it."""
    error = read(APPROVE, status, body, fault=fault)
    assert isinstance(error, UnexpectedResponseError), error
    assert (error.outcome, error.repeatable, error.status) == ("unknown", False, status)
    received = body if isinstance(body, bytes) else json.dumps(body).encode()
    assert error.response == RawResponse(status, received)
    assert error.operation == "approve"
    return error


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({}, "approved: missing"),
        ({"redirectUrl": "https://x.example/#t"}, "approved: missing"),
        ({"approved": "true"}, "approved: expected a boolean"),
        ({"approved": 1}, "approved: expected a boolean"),
        ({"approved": None}, "approved: expected a boolean"),
        (b'{"approved":true,"approved":true}', "approved: given more than once"),
        (b'{"approved":true,"\\u0061pproved":false}', "approved: given more than once"),
        (b"", "body: empty"),
        (b"<html>", "body: not JSON"),
        (b"[true]", "body: not a JSON object"),
        (b'"approved"', "body: not a JSON object"),
    ],
    ids=str,
)
def test_approve_201_without_a_boolean_is_unknown(body: object, reason: str) -> None:
    assert unknown(201, body).reasons == (reason,)


@pytest.mark.parametrize("fault", ["truncated", "timed out"])
@pytest.mark.parametrize(
    "part",
    [
        b'{"approved":true',
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
    decision = read(APPROVE, 201, part, fault=fault)
    assert isinstance(decision, Approved)
    assert (decision.redirect_url, decision.meta.unread, decision.meta.status) == (None, ("body",), 201)


@pytest.mark.parametrize(
    "part",
    [
        b"",
        b"{",
        b'{"approved"',
        b'{"approved":',
        b'{"approved":tru',
        b'{"approved":"true",',
        b'{"approved":1,',
        b'{"approved":false,"amount":4',
        b'{"approved":true,"approved":true,',
        b'{"approved":true,"approved":false,',
        b'{"approved":true,"approved":fal',
        b'{"data":{"approved":true},"x',
        b'{"data":{"approved":true',
        b'{"approved":true,"data":{"approved":false},"x',
        b'{"list":[{"approved":true}],"x',
        b'[{"approved":true},',
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


def test_approve_201_truncated_with_many_trues_is_read_once() -> None:
    """Reading each occurrence separately would take quadratic time."""
    unknown(201, b"{" + b'"approved":true,' * (LARGEST // 16 - 1), "truncated")


def test_approve_201_broken_json_with_approved_true_is_approved() -> None:
    decision = read(APPROVE, 201, b'{"approved":true,"redirectUrl":https://x.example}')
    assert isinstance(decision, Approved)
    assert (decision.redirect_url, decision.meta.unread) == (None, ("body",))


@pytest.mark.parametrize("body", [b"", b" \r\n\t"], ids=str)
def test_approve_422_with_an_empty_body_is_refused(body: bytes) -> None:
    decision = read(APPROVE, 422, body)
    assert isinstance(decision, Refused)
    assert decision.meta.unread == ("body",)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"approved": True}, "approved: contradicts status 422"),
        ({}, "approved: missing"),
        ({"approved": "false"}, "approved: expected a boolean"),
        ({"approved": 0}, "approved: expected a boolean"),
        ({"approved": None}, "approved: expected a boolean"),
        (b'{"approved":false,"approved":false}', "approved: given more than once"),
        (b"<html>", "body: not JSON"),
        (b'{"approved":false', "body: not JSON"),
        (b"[]", "body: not a JSON object"),
        (b"false", "body: not a JSON object"),
        (b'{"approved":false,"city":"Forl\xec"}', "body: not UTF-8"),
    ],
    ids=str,
)
def test_approve_422_without_approved_false_is_unknown(body: object, reason: str) -> None:
    error = unknown(422, body)
    assert (error.reasons, error.problems) == ((reason,), ())


def test_approve_422_with_validation_errors_keeps_its_problems() -> None:
    """Many web frameworks return 422 for a request that fails their validation."""
    error = unknown(422, errors(lastname=["This value should not be blank."], email="anna@example.com: no"))
    assert error.problems == (
        Problem("last_name", "lastname", "This value should not be blank."),
        Problem("email", "email", "anna@example.com: no"),
    )
    assert "last_name: This value should not be blank.; email: ***" in str(error)


def test_approve_already_evaluated_with_approved_keeps_the_response() -> None:
    body = {"approved": True, **errors(domain=["User already evaluated for approval"])}
    error = read(APPROVE, 400, body)
    assert type(error) is AlreadyEvaluatedError
    assert error.response == RawResponse(400, json.dumps(body).encode())


@pytest.mark.parametrize("url", ["", " ", "\t\n"], ids=ascii)
def test_approve_blank_redirect_is_none_and_unread(url: str) -> None:
    """Spec §1.3: a customer cannot be redirected to an empty URL."""
    decision = read(APPROVE, 201, {"approved": True, "redirectUrl": url})
    assert isinstance(decision, Approved)
    assert (decision.redirect_url, decision.meta.unread) == (None, ("redirectUrl",))
    assert decision.raw["redirectUrl"] == url


@pytest.mark.parametrize(
    "body",
    [
        b'{"approved":true,"redirectUrl":"https://a.example","redirectUrl":"https://b.example"}',
        b'{"approved":true,"redirectUrl":5}',
    ],
)
def test_approve_unusable_redirect_keeps_the_decision(body: bytes) -> None:
    """It is unknown which of two redirect URLs is right, so neither is returned."""
    decision = read(APPROVE, 201, body)
    assert isinstance(decision, Approved)
    assert (decision.redirect_url, decision.meta.unread) == (None, ("redirectUrl",))


async def test_approve_unexpected_response_error_has_the_response() -> None:
    client = scripted_client(
        response(201, {"redirectUrl": "https://x.example/#t", "email": "anna@example.com"})
    )
    with pytest.raises(UnexpectedResponseError) as caught:
        await client.approve(FISCAL_CODE, approval_request())
    error = caught.value
    assert error.response is not None
    assert b"https://x.example/#t" in error.response.body
    for shown in (repr(error), str(error), repr(error.response), repr(error.args)):
        assert "x.example" not in shown
        assert "anna" not in shown
    assert repr(error.response) == "RawResponse(status=201, body=***)"


def test_truncated_body_with_many_names_is_read_once() -> None:
    def work(count: int) -> int:
        body = b'{"x":[%s' % (b"0," * 10_000) + b'"approved":1,' * count
        return lines_run(lambda: read(APPROVE, 201, body, fault="truncated"))

    once = work(1)  # first: the first reading also compiles regular expressions
    assert work(10) < once + 1_000


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
