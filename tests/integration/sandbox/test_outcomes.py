"""Outcomes of every tag and every fault over HTTP: the received response and the stored state."""

import asyncio
import json
import time
from typing import Any

import aiohttp
import pytest
from yarl import URL

from loanasync.sandbox.customers import Customer
from loanasync.sandbox.outcomes import FAULTS
from support.raw_shop import CODE, TOKEN, Raw

EVALUATED = {"errors": {"domain": ["User already evaluated for approval"]}}
BAKER = {"profession": "baker"}


class Received:
    """The received part of a response."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.type = ""
        self.body = b""
        self.failed: type[BaseException] | None = None

    @property
    def json(self) -> Any:
        return json.loads(self.body)


async def send(raw: Raw, method: str, path: str, body: object, timeout: float = 10) -> Received:
    """Send a request and return the received part of the response, also after a connection error."""
    received = Received()
    url = f"{raw.sandbox.base_url}/api/shops/sandbox-shop/requests{path}"
    limit = aiohttp.ClientTimeout(total=timeout)
    headers = {"X-Auth-Token": TOKEN}
    try:
        async with raw.session.request(method, url, json=body, headers=headers, timeout=limit) as response:
            received.status, received.type = response.status, response.content_type
            async for piece in response.content.iter_any():
                received.body += piece
    except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
        received.failed = type(error)
    return received


async def approve(raw: Raw, tag: str, timeout: float = 10, **changes: object) -> Received:
    timeout = 0.3 if tag.startswith("hang") else timeout
    return await send(raw, "POST", f"/{CODE}", raw.body(email=f"anna+{tag}@example.com", **changes), timeout)


async def complete(raw: Raw, timeout: float = 10, **data: str) -> Received:
    return await send(raw, "PATCH", f"/{CODE}", data or BAKER, timeout)


def customer_of(raw: Raw) -> Customer:
    return raw.sandbox._engine.customers.of(CODE)


# By fault: the received status of an approval, and the possible connection errors.
LOST = (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError)
RECEIVED: dict[str, tuple[int | None, tuple[type[BaseException], ...]]] = {
    "500": (500, ()),
    "reset": (None, LOST),
    "hang": (None, (TimeoutError,)),
    "html502": (502, ()),
    "empty": (201, ()),
    "trunc": (201, (aiohttp.ClientPayloadError,)),
    "garbage": (201, ()),
}
EACH_FAULT = [(kind, "before") for kind, fault in FAULTS.items() if fault.before]
EACH_FAULT += [(kind, "after") for kind in FAULTS]
WORDS = {("500", "before"): "500x1", ("html502", "before"): "html502", ("garbage", "after"): "garbage"}


def check_received(kind: str, received: Received, status: int = 201) -> None:
    usual, failures = RECEIVED[kind]
    assert received.status == (status if usual == 201 else usual)
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
            assert received.body.startswith(b'{"')


@pytest.mark.parametrize(("kind", "phase"), EACH_FAULT)
async def test_fault_of_a_tag_occurs_once_in_each_call(raw: Raw, kind: str, phase: str) -> None:
    tag = WORDS.get((kind, phase), f"{kind}{phase}")
    is_lost = phase == "after"
    await raw.create()
    check_received(kind, await approve(raw, tag))
    assert customer_of(raw).order.approved is (True if is_lost else None)
    entry = raw.sandbox.journal[-1]
    assert (entry.fault, entry.evaluated, entry.status) == (f"{kind}{phase}", is_lost, RECEIVED[kind][0])
    again = await approve(raw, tag)
    assert (again.status, again.json.get("approved")) == ((400, None) if is_lost else (201, True))
    await raw("POST", f"/{CODE}/documents", {})
    if is_lost:  # a rejected completion saves nothing and does not use up the fault
        assert (await complete(raw, documentCity="")).status == 400
    check_received(kind, await complete(raw, 0.3 if kind == "hang" else 10), 200)
    assert customer_of(raw).user_data == (BAKER if is_lost else {})
    assert raw.sandbox.journal[-1].fault == f"{kind}{phase}"
    assert (await complete(raw)).status == 200


async def test_reset_fault_sends_a_tcp_reset(raw: Raw) -> None:
    """Without it, the connection ends in order, and clients report another error."""
    raw.sandbox.fault("create_request=reset")
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


@pytest.mark.parametrize(
    ("tag", "statuses"),
    [("500x1", [500, 201]), ("500x11", [500] * 11 + [201]), ("html502.500x2.refused", [502, 500, 500, 422])],
)
async def test_faults_have_the_number_and_order_of_the_tag(raw: Raw, tag: str, statuses: list[int]) -> None:
    await raw.create()
    assert [(await approve(raw, tag)).status for _ in statuses] == statuses


async def test_concurrent_completions_get_one_fault(raw: Raw) -> None:
    await raw.create()
    await approve(raw, "500after")
    await raw("POST", f"/{CODE}/documents", {})
    found = await asyncio.gather(*(complete(raw) for _ in range(4)))
    assert sorted(str(each.status) for each in found) == ["200", "200", "200", "500"]


@pytest.mark.parametrize("tag", ["slow120", "slow120after", "slow120.500after"])
async def test_delays_apply_to_the_approval_and_the_completion(raw: Raw, tag: str) -> None:
    least = 0.12
    await raw.create()
    started = time.perf_counter()
    received = await approve(raw, tag)
    assert time.perf_counter() - started >= least
    assert received.status == (500 if "500" in tag else 201)
    assert raw.sandbox.journal[-1].elapsed >= least
    await raw("POST", f"/{CODE}/documents", {})
    started = time.perf_counter()
    await complete(raw)
    assert time.perf_counter() - started >= least


@pytest.mark.parametrize("phase", ["before", "after"])
async def test_slow_call_is_processed_after_the_client_disconnects(raw: Raw, phase: str) -> None:
    await raw.create()
    waiting = asyncio.create_task(approve(raw, f"slow60000{phase}"))
    while not customer_of(raw).calls.get("approve"):  # noqa: ASYNC110  (a waiting call sends no event)
        await asyncio.sleep(0)
    assert customer_of(raw).order.approved is (True if phase == "after" else None)
    waiting.cancel()
    await raw.sandbox.journal.wait_for(operation="approve", evaluated=True)
    assert (await approve(raw, "approved")).json == EVALUATED
    assert [finding.rule for finding in raw.sandbox.findings] == ["repeat-after-lost-response"]


@pytest.mark.parametrize(
    ("tag", "amount", "status"),
    [
        *(("", 5_000, 201), ("", 1_000_000, 201), ("", 1_000_001, 422), ("", 1_500_000, 422)),
        *(("approved", 1_500_000, 201), ("refused", 45_000, 422)),
    ],
)
async def test_tag_or_amount_chooses_the_decision(raw: Raw, tag: str, amount: int, status: int) -> None:
    await raw.create()
    received = await approve(raw, tag, amount=amount)
    assert (received.status, received.json["approved"]) == (status, status == 201)
    assert customer_of(raw).order.approved is (status == 201)


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
    _, created = await raw.create(email=email)
    assert created["additionalDataNeeded"] is True
    for tagged in ("anna@example.com", email):
        status, body = await raw.approve(email=tagged)
        assert (status, body["errors"].keys()) == (400, ADDITIONAL.keys())
    await raw.create()
    assert (await raw.approve(email=email))[0] == 400
    assert (await raw.approve(email=email, **ADDITIONAL))[0] == 201


@pytest.mark.parametrize(("tag", "name"), [("civic", "civicNumber"), ("street", "streetNumber")])
@pytest.mark.parametrize("sent", ["civicNumber", "streetNumber"])
async def test_tag_chooses_the_name_of_the_street_number(raw: Raw, tag: str, name: str, sent: str) -> None:
    await raw.create()
    changes: dict[str, Any] = {"streetNumber": "absent", sent: "12"}
    received = (await approve(raw, f"{tag}.noredirect", **changes)).json
    assert received[name] == "12"
    assert len({"civicNumber", "streetNumber"} & received.keys()) == 1
    assert "redirectUrl" not in received


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
        ("refused", 200, BAKER),
    ],
)
async def test_completion_has_the_error_of_the_stored_tag(
    raw: Raw, tag: str, status: int, body: object
) -> None:
    await raw.create()
    await approve(raw, tag)
    await raw("POST", f"/{CODE}/documents", {})
    received = await complete(raw)
    assert (received.status, received.json) == (status, body)
