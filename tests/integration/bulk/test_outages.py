"""Rows of `approve_many` wait while the circuit breaker is open."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from loanasync import (
    CircuitBreaker,
    CircuitOpenError,
    ConnectionLostError,
    RetryPolicy,
    Timeout,
    UnexpectedStatusError,
)
from loanasync.bulk import RowResult
from loanasync.ledger import MemoryLedger
from loanasync.testing import (
    ScriptedResponse,
    ScriptedTransport,
    approved,
    connection_lost,
    denied,
    response,
    scripted_client,
)
from support.builders import approval_request
from support.bulk import let_tasks_run
from support.virtual_time import FailingService, VirtualTime

ROWS = [(f"TSTXYZ{row:02}A00A000A", approval_request()) for row in range(100)]
ONCE = RetryPolicy(attempts=1)


def statuses(results: list[RowResult]) -> Counter[str]:
    return Counter(result.status for result in results)


@pytest.mark.parametrize("has_ledger", [False, True], ids=["no ledger", "ledger"])
@pytest.mark.parametrize("is_silent", [False, True], ids=["500", "no response"])
def test_rows_wait_for_the_end_of_an_outage(*, has_ledger: bool, is_silent: bool) -> None:
    time = VirtualTime()
    service = FailingService(time, 45, is_silent=is_silent)
    ledger: dict[str, Any] = {"ledger": MemoryLedger()} if has_ledger else {}

    async def run() -> list[RowResult]:
        limits = Timeout(total=10, attempt=5, connect=1)
        async with service.client(retry=ONCE, timeout=limits, **ledger) as client:
            return [result async for result in client.approve_many(ROWS, concurrency=8)]

    results = time.run(run())
    assert {result.index for result in results} == set(range(100))
    assert statuses(results)["unknown"] <= 5 + 8 + 2  # also in flight when it opened, and two trials
    assert statuses(results)["approved"] == 100 - statuses(results)["unknown"]
    assert time.now() < 45 + 30 + 5 + 10


def test_waiting_rows_send_one_request_in_each_pause() -> None:
    time = VirtualTime()
    service = FailingService(time, 300, latency=0.0)

    async def run() -> list[RowResult]:
        async with service.client(retry=ONCE) as client:
            return [result async for result in client.approve_many(ROWS, concurrency=8)]

    time.run(run())
    seconds = Counter(round(at) for at, _ in service.requests if at < 300)
    assert seconds.pop(0) <= 5 + 8
    assert seconds == dict.fromkeys(range(30, 300, 30), 1)


MANY = [(f"TSTXYZ{row // 100:02}A{row % 100:02}A000A", approval_request()) for row in range(2_000)]


def run_of(service: FailingService, **options: Any) -> tuple[Counter[str], str]:
    """Return the statuses of many rows at the default concurrency, and why the run stopped."""

    async def run() -> tuple[Counter[str], str]:
        async with service.client() as client, client.approve_many(MANY, **options) as results:
            return statuses([result async for result in results]), results.stopped

    return service.time.run(run())


@pytest.mark.parametrize("stop_after", [20, None])
def test_restart_of_four_seconds_at_the_default_concurrency_loses_no_row(stop_after: int | None) -> None:
    service = FailingService(VirtualTime(), 5, fails_from=1, is_away=True)
    assert run_of(service, stop_after=stop_after) == (Counter(approved=2_000), "")
    assert len(service.requests) == 2_000


def test_rows_in_flight_when_the_breaker_opens_do_not_stop_the_run() -> None:
    service = FailingService(VirtualTime(), 21, fails_from=1)
    found, stopped = run_of(service)
    assert (found.total(), found["approved"] + found["unknown"], stopped) == (2_000, 2_000, "")
    assert 20 < found["unknown"] <= 64 + 5


@pytest.mark.parametrize(
    ("fails_from", "reason", "not_sent", "seconds"),
    [(1, "after an hour in which no row could be sent", 64, 3_600), (0, "after 20 rows", 20, 0)],
)
def test_service_that_stays_away_stops_the_run(
    fails_from: int, reason: str, not_sent: int, seconds: int
) -> None:
    """Before the first decision, a setting may be wrong. After it, the service may be restarting."""
    service = FailingService(VirtualTime(), 1e6, fails_from=fails_from, is_away=True)
    with pytest.warns(RuntimeWarning, match=f"stopped {reason}"):
        found, stopped = run_of(service, stop_after=None if fails_from else 20)
    assert (0 <= found["not_sent"] - not_sent <= 4, "ConnectError" in stopped) == (True, True)
    assert 0 <= service.time.now() - seconds < 100
    assert found["approved"] == len(service.requests)


SALES_POINT = response(400, {"errors": {"domain": ["This sales point cannot apply for a loan"]}})


@pytest.mark.parametrize("refusal", [denied(), SALES_POINT], ids=["403", "sales point"])
@pytest.mark.parametrize("decisions", [0, 2])
async def test_refused_shop_stops_the_run(refusal: ScriptedResponse, decisions: int) -> None:
    expected = 5 if decisions else 1
    client = scripted_client(*[approved()] * decisions, *[refusal] * 9)
    results = client.approve_many(ROWS, concurrency=1, stop_after=None)
    with pytest.warns(RuntimeWarning, match="check the token"):
        read = [each async for each in results]
    assert statuses(read) == Counter(approved=decisions, failed=expected) - Counter(approved=0)
    assert "the service refuses this shop: check the token" in results.stopped
    other = scripted_client(*[response(403, b"<html>")] * 30)
    with pytest.warns(RuntimeWarning, match="stopped after 20 rows"):
        assert len([each async for each in other.approve_many(ROWS, concurrency=1)]) == 20


class Paused:
    """Rows of `approve_many` that wait, because the breaker is open."""

    def __init__(self) -> None:
        self.may_try = asyncio.Event()
        self.pauses: list[float] = []
        breaker = CircuitBreaker(unknown=1, pause=30)
        self.script = ScriptedTransport(connection_lost(), approved(), approved(), approved())
        self.script.clock.sleep = self._sleep  # type: ignore[method-assign]
        self.client = self.script.client(breaker=breaker)
        self.results = self.client.approve_many(ROWS[:3], concurrency=3)

    async def _sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        await self.may_try.wait()
        self.script.clock.time += seconds

    async def start(self) -> "asyncio.Future[RowResult]":
        """Start the rows; return the task that waits for the first result."""
        with pytest.raises(ConnectionLostError):
            await self.client.approve(*ROWS[99])
        reader = asyncio.ensure_future(anext(self.results))
        await let_tasks_run()
        return reader


@pytest.mark.parametrize("how", ["wait", "stop", "aclose"])
async def test_waiting_rows_are_sent_when_the_breaker_closes_unless_stopped(how: str) -> None:
    paused = Paused()
    reader = await paused.start()
    assert isinstance(paused.results.paused, CircuitOpenError)
    assert not reader.done()
    if how == "wait":
        paused.may_try.set()
    elif how == "stop":
        paused.results.stop()
    else:
        await paused.results.aclose()
    results = [await reader, *[result async for result in paused.results]]
    found = {(each.status, each.outcome, each.repeatable, type(each.error)) for each in results}
    assert (len(results), len(paused.script.sent)) == (3, 4 if how == "wait" else 1)
    assert max(paused.pauses) <= 1, "another call may close the breaker before its 30 seconds are over"
    if how == "wait":
        assert found == {("approved", "approved", False, type(None))}
        assert paused.results.paused is None
    else:
        assert found == {("not_sent", "not_sent", True, CircuitOpenError)}


async def test_row_refused_after_the_stop_is_not_sent() -> None:
    """The breaker opens while the row waits for a slot, and the run is stopped meanwhile."""
    client = scripted_client(connection_lost(), breaker=CircuitBreaker(unknown=1), max_concurrency=1)
    results = client.approve_many(ROWS[:2], concurrency=2)
    reader = asyncio.ensure_future(anext(results))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    results.stop()
    assert (await reader).status == "unknown"
    async for result in results:
        assert isinstance(result.error, CircuitOpenError)


async def test_row_that_was_sent_keeps_its_error_if_it_cannot_be_sent_again() -> None:
    """A client that is closed while the row waits sends nothing, but the row was sent before."""
    script = ScriptedTransport(approved(), response(429, b""), approved())

    async def close(seconds: float) -> None:
        script.clock.time += seconds
        await client.aclose()

    script.clock.sleep = close  # type: ignore[method-assign]
    client = script.client()
    results = [each async for each in client.approve_many(ROWS[:2], concurrency=1)]
    assert [each.status for each in results] == ["approved", "failed"]
    assert isinstance(results[1].error, UnexpectedStatusError)
    assert len(script.sent) == 2
