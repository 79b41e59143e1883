"""Readers of the endpoints: the outcome or error for each status of each call (spec §3, §4, §7)."""

import json
import pickle
from collections.abc import Mapping, Sequence

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loanasync import Approved, LoanError, Problem, RawResponse, Refused, UserData, errors
from loanasync._protocol.endpoints import Call
from support.builders import FISCAL_CODE, user_data
from support.response_reader import APPROVE, COMPLETE, CREATE, DOCUMENTS, error_body, read


@pytest.mark.parametrize(
    ("call", "method", "path"),
    [
        (APPROVE, "POST", f"/shop%3A1/requests/{FISCAL_CODE}"),
        (COMPLETE, "PATCH", f"/shop%3A1/requests/{FISCAL_CODE}"),
        (CREATE, "POST", "/shop%3A1/requests"),
        (DOCUMENTS, "POST", f"/shop%3A1/requests/{FISCAL_CODE}/documents"),
    ],
    ids=["approve", "complete", "create_request", "upload_documents"],
)
def test_call_url_is_masked_in_repr(call: Call, method: str, path: str) -> None:
    request = call.request({"traceparent": "x"})
    assert (request.method, request.url) == (method, f"https://loans.example.com/base/api/shops{path}")
    assert request.headers["X-Auth-Token"] == "secret-token"
    assert request.headers["traceparent"] == "x"
    assert call.request({}).headers is call.shop.headers  # so that a transport can keep their bytes
    redacted = path.replace("shop%3A1", "REDACTED").replace(FISCAL_CODE, "REDACTED")
    assert call.redacted_url == f"https://loans.example.com/base/api/shops{redacted}"
    shown = repr(call) + repr(request)
    assert not [secret for secret in (FISCAL_CODE, "secret-token", "anna@") if secret in shown]


def test_validation_problems_have_field_names_in_order() -> None:
    body = error_body(lastname=["a", "b"], civicNumber=["c"], actualJobEndingDate=["d"], email="e")
    known = (
        Problem("last_name", "lastname", "a"),
        Problem("last_name", "lastname", "b"),
        Problem("street_number", "civicNumber", "c"),
        Problem("actualJobEndingDate", "actualJobEndingDate", "d"),
        Problem("email", "email", "e"),
    )
    error = read(APPROVE, 400, body)
    assert (type(error), error.problems) == (errors.RejectedError, known)
    body["errors"] |= {"newField": 5}  # type: ignore[operator]  # a dict
    error = read(APPROVE, 400, body)
    assert type(error) is errors.UnexpectedResponseError
    assert error.problems == (*known, Problem("newField", "newField", "is not accepted"))


@pytest.mark.parametrize(
    ("status", "body", "kind", "message"),
    [
        (403, {"error": "Access denied"}, errors.AccessDeniedError, "Access denied"),
        (409, {"errors": "Not now"}, errors.CannotCompleteError, "Not now"),
        (500, error_body(system=["System error"]), errors.SystemFaultError, "System error"),
    ],
)
def test_error_status_is_read_in_its_shape(
    status: int, body: object, kind: type[errors.ServiceError], message: str
) -> None:
    error = read(APPROVE, status, body)
    assert (type(error), error.status, error.operation) == (kind, status, "approve")
    assert [problem.message for problem in error.problems] == [message]
    for other in (b"", b"<html>", b"{}", b'{"errors": null}'):
        error = read(APPROVE, status, other)
        assert (type(error), error.problems) == (kind, ())
    part = read(APPROVE, status, b"", fault="truncated")  # the rest may contain a decision
    assert type(part) is (kind if status == 409 else errors.UnexpectedResponseError)


def test_completion_with_unreadable_members_is_saved() -> None:
    """Spec §4.2: 200 is success."""
    assert read(COMPLETE, 200, COMPLETE.body) == user_data()
    saved = read(COMPLETE, 200, b'{"usPerson":"no","marketing":true}')
    assert (saved, saved.unread) == (UserData(marketing=True), ("usPerson",))
    for body in (b"", b" \r\n", b"{}"):
        assert read(COMPLETE, 200, body) == UserData()
    assert read(COMPLETE, 200, b'{"iban":"IT00","iban":"IT01"}') == UserData(iban="IT01")


