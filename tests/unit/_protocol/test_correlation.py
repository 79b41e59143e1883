"""Request id, date and Retry-After of a response in `Meta`, to find a call in the service's logs."""

import uuid
from typing import Any

import attrs
import pytest

from loanasync import Meta, ServiceError
from loanasync.testing import response, scripted_client
from support.builders import FISCAL_CODE, approval_request

TOKEN = "secret-token"
UUID = "0f8fad5b-d9cb-469f-a165-70867728950e"
DATE = "Wed, 21 Oct 2015 07:28:00 GMT"
APPROVED: dict[str, Any] = {"approved": True, "redirectUrl": "https://x.example/#t"}


async def meta(**headers: str) -> Meta:
    """Return the metadata of an approval whose response has these headers."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    client = scripted_client(response(201, APPROVED, named), auth_token=TOKEN)
    return (await client.approve(FISCAL_CODE, approval_request())).meta


async def test_meta_without_headers_has_no_correlation() -> None:
    found = await meta()
    assert (found.request_id, found.date, found.retry_after) == (None, None, None)


@pytest.mark.parametrize("name", ["X_Request_Id", "x_request_id", "X_Correlation_Id", "Request_Id"])
@pytest.mark.parametrize("value", [UUID, UUID.upper(), UUID.replace("-", "")])
async def test_meta_has_the_request_id(name: str, value: str) -> None:
    found = await meta(**{name: value})
    assert (found.request_id, found.date, found.retry_after) == (value, None, None)


async def test_meta_prefers_the_most_common_header_of_the_request_id() -> None:
    first, second, third = ("a" * 32, "b" * 32, "c" * 32)
    assert (await meta(Request_Id=third, X_Correlation_Id=second, X_Request_Id=first)).request_id == first
    assert (await meta(Request_Id=third, X_Correlation_Id=second)).request_id == second
    assert (await meta(Request_Id=third, X_Correlation_Id="b")).request_id is None


@pytest.mark.parametrize(
    "value",
    [
        "",
        "a" * 31,
        "a" * 33,
        f"{UUID}\n",
        "r-17",
        "5f0c-1",
        "anna@example.com",
        FISCAL_CODE,
        FISCAL_CODE.lower(),
        f"req-{FISCAL_CODE.lower()}-1",
        f"req:{TOKEN}",
        "TST-XYZ-00A00-A000A",
        FISCAL_CODE.encode().hex(),
        str(uuid.UUID(bytes=FISCAL_CODE.encode())),
    ],
    ids=lambda value: ascii(value)[:30],
)
async def test_meta_drops_a_request_id_that_may_be_personal(value: str) -> None:
    assert (await meta(X_Request_Id=value)).request_id is None


async def test_meta_has_date_and_retry_after() -> None:
    found = await meta(Date=DATE, Retry_After="30")
    assert (found.date, found.retry_after) == (DATE, "30")
    assert (await meta(Retry_After=DATE)).retry_after == DATE


@pytest.mark.parametrize(
    "value", ["", "soon", "-1", "1" * 11, FISCAL_CODE, "Wed, 21 Oct 2015 07:28:00 +0200"]
)
async def test_meta_drops_a_date_of_another_form(value: str) -> None:
    found = await meta(Date=value, Retry_After=value)
    assert (found.date, found.retry_after) == (None, None)


async def test_meta_keeps_no_other_header() -> None:
    known = {
        "status",
        "attempts",
        "elapsed",
        "trace_id",
        "unread",
        "request_id",
        "date",
        "retry_after",
        "after_unknown",
        "entry",
    }
    assert {each.name for each in attrs.fields(Meta)} == known
    found = await meta(
        Server="nginx-9", Location="https://x.example/9", Set_Cookie="session=9", X_Trace="t-9"
    )
    assert not [each for each in ("nginx", "x.example/9", "session", "t-9") if each in repr(found)]


@pytest.mark.parametrize(
    ("status", "body"), [(400, {"errors": {"email": ["no"]}}), (403, {}), (409, {}), (429, {}), (503, {})]
)
async def test_error_meta_has_the_correlation(status: int, body: dict[str, Any]) -> None:
    headers = {"X-Request-Id": UUID, "Date": DATE, "Retry-After": "120"}
    with pytest.raises(ServiceError) as caught:
        await scripted_client(response(status, body, headers)).approve(FISCAL_CODE, approval_request())
    found = caught.value.meta
    assert (found.request_id, found.date, found.retry_after) == (UUID, DATE, "120")


async def test_meta_has_the_correlation_of_the_last_attempt() -> None:
    client = scripted_client(
        response(500, {}, {"X-Request-Id": "1" * 32}), response(201, APPROVED, {"X-Request-Id": UUID})
    )
    decision = await client.approve(FISCAL_CODE, approval_request())
    assert (decision.meta.request_id, decision.meta.attempts) == (UUID, 2)
