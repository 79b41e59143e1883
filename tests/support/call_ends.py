"""Calls that end in each way, with the points of `loanasync.call.duration` that they record."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import NoReturn, cast

import attrs

from loanasync import CircuitBreaker, ConfigurationError, InvalidRequestError, LoanClient, Telemetry
from loanasync.ledger import Ledger, MemoryLedger
from loanasync.testing import (
    ScriptedResponse,
    ScriptedTransport,
    approved,
    connection_lost,
    denied,
    fiscal_code,
    not_connected,
    refused,
    response,
    system_error,
)
from support import ledger_clients
from support.builders import FISCAL_CODE, approval_request, user_data
from support.ledger_clients import FailingLedger, broken, held_response
from support.memory_clients import Shop, cancelled, started
from support.virtual_time import turns

Point = tuple[str, str, str | None, int]  # operation, outcome, class of the error, attempts
Play = Callable[[Telemetry], Coroutine[None, None, None]]

SENT: Point = ("approve", "approved", None, 1)
KNOWN: Point = ("approve", "approved", None, 0)
LOST: Point = ("approve", "unknown", "ConnectionLostError", 1)
OTHER_DATA = attrs.evolve(approval_request(), amount=46_000)


def not_sent(error: str | None, operation: str = "approve") -> Point:
    return operation, "not_sent", error, 0


def scripted(*steps: ScriptedResponse, calls: int = 1) -> Play:
    """Return the play of this number of approvals of one customer without a ledger."""

    async def play(telemetry: Telemetry) -> None:
        shop = Shop(*steps, telemetry=telemetry)
        for _ in range(calls):
            await shop.approve()

    return play


def with_ledger(
    *steps: ScriptedResponse, ledger: Callable[[], Ledger] = MemoryLedger, calls: int = 1
) -> Play:
    """Return the play of this number of approvals of one customer with a ledger."""

    async def play(telemetry: Telemetry) -> None:
        shop = ledger_clients.Shop(*steps, ledger=ledger(), options={"telemetry": telemetry})
        for _ in range(calls):
            await shop.result()

    return play


async def created(telemetry: Telemetry) -> None:
    client = ScriptedTransport(response(201, b"null"), denied()).client(telemetry=telemetry)
    await client.create_request({"fiscalCode": FISCAL_CODE})
    with contextlib.suppress(Exception):
        await client.create_request({"fiscalCode": FISCAL_CODE})


async def invalid(telemetry: Telemetry) -> None:
    shop = Shop(telemetry=telemetry)
    await shop.approve("RSSMRA")
    with contextlib.suppress(Exception):
        await shop.client.complete("RSSMRA", object())  # type: ignore[arg-type]


async def misconfigured(telemetry: Telemetry) -> None:
    with contextlib.suppress(ConfigurationError):
        await Shop(telemetry=telemetry).client.complete(FISCAL_CODE, user_data(), timeout=3)  # type: ignore[arg-type]


async def closed(telemetry: Telemetry) -> None:
    shop = Shop(telemetry=telemetry)
    await shop.client.aclose()
    await shop.approve()
    with contextlib.suppress(Exception):
        await shop.client.create_request({})


async def closed_as_the_call_begins(telemetry: Telemetry) -> None:
    shop = Shop(approved(), telemetry=telemetry)
    shop.client._pipeline.resources("approve").waits.close()
    await shop.approve()


def fail() -> NoReturn:
    raise ZeroDivisionError


async def no_transport(telemetry: Telemetry) -> None:
    client = LoanClient(
        "https://loans.example.com", shop_id="shop", auth_token="t", transport=fail, telemetry=telemetry
    )
    with contextlib.suppress(ZeroDivisionError):
        await client.approve(FISCAL_CODE, approval_request())


async def circuit_open(telemetry: Telemetry) -> None:
    shop = Shop(connection_lost(), breaker=CircuitBreaker(unknown=1), telemetry=telemetry)
    await shop.approve()
    await shop.approve(fiscal_code())


async def mismatched(telemetry: Telemetry) -> None:
    first = ledger_clients.Shop(approved(), options={"telemetry": telemetry})
    await first.approve()
    other = {"telemetry": telemetry, "base_url": "https://other.example.com"}
    await ledger_clients.Shop(ledger=first.ledger, options=other).result()


async def in_flight_elsewhere(telemetry: Telemetry) -> None:
    step, arrived, go = held_response(approved())
    shop = ledger_clients.Shop(step, options={"telemetry": telemetry})
    first = await started(shop.result(), arrived)
    other = ledger_clients.Shop(
        ledger=ledger_clients.of_another_process(cast("MemoryLedger", shop.ledger)),
        options={"telemetry": telemetry},
    )
    await other.result(wait=0)
    go.set()
    await first


async def other_data(telemetry: Telemetry) -> None:
    """The customer is requested with other data during the request, and after it."""
    step, arrived, go = held_response(approved())
    shop = Shop(step, telemetry=telemetry)
    first = await started(shop.approve(), arrived)
    await shop.approve(payload=OTHER_DATA)
    go.set()
    await first
    await shop.approve(payload=OTHER_DATA)


def joined(end: ScriptedResponse, *later: ScriptedResponse, passed: float = 0) -> Play:
    """Return the play of two overlapping calls, of which only the first has its request in progress.

    The clock moves on by `passed` seconds before the response.
    """

    async def play(telemetry: Telemetry) -> None:
        step, arrived, go = held_response(end)
        shop = Shop(step, *later, telemetry=telemetry)
        first = await started(shop.approve(), arrived)
        second = asyncio.create_task(shop.approve())
        await turns()
        shop.script.clock.time += passed
        go.set()
        await asyncio.gather(first, second)

    return play


async def looked_up(telemetry: Telemetry) -> None:
    assert (await Shop(telemetry=telemetry).client.known(FISCAL_CODE)).state == "none"
    with contextlib.suppress(InvalidRequestError):
        await Shop(telemetry=telemetry).client.known("RSSMRA")


async def cancelled_in_the_queue(telemetry: Telemetry) -> None:
    step, arrived, go = held_response(approved())
    shop = Shop(step, telemetry=telemetry, max_concurrency=1)
    first = await started(shop.approve(), arrived)
    waiting = asyncio.create_task(shop.approve(fiscal_code()))
    await turns()
    await cancelled(waiting)
    go.set()
    await first


async def cancelled_at_once(telemetry: Telemetry) -> None:
    """Cancel a call in the iteration of the event loop in which it begins."""
    shop = Shop(not_connected(), telemetry=telemetry, max_concurrency=1)
    shop.client._pipeline.resources("approve").slots.take("another call")
    call = asyncio.create_task(shop.approve())
    await asyncio.sleep(0)
    await cancelled(call)


ENDS: dict[str, tuple[Play, list[Point]]] = {
    "approved": (scripted(approved()), [SENT]),
    "refused": (scripted(refused()), [("approve", "refused", None, 1)]),
    "retried": (scripted(system_error(), approved()), [("approve", "approved", None, 2)]),
    "lost": (scripted(connection_lost()), [LOST]),
    "not connected": (scripted(not_connected()), [("approve", "not_sent", "ConnectError", 1)]),
    "created, and denied": (
        created,
        [("create_request", "done", None, 1), ("create_request", "not_evaluated", "AccessDeniedError", 1)],
    ),
    "invalid": (invalid, [not_sent("InvalidRequestError", each) for each in ("approve", "complete")]),
    "invalid setting": (misconfigured, [not_sent("ConfigurationError", "complete")]),
    "closed": (closed, [not_sent("ClientClosedError", each) for each in ("approve", "create_request")]),
    "closed as the call begins": (closed_as_the_call_begins, [not_sent("ClientClosedError")]),
    "transport that cannot be opened": (no_transport, [not_sent("ZeroDivisionError")]),
    "circuit open": (circuit_open, [LOST, not_sent("CircuitOpenError")]),
    "ledger down": (
        with_ledger(ledger=lambda: FailingLedger(claim=broken)),
        [not_sent("LedgerUnavailableError")],
    ),
    "ledger mismatch": (mismatched, [SENT, not_sent("LedgerMismatchError")]),
    "in flight elsewhere": (in_flight_elsewhere, [SENT, ("approve", "unknown", "InFlightError", 0)]),
    "other data": (
        other_data,
        [
            SENT,
            ("approve", "unknown", "PayloadMismatchError", 0),
            ("approve", "approved", "PayloadMismatchError", 0),
        ],
    ),
    "remembered": (scripted(approved(), calls=2), [SENT, KNOWN]),
    "replayed by the ledger": (with_ledger(approved(), calls=2), [SENT, KNOWN]),
    "unknown before": (
        scripted(connection_lost(), calls=2),
        [LOST, ("approve", "unknown", "OutcomeUnknownError", 0)],
    ),
    "joined": (joined(approved()), [SENT, KNOWN]),
    "joined, and sent again": (
        joined(not_connected(), approved()),
        [SENT, ("approve", "not_sent", "ConnectError", 1)],
    ),
    "joined, and too late": (
        joined(not_connected(), passed=100),
        [("approve", "not_sent", "ConnectError", 1), not_sent("DeadlineExceededError")],
    ),
    "looked up": (looked_up, [("known", "done", None, 0), not_sent("InvalidRequestError", "known")]),
    "cancelled in the queue": (cancelled_in_the_queue, [SENT, not_sent(None)]),
    "cancelled at once": (cancelled_at_once, [not_sent(None)]),
}
