"""Outcomes of every tag and every fault over HTTP: the received response and the stored state."""

import asyncio
import json
import time
from typing import Any

import aiohttp
import pytest
from yarl import URL

from loanasync import (
    AccessDeniedError,
    AlreadyEvaluatedError,
    ApprovalRequest,
    Approved,
    CannotCompleteError,
    ConnectionLostError,
    LoanError,
    ReadTimeoutError,
    Refused,
    RejectedError,
    RetryPolicy,
    ShopNotAllowedError,
    SystemFaultError,
    Timeout,
    UnexpectedResponseError,
    UnexpectedStatusError,
    UserNotFoundError,
)
from loanasync.sandbox.customers import Customer
from support.raw_shop import CODE, TOKEN, Raw

EVALUATED = {"errors": {"domain": ["User already evaluated for approval"]}}


class Received:
    """The received part of a response."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.type = ""
        self.body = b""
        self.pieces = 0
        self.failed: type[BaseException] | None = None

    @property
    def json(self) -> Any:
        return json.loads(self.body)


async def send(raw: Raw, method: str, path: str, body: object, timeout: float = 10) -> Received:
    """Send a request and return the received part of the response, also after a connection error."""
    received = Received()
    url = f"{raw.sandbox.base_url}/api/shops/sandbox-shop/requests{path}"
    limit = aiohttp.ClientTimeout(total=timeout)
    sent = json.dumps(body).encode()
    headers = {"X-Auth-Token": "sandbox-token"}
    try:
        async with raw.session.request(method, url, data=sent, headers=headers, timeout=limit) as response:
            received.status, received.type = response.status, response.content_type
            async for piece in response.content.iter_any():
                received.body += piece
                received.pieces += 1
    except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
        received.failed = type(error)
    return received


async def approve(raw: Raw, tag: str, timeout: float = 10, **changes: object) -> Received:
    body = raw.body(email=f"anna+{tag}@example.com", **changes)
    return await send(raw, "POST", f"/{CODE}", body, timeout)


def customer_of(raw: Raw) -> Customer:
    return raw.sandbox._engine.customers.of(CODE)


# By fault: the received status, and the possible connection errors.
LOST = (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError)
FAULTS: dict[str, tuple[int | None, tuple[type[BaseException], ...]]] = {
    "500": (500, ()),
    "reset": (None, LOST),
    "hang": (None, (TimeoutError,)),
    "html502": (502, ()),
    "empty": (201, ()),
    "trunc": (201, (aiohttp.ClientPayloadError,)),
    "garbage": (201, ()),
}
BEFORE = ("500", "reset", "hang", "html502")
WORDS = {("500", "before"): "500x1", ("html502", "before"): "html502", ("garbage", "after"): "garbage"}


def check_received(kind: str, received: Received) -> None:
    status, failures = FAULTS[kind]
    assert received.status == status
    assert (received.failed in failures) if failures else received.failed is None
    match kind:
        case "500":
            assert received.json == {"errors": {"system": ["System error"]}}  # spec §7
        case "html502":
            assert (received.type, b"<html" in received.body) == ("text/html", True)
        case "empty":
            assert (received.type, received.body) == ("application/json", b"")
        case "garbage":
            with pytest.raises(ValueError, match="decode"):
                _ = received.json
        case "trunc":
            assert received.body.startswith(b'{"approved"')


async def test_reset_fault_sends_a_tcp_reset(raw: Raw) -> None:
    """Without it, the connection ends in order, and clients report another error."""
    raw.sandbox.on("create_request").respond("reset")
    url = URL(raw.sandbox.base_url)
    body = json.dumps({"fiscalCode": CODE})
    head = f"POST /api/shops/sandbox-shop/requests HTTP/1.1\r\nHost: x\r\nX-Auth-Token: {TOKEN}\r\n"
    reader, writer = await asyncio.open_connection(url.host, url.port)
    try:
        writer.write(f"{head}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        with pytest.raises(ConnectionResetError):
            await reader.read()
    finally:
        writer.close()


@pytest.mark.parametrize("kind", BEFORE)
async def test_fault_before_the_decision_decides_nothing(raw: Raw, kind: str) -> None:
    await raw.create()
    tag = WORDS.get((kind, "before"), f"{kind}before")
    check_received(kind, await approve(raw, tag, 0.3 if kind == "hang" else 10))
    assert customer_of(raw).approved is None
    entry = raw.sandbox.journal[-1]
    assert (entry.fault, entry.evaluated, entry.status) == (f"{kind}before", False, FAULTS[kind][0])
    again = await approve(raw, tag)
    assert (again.status, again.json["approved"]) == (201, True)
    assert customer_of(raw).approved is True


@pytest.mark.parametrize("kind", list(FAULTS))
async def test_fault_after_the_decision_loses_the_response(raw: Raw, kind: str) -> None:
    await raw.create()
    tag = WORDS.get((kind, "after"), f"{kind}after")
    check_received(kind, await approve(raw, tag, 0.3 if kind == "hang" else 10))
    assert customer_of(raw).approved is True
    entry = raw.sandbox.journal[-1]
    assert (entry.fault, entry.evaluated, entry.status) == (f"{kind}after", True, FAULTS[kind][0])
    again = await approve(raw, tag)
    assert (again.status, again.json) == (400, EVALUATED), "the fault applies to one response only"


@pytest.mark.parametrize("times", [1, 2, 11])
async def test_500_tag_sets_the_number_of_system_faults(raw: Raw, times: int) -> None:
    await raw.create()
    statuses = [(await approve(raw, f"500x{times}")).status for _ in range(times + 1)]
    assert statuses == [500] * times + [201]


async def test_faults_keep_the_order_of_the_tag(raw: Raw) -> None:
    await raw.create()
    received = [await approve(raw, "html502.500x2.refused") for _ in range(4)]
    assert [each.status for each in received] == [502, 500, 500, 422]


@pytest.mark.parametrize("phase", ["", "after"])
async def test_slow_response_takes_at_least_its_delay(raw: Raw, phase: str) -> None:
    await raw.create()
    started = time.perf_counter()
    received = await approve(raw, f"slow120{phase}")
    assert time.perf_counter() - started >= 0.12
    assert (received.status, customer_of(raw).approved) == (201, True)
    assert raw.sandbox.journal[-1].elapsed >= 0.12


async def test_slow_call_is_processed_after_the_client_disconnects(raw: Raw) -> None:
    await raw.create()
    received = await approve(raw, "slow60000", timeout=0.2)
    assert received.failed is TimeoutError
    await raw.sandbox.journal.wait_for(1, operation="approve", evaluated=True)
    assert customer_of(raw).approved is True


@pytest.mark.parametrize("phase", ["before", "after"])
async def test_slow_after_decides_before_the_delay(raw: Raw, phase: str) -> None:
    await raw.create()
    await approve(raw, f"slow60000{phase}", timeout=0.2)
    await raw.sandbox.journal.wait_for(1, operation="approve", evaluated=True)
    assert (await approve(raw, "approved")).json == EVALUATED


async def test_drip_sends_the_whole_response_in_pieces(raw: Raw) -> None:
    await raw.create()
    received = await approve(raw, "drip")
    assert received.pieces >= 5
    assert (received.status, received.json["approved"]) == (201, True)


async def test_delays_and_faults_can_be_combined(raw: Raw) -> None:
    await raw.create()
    started = time.perf_counter()
    received = await approve(raw, "slow100.drip.500after")
    assert time.perf_counter() - started >= 0.1
    assert (received.status, received.pieces >= 5, customer_of(raw).approved) == (500, True, True)


@pytest.mark.parametrize(
    ("tag", "amount", "status"),
    [("approved", 45_000, 201), ("approved", 1_500_000, 201), ("refused", 45_000, 422)],
)
async def test_tag_chooses_the_decision(raw: Raw, tag: str, amount: int, status: int) -> None:
    await raw.create()
    received = await approve(raw, tag, amount=amount)
    assert (received.status, received.json["approved"]) == (status, status == 201)
    assert customer_of(raw).approved is (status == 201)


@pytest.mark.parametrize(
    ("tag", "status", "body"),
    [
        ("already", 400, EVALUATED),
        ("nouser", 400, {"errors": {"domain": ["User not found"]}}),
        ("noshop", 400, {"errors": {"domain": ["This sales point cannot apply for a loan"]}}),
        ("conflict", 409, {"errors": "The request cannot be completed"}),
        ("forbidden", 403, {"error": "Access denied"}),
        ("invalid.city", 400, {"errors": {"city": ["This value should not be blank."]}}),
        (
            "invalid.amount.invalid.streetnumber",
            400,
            {
                "errors": {
                    "amount": ["This value should be between 5000 and 1500000"],
                    "streetNumber": ["This value should not be blank."],
                }
            },
        ),
    ],
)
async def test_tag_with_an_error_decides_nothing(raw: Raw, tag: str, status: int, body: object) -> None:
    await raw.create()
    received = await approve(raw, tag)
    assert (received.status, received.json) == (status, body)
    assert customer_of(raw).approved is None


ADDITIONAL: dict[str, Any] = {
    "residence": "rent",
    "residenceStartDate": "05/2015",
    "educationalQualification": "diploma",
    "children": "0",
    "salaryType": "net-monthly",
    "salary": 1500,
}


async def test_additional_requires_the_conditional_fields(raw: Raw) -> None:
    email = "anna+additional@example.com"
    await raw.create()
    status, body = await raw.approve(email=email)
    assert (status, body["errors"].keys()) == (400, ADDITIONAL.keys())
    assert (await raw.approve(email=email, **ADDITIONAL))[0] == 201


async def test_additional_in_a_creation_is_announced(raw: Raw) -> None:
    _, created = await raw.create(email="anna+additional@example.com")
    assert created["additionalDataNeeded"] is True
    assert (await raw.approve())[0] == 400


async def test_noredirect_omits_the_redirect_url(raw: Raw) -> None:
    await raw.create()
    received = await approve(raw, "noredirect")
    assert received.status == 201
    assert "redirectUrl" not in received.json


@pytest.mark.parametrize(("tag", "name"), [("civic", "civicNumber"), ("street", "streetNumber")])
@pytest.mark.parametrize("sent", ["civicNumber", "streetNumber"])
async def test_tag_chooses_the_name_of_the_street_number(raw: Raw, tag: str, name: str, sent: str) -> None:
    await raw.create()
    changes: dict[str, Any] = {"streetNumber": "absent", sent: "12"}
    received = await approve(raw, tag, **changes)
    assert received.json[name] == "12"
    assert len({"civicNumber", "streetNumber"} & received.json.keys()) == 1


async def ready_to_complete(raw: Raw, tag: str) -> None:
    """Prepare a completion: create a request, approve it with this tag and upload documents."""
    await raw.create()
    await approve(raw, tag, 0.3 if "hang" in tag else 10)
    await raw("POST", f"/{CODE}/documents", {})


@pytest.mark.parametrize("kind", ["500", "reset", "hang", "html502"])
@pytest.mark.parametrize("phase", ["before", "after"])
async def test_completion_has_the_fault_of_the_stored_tag(raw: Raw, kind: str, phase: str) -> None:
    await ready_to_complete(raw, f"{kind}{phase}")
    timeout = 0.3 if kind == "hang" else 10
    received = await send(raw, "PATCH", f"/{CODE}", {"profession": "baker"}, timeout)
    check_received(kind, received)
    assert customer_of(raw).user_data == ({"profession": "baker"} if phase == "after" else {})
    entry = raw.sandbox.journal[-1]
    assert (entry.operation, entry.fault) == ("complete", f"{kind}{phase}")


@pytest.mark.parametrize("kind", ["empty", "trunc", "garbage"])
async def test_completion_is_saved_when_its_response_is_lost(raw: Raw, kind: str) -> None:
    await ready_to_complete(raw, f"{kind}after")
    received = await send(raw, "PATCH", f"/{CODE}", {"profession": "baker"})
    assert received.status == 200
    assert received.body != b'{"profession": "baker"}'
    assert customer_of(raw).user_data == {"profession": "baker"}


@pytest.mark.parametrize(
    ("tag", "status", "body"),
    [
        ("forbidden", 403, {"error": "Access denied"}),
        ("nouser", 400, {"errors": {"domain": ["User not found"]}}),
        (
            "invalid.documentcity",
            400,
            {"errors": {"documentCity": ["Questo valore non dovrebbe essere vuoto."]}},
        ),
        ("refused", 200, {"profession": "baker"}),
    ],
)
async def test_completion_has_the_error_of_the_stored_tag(
    raw: Raw, tag: str, status: int, body: object
) -> None:
    await ready_to_complete(raw, tag)
    received = await send(raw, "PATCH", f"/{CODE}", {"profession": "baker"})
    assert (received.status, received.json) == (status, body)


async def test_completion_has_the_delays_of_the_stored_tag(raw: Raw) -> None:
    await ready_to_complete(raw, "slow100.drip")
    started = time.perf_counter()
    received = await send(raw, "PATCH", f"/{CODE}", {"profession": "baker", "documentCity": "Roma" * 50})
    assert time.perf_counter() - started >= 0.1
    assert (received.status, received.pieces >= 5) == (200, True)


@pytest.mark.parametrize(
    ("tag", "expected"),
    [
        ("approved", Approved),
        ("refused", Refused),
        ("500x2", Approved),
        ("500x3", SystemFaultError),
        ("500after", AlreadyEvaluatedError),
        ("resetbefore", ConnectionLostError),
        ("resetafter", ConnectionLostError),
        ("hangbefore", ReadTimeoutError),
        ("hangafter", ReadTimeoutError),
        ("emptyafter", UnexpectedResponseError),
        ("truncafter", Approved),  # the part that arrives has "approved": true
        ("garbage", UnexpectedResponseError),
        ("html502", UnexpectedStatusError),
        ("slow50", Approved),
        ("drip", Approved),
        ("already", AlreadyEvaluatedError),
        ("nouser", UserNotFoundError),
        ("noshop", ShopNotAllowedError),
        ("conflict", CannotCompleteError),
        ("forbidden", AccessDeniedError),
        ("invalid.email", RejectedError),
        ("noredirect", Approved),
        ("civic", Approved),
    ],
)
async def test_sdk_reads_the_response_of_each_tag(raw: Raw, tag: str, expected: type) -> None:
    await raw.create()
    request = ApprovalRequest(
        amount=45_000,
        instalments=12,
        email=f"anna+{tag}@example.com",
        last_name="Prova",
        first_name="Anna",
        mobile_phone="3330000000",
        city="Roma",
        address="Via Prova",
        province="RM",
        postal_code="00100",
        street_number="12",
        citizenship="italian",
    )
    timeout = Timeout(total=10, attempt=1, connect=0.9) if "hang" in tag else Timeout()
    async with raw.sandbox.client(retry=RetryPolicy(base=0.001), timeout=timeout) as client:
        outcome: object
        try:
            outcome = await client.approve(CODE, request)
        except LoanError as error:
            outcome = error
    assert type(outcome) is expected
    assert len(raw.sandbox.findings) == 0
