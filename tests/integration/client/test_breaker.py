"""The circuit breaker of a client: outages in virtual time, refused calls, and trials that have no result."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from loanasync import (
    Approved,
    CircuitBreaker,
    CircuitOpenError,
    ConnectionLostError,
    Decision,
    LedgerUnavailableError,
    LoanClient,
    LoanError,
    PoolTimeoutError,
    RetryPolicy,
    Timeout,
)
from loanasync.ledger import MemoryLedger, State
from loanasync.testing import (
    ScriptedResponse,
    SentRequest,
    TelemetryRecorder,
    approved,
    computed,
    connection_lost,
    response,
    system_error,
)
from support.builders import FISCAL_CODE
from support.ledger_clients import FailingLedger, held_response
from support.memory_clients import Shop, cancelled, request
from support.virtual_time import FailingService, VirtualTime, turns

ONCE = CircuitBreaker(unknown=1)
OTHER, THIRD, FOURTH = (f"TSTXYZ00A00A000{letter}" for letter in "BCD")
Ledgers = Callable[[], dict[str, Any]]
WITHOUT: Ledgers = dict
WITH: Ledgers = lambda: {"ledger": MemoryLedger()}  # noqa: E731
each_ledger = pytest.mark.parametrize("ledger", [WITHOUT, WITH], ids=["no ledger", "ledger"])


def codes(number: int) -> list[str]:
    return [f"TSTXYZ{row // 100:02}A{row % 100:02}A000A" for row in range(number)]


def outcome_of(result: Decision | LoanError) -> str:
    if isinstance(result, LoanError):
        return type(result).__name__ if result.outcome == "not_sent" else result.outcome
    return "approved" if result.approved else "refused"


async def shoppers(client: LoanClient, number: int, rate: float) -> Counter[str]:
    """Request approvals at a rate in calls per second; count the outcomes."""
    calls = []
    for code in codes(number):
        calls.append(asyncio.ensure_future(request(client, code)))
        await asyncio.sleep(1 / rate)
    return Counter(map(outcome_of, await asyncio.gather(*calls)))


def outage(*, number: int = 1_200, rate: float = 20, is_silent: bool = False, **options: Any) -> Any:
    """Return the outcomes of calls at a rate, for a minute or longer, with an outage of 45 seconds."""
    time = VirtualTime()
    service = FailingService(time, 45, is_silent=is_silent)

    async def run() -> Counter[str]:
        async with service.client(**options) as client:
            return await shoppers(client, number, rate)

    return time.run(run())


@each_ledger
def test_outage_of_45_seconds_makes_few_customers_unknown(ledger: Ledgers) -> None:
    # A call that gets a 500 lasts up to 0.75 s: three attempts, and waits of at most 0.2 and 0.4 s.
    in_flight = 15
    unknown = outage(**ledger())["unknown"]
    assert 5 <= unknown <= 5 + in_flight + 45 // 30
    assert outage(number=240, rate=4, breaker=None, **ledger())["unknown"] > 160


def test_outage_with_few_calls_in_flight_costs_one_customer_a_pause() -> None:
    once = RetryPolicy(attempts=1)
    outcomes = outage(number=120, rate=2, retry=once)
    # The fifth call fails after 2.05 s. One call tries after 30 s; the next one after a minute is approved.
    assert outcomes["unknown"] == 5 + 1
    assert outcomes["approved"] == 120 - 6 - outcomes["CircuitOpenError"]


def test_calls_that_wait_for_a_slot_are_refused_when_it_opens() -> None:
    time = VirtualTime()
    service = FailingService(time, 45, is_silent=True)

    async def run() -> list[Decision | LoanError]:
        async with service.client(max_concurrency=5, timeout=Timeout(total=50, attempt=10)) as client:
            return await asyncio.gather(*(request(client, code) for code in codes(40)))

    results = time.run(run())
    assert Counter(map(outcome_of, results)) == {"unknown": 5, "CircuitOpenError": 35}
    assert len(service.requests) == 5
    assert time.now() == pytest.approx(10)


async def test_open_breaker_refuses_a_call_with_the_seconds_to_wait() -> None:
    shop = Shop(connection_lost(), approved(), breaker=CircuitBreaker(unknown=1, pause=20))
    assert isinstance(await shop.approve(), ConnectionLostError)
    shop.script.clock.time += 7.5
    refused = await shop.approve(OTHER)
    assert isinstance(refused, CircuitOpenError)
    assert (refused.retry_after, refused.entry) == (12.5, None)
    assert (refused.outcome, refused.repeatable, shop.sent) == ("not_sent", True, 1)
    shop.script.clock.time += 12.5
    assert isinstance(await shop.approve(OTHER), Approved)


async def test_refused_call_writes_nothing_to_the_ledger() -> None:
    ledger = MemoryLedger()
    shop = Shop(connection_lost(), breaker=ONCE, ledger=ledger)
    await shop.approve()
    refused = await shop.approve(OTHER)
    assert isinstance(refused, CircuitOpenError)
    known = await shop.client.known(OTHER)
    assert (known.entry, known.state) == (refused.entry, "none")


@each_ledger
async def test_known_decision_is_returned_while_the_breaker_is_open(ledger: Ledgers) -> None:
    shop = Shop(approved(), connection_lost(), breaker=ONCE, **ledger())
    first = await shop.approve()
    await shop.approve(OTHER)
    again = await shop.approve()
    assert isinstance(first, Approved)
    assert isinstance(again, Approved)
    assert again.redirect_url == first.redirect_url
    assert isinstance(await shop.approve(THIRD), CircuitOpenError)


async def test_repeat_of_an_unknown_outcome_is_refused_and_stays_unknown() -> None:
    ledger = MemoryLedger()
    shop = Shop(connection_lost(), breaker=ONCE, ledger=ledger)
    await shop.approve()
    assert isinstance(await shop.approve(repeat_unknown=True), CircuitOpenError)
    entry = await ledger.get((await shop.client.known(FISCAL_CODE)).entry or "")
    assert entry is not None
    assert entry.state is State.UNKNOWN


async def test_client_without_breaker_sends_every_call() -> None:
    shop = Shop(*[connection_lost()] * 8, breaker=None)
    for code in codes(8):
        assert isinstance(await shop.approve(code), ConnectionLostError)


async def test_call_in_flight_may_retry_while_the_breaker_is_open() -> None:
    step, arrived, leave = held_response(system_error())
    shop = Shop(step, connection_lost(), approved(), breaker=ONCE)
    call = asyncio.create_task(shop.approve())
    await arrived.wait()
    await shop.approve(OTHER)
    assert isinstance(await shop.approve(THIRD), CircuitOpenError)
    leave.set()
    decision = await call
    assert isinstance(decision, Approved)
    assert decision.meta.attempts == 2


def broken() -> NoReturn:
    raise OSError


class OpenShop(Shop):
    """A client whose breaker is open, and whose pause is over. Its script continues with `steps`."""

    def __init__(self, *steps: Any, **options: Any) -> None:
        super().__init__(connection_lost(), *steps, breaker=ONCE, **options)

    async def open(self) -> None:
        await self.approve(FOURTH)
        self.script.clock.time += 30


@pytest.mark.parametrize("ends", ["without a claim", "without a slot", "cancelled"])
async def test_trial_that_sends_nothing_lets_the_next_call_try(ends: str) -> None:
    ledger = FailingLedger()
    step, arrived, leave = held_response(response(201, {}))
    shop = OpenShop(step, approved(), ledger=ledger, max_concurrency=1)
    await shop.open()
    other = asyncio.create_task(shop.client.create_request({}))  # it takes the slot
    await arrived.wait()
    if ends == "cancelled":
        trial = asyncio.create_task(shop.approve(OTHER))
        await turns(10)
        await cancelled(trial)
    elif ends == "without a slot":
        hasty = Timeout(total=0.1, attempt=0.1, connect=0.05)
        assert isinstance(await shop.approve(OTHER, timeout=hasty), PoolTimeoutError)
    leave.set()
    await other
    if ends == "without a claim":
        ledger.faults["claim"] = broken
        assert isinstance(await shop.approve(OTHER), LedgerUnavailableError)
        ledger.faults.clear()
    assert isinstance(await shop.approve(THIRD), Approved)


async def test_trial_is_the_only_one_until_its_last_attempt_has_ended() -> None:
    async def late(_: SentRequest) -> ScriptedResponse:
        shop.script.clock.time += 15  # after `total`, and before the end of an attempt that began last
        assert isinstance(await shop.approve(OTHER), CircuitOpenError)
        return connection_lost()

    shop = OpenShop(computed(late), approved(), timeout=Timeout(total=10, attempt=10, connect=1))
    await shop.open()
    assert isinstance(await shop.approve(THIRD), ConnectionLostError)


async def test_trial_that_finds_a_claim_of_another_process_lets_others_try() -> None:
    ledger = FailingLedger()
    shop = OpenShop(approved(), ledger=ledger)
    await shop.open()
    claim, found = ledger.claim, asyncio.Event()

    async def is_late(*_: Any, **options: Any) -> Any:
        ledger.claim = claim  # type: ignore[method-assign]
        await claim(*_, **{**options, "token": "other", "header": None})
        found.set()
        return await claim(*_, **options)

    ledger.claim = is_late  # type: ignore[method-assign]
    trial = asyncio.create_task(shop.approve(wait=5))
    await found.wait()
    await turns(20)
    assert not trial.done()
    assert isinstance(await shop.approve(OTHER), Approved)
    await cancelled(trial)


def defect(_: object) -> NoReturn:
    raise ZeroDivisionError


async def test_trial_that_ends_with_a_defect_lets_no_other_call_try() -> None:
    shop = OpenShop(computed(defect), approved())
    await shop.open()
    with pytest.raises(ZeroDivisionError):
        await shop.approve()
    assert isinstance(await shop.approve(OTHER), CircuitOpenError)


@each_ledger
async def test_late_response_for_a_cancelled_trial_closes_the_breaker(
    ledger: Ledgers, caplog: pytest.LogCaptureFixture
) -> None:
    step, arrived, leave = held_response(approved())
    shop = OpenShop(step, approved(), **ledger())
    await shop.open()
    trial = asyncio.create_task(shop.approve())
    await arrived.wait()
    await cancelled(trial)
    assert isinstance(await shop.approve(OTHER), CircuitOpenError)
    leave.set()
    assert isinstance(await shop.approve(), Approved)
    assert isinstance(await shop.approve(OTHER), Approved)
    assert caplog.messages.count("circuit breaker: closed, because the service has decided") == 1


async def test_opening_and_closing_are_logged_counted_and_traced(caplog: pytest.LogCaptureFixture) -> None:
    recorder = TelemetryRecorder()
    shop = OpenShop(connection_lost(), approved(), telemetry=recorder.telemetry)
    caplog.set_level(logging.WARNING)
    await shop.open()
    await shop.approve()
    shop.script.clock.time += 30
    await shop.approve(OTHER)
    opened = (
        "circuit breaker: open, because recent approvals ended without a response or with a 5xx; "
        "after 30 s, one approval at a time tries again"
    )
    closed = "circuit breaker: closed, because the service has decided"
    assert [each for each in caplog.messages if each.startswith("circuit")] == [opened, opened, closed]
    assert recorder.metric("loanasync.circuit.openings").sum == 2
    events = [[event.name for event in span.events] for span in recorder.spans("loanasync.approve")]
    assert events == [[f"loanasync.circuit.{each}"] for each in ("opened", "opened", "closed")]
