"""Request id, date and Retry-After of a response in `Meta`, to find a call in the service's logs."""

import uuid

import pytest

from loanasync import ServiceError
from loanasync._protocol.endpoints import correlation
from loanasync.testing import response, scripted_client, system_error
from support.builders import FISCAL_CODE, approval_request

UUID = "0f8fad5b-d9cb-469f-a165-70867728950e"
DATE = "Wed, 21 Oct 2015 07:28:00 GMT"
FIRST, SECOND, THIRD = "a" * 32, "b" * 32, "c" * 32


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ({}, (None, None, None)),
        *(({"X-Request-Id": each}, (each, None, None)) for each in (UUID, UUID.upper(), FIRST)),
        ({"X-Correlation-Id": UUID, "Date": DATE}, (UUID, DATE, None)),
        ({"Request-Id": UUID, "Retry-After": "30"}, (UUID, None, "30")),
        ({"Retry-After": DATE}, (None, None, DATE)),
        ({"Request-Id": THIRD, "X-Correlation-Id": SECOND, "X-Request-Id": FIRST}, (FIRST, None, None)),
        ({"Request-Id": THIRD, "X-Correlation-Id": SECOND}, (SECOND, None, None)),
        ({"Request-Id": THIRD, "X-Correlation-Id": "b"}, (None, None, None)),
    ],
    ids=str,
)  # fmt: skip
def test_correlation_is_read_from_its_headers(
    headers: dict[str, str], found: tuple[str | None, str | None, str | None]
) -> None:
    assert correlation(headers) == found


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("X-Request-Id", [
            *("", "a" * 31, "a" * 33, f"{UUID}\n", "r-17", "anna@example.com", "req:secret-token"),
            *(FISCAL_CODE, FISCAL_CODE.lower(), f"req-{FISCAL_CODE.lower()}-1", "TST-XYZ-00A00-A000A"),
            *(FISCAL_CODE.encode().hex(), str(uuid.UUID(bytes=FISCAL_CODE.encode()))),
        ]),
        *((name, ["", "soon", "-1", "1" * 11, FISCAL_CODE, DATE.replace("GMT", "+0200")])
          for name in ("Date", "Retry-After")),
        ("Server", ["nginx"]),
        ("Set-Cookie", ["session=9"]),
    ],
)  # fmt: skip
def test_correlation_drops_what_may_be_personal(name: str, values: list[str]) -> None:
    for value in values:
        assert correlation({name: value}) == (None, None, None), value


@pytest.mark.parametrize("status", [201, 503])
async def test_meta_has_the_correlation_of_the_last_attempt(status: int) -> None:
    headers = {"x-request-id": UUID, "Date": DATE, "Retry-After": "120"}
    client = scripted_client(
        system_error(), response(status, {"approved": True} if status == 201 else {}, headers)
    )
    try:
        meta = (await client.approve(FISCAL_CODE, approval_request())).meta
    except ServiceError as error:
        meta = error.meta
    assert (meta.request_id, meta.date, meta.retry_after, meta.attempts) == (UUID, DATE, "120", 2)