@pytest.mark.parametrize(
    ("body", "fault", "reason"),
    [
        (b'{"iban"', None, "body: not JSON"),
        (b"<html>", None, "body: not JSON"),
        (b"[]", None, "body: not a JSON object"),
        (b"null", None, "body: not a JSON object"),
        (b"", "truncated", "body: truncated"),
        (b'{"iban"', "timed out", "body: timed out"),
    ],
)
def test_completion_with_unreadable_body_is_done(body: bytes, fault: str | None, reason: str) -> None:
    error = read(COMPLETE, 200, body, fault=fault)
    assert isinstance(error, errors.UnexpectedResponseError)
    assert (error.reasons, error.outcome, error.status) == ((reason,), "done", 200)
    assert error.response == RawResponse(200, body)
    assert str(error).endswith(": the service has carried out the call; do not repeat it")


@pytest.mark.parametrize(("size", "is_stray"), [(10, False), (70_000, True)])
def test_long_body_of_an_error_is_not_searched_for_the_customer(size: int, *, is_stray: bool) -> None:
    body = {"fiscalCode": FISCAL_CODE, "approved": "?", "text": "x" * size}
    assert read(APPROVE, 404, body, is_reused=True).response.is_stray is is_stray


@pytest.mark.parametrize("echoed", ["TSTXYZ00A00A000B", "TST1***"])
@pytest.mark.parametrize("status", [400, 404, 409, 500])
def test_error_of_a_call_without_a_customer_may_echo_a_code(status: int, echoed: str) -> None:
    error = read(CREATE, status, {"error": "x", "fiscalCode": echoed}, is_reused=True)
    assert isinstance(error, LoanError)
    if status in (404, 409):
        assert not error.response.is_stray  # type: ignore[attr-defined]


@pytest.mark.parametrize("call", [CREATE, DOCUMENTS], ids=["create_request", "upload_documents"])
def test_prerequisite_response_is_any_json_value(call: Call) -> None:
    """Spec §4.3: the shapes of creation and documents are not shown."""
    for status in (200, 201, 202, 204, 299):
        for value in ({"a": [1]}, {}, [], ["created", {"a": 1}], "created", "", 5, 0.5, True, None):
            found = read(call, status, value)
            assert found == value
            assert not isinstance(found, list | dict), "objects and arrays are read-only"
        assert read(call, status, b"") == read(call, status, b" \n") == {}
    for body, fault, reason in (
        (b"<html>", None, "body: not JSON"),
        (b"[1", None, "body: not JSON"),
        (b"", "truncated", "body: truncated"),
        (b"{}", "truncated", "body: truncated"),
    ):
        error = read(call, 200, body, fault=fault)
        assert isinstance(error, errors.UnexpectedResponseError)
        assert (error.reasons, error.outcome, error.status) == ((reason,), "unknown", 200)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)
MEMBERS = st.dictionaries(
    st.sampled_from(["approved", "redirectUrl", "errors", "error", "amount", "usPerson", "x"]),
    JSON_VALUES | st.dictionaries(st.sampled_from(["domain", "email", "x"]), JSON_VALUES, max_size=3),
)


@given(
    st.sampled_from([APPROVE, COMPLETE, CREATE, DOCUMENTS]),
    st.sampled_from([200, 201, 204, 400, 403, 409, 422, 500]) | st.integers(100, 999),
    st.binary(max_size=40) | MEMBERS.map(lambda members: json.dumps(members).encode()),
    st.sampled_from([None, "truncated"]),
)
def test_any_response_is_an_outcome_or_a_loan_error(
    call: Call, status: int, body: bytes, fault: str | None
) -> None:
    outcome = read(call, status, body, fault=fault)
    open_shape = Mapping | Sequence | int | float | None if call in (CREATE, DOCUMENTS) else Approved
    assert isinstance(outcome, Approved | Refused | UserData | LoanError | open_shape)
    assert isinstance(outcome, Approved) <= (status == 201 and call is APPROVE)
    assert isinstance(outcome, Refused) <= (status in (201, 422) and call is APPROVE)
    if isinstance(outcome, LoanError):
        assert pickle.loads(pickle.dumps(outcome)) == outcome  # noqa: S301  (our own bytes)


def test_sent_names_of_a_body_that_is_nested_too_deeply_are_unknown() -> None:
    call = attrs.evolve(APPROVE, body=b"[" * 100_000)
    assert type(read(call, 400, error_body(lastname=["no"]))) is errors.RejectedError
    assert type(read(call, 400, error_body(coupon=["no"]))) is errors.UnexpectedResponseError
