"""A claim that reaches the ledger after its call was abandoned is released: its request was never sent."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from secrets import token_hex
from typing import Any, NoReturn

import pytest

from loanasync import Approved, InFlightError, LedgerUnavailableError, OutcomeUnknownError, Timeout
from loanasync.ledger import (
    DecisionLedger,
    Entry,
    MemoryLedger,
    Settlement,
    SqliteLedger,
    State,
    unsent_claims,
)
from loanasync.testing import approved, not_connected, timed_out
from support.builders import FISCAL_CODE
from support.ledger_clients import FailingLedger, Shop, held_response
from support.server_ledgers import PostgresStore, ValkeyStore
from support.servers import Server, Valkey

SHORT = Timeout(total=0.3, attempt=0.2, connect=0.1)


class HangingLedger:
    """A ledger that can hang. Operations sent meanwhile arrive when it continues."""

    def __init__(self, ledger: DecisionLedger, hang: Callable[[], Any], resume: Callable[[], Any]) -> None:
        self.ledger = ledger
        self._hang, self._resume = hang, resume

    async def hang(self) -> None:
        await asyncio.to_thread(self._hang)

    async def resume(self) -> None:
        await asyncio.to_thread(self._resume)


@pytest.fixture(params=["sqlite", "valkey", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[HangingLedger]:
    if request.param == "sqlite":
        ledger: DecisionLedger = SqliteLedger(tmp_path / "decisions.db")
        await ledger.get("k")
        other = await asyncio.to_thread(
            sqlite3.connect, tmp_path / "decisions.db", isolation_level=None, check_same_thread=False
        )
        yield HangingLedger(ledger, lambda: other.execute("BEGIN IMMEDIATE"), lambda: other.execute("COMMIT"))
        await asyncio.to_thread(other.close)
    else:
        server: Server = request.getfixturevalue(request.param)
        on_server = ValkeyStore(server) if isinstance(server, Valkey) else PostgresStore(server)  # type: ignore[arg-type]
        ledger = on_server.ledger()
        await ledger.get("k")
        yield HangingLedger(ledger, server.pause, server.resume)
    await ledger.aclose()


async def settled(shop: Shop, *states: State) -> None:
    """Wait until the entries are in these states."""
    async with asyncio.timeout(30):
        while [entry.state for entry in await shop.entries()] != list(states):  # noqa: ASYNC110  (of a server)
            await asyncio.sleep(0.02)


async def test_late_claim_is_released_in_the_background(store: HangingLedger) -> None:
    shop = Shop(approved(), ledger=store.ledger, patience=0.3)
    await store.hang()
    assert isinstance(await shop.result(timeout=SHORT), LedgerUnavailableError)
    await store.resume()
    await settled(shop, State.RELEASED)
    assert isinstance(await shop.approve(shop.new_client()), Approved)
    await shop.client.aclose()


class HangingInWait:
    """The ledger of a store that starts to hang when a call waits for another owner."""

    def __init__(self, store: HangingLedger) -> None:
        self._store = store
        self.blocked: list[asyncio.Task[Entry]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store.ledger, name)

    async def wait(self, key: str, within: float) -> Entry | None:
        await self._store.hang()
        # In SQLite, a read waits for a write of the same process, and not for one of another process.
        writing = self._store.ledger.claim("of another", token="t", payload="p", lease=60)
        self.blocked.append(asyncio.create_task(writing))
        await asyncio.sleep(0)
        return await self._store.ledger.wait(key, within)


async def test_hanging_store_does_not_lengthen_the_wait_for_an_owner(store: HangingLedger) -> None:
    ledger = HangingInWait(store)
    shop = Shop(approved(), ledger=ledger, patience=3600.0)
    await shop.put(State.INFLIGHT)
    assert isinstance(await shop.result(wait=0), InFlightError)
    async with asyncio.timeout(30):  # less than `patience`, and much more than the wait
        assert isinstance(await shop.result(wait=0.05), InFlightError)
    [writing] = ledger.blocked
    assert not writing.done()
    await store.resume()
    await asyncio.wait([writing])
    assert shop.script.left == 1


class LateLedger(FailingLedger):
    """A ledger that can be down: claims wait and arrive later, settlements fail."""

    def __init__(self) -> None:
        super().__init__()
        self.is_down = True
        self.waiting: list[tuple[str, dict[str, Any]]] = []

    async def _call(self, name: str) -> None:
        await super()._call(name)
        if self.is_down and name == "settle":
            raise ConnectionError

    async def claim(self, key: str, **options: Any) -> Entry:
        if self.is_down:
            self.waiting.append((key, options))
            await asyncio.Event().wait()
        return await super().claim(key, **options)

    async def arrive(self) -> None:
        self.is_down = False
        for key, options in self.waiting:
            await self.inner.claim(key, **options)


@pytest.fixture
def no_background_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop releases in the background."""
    monkeypatch.setattr(unsent_claims, "_FIRST_PAUSE", 3600.0)


@pytest.mark.usefixtures("no_background_release")
@pytest.mark.parametrize("lease", [True, False])
async def test_late_claim_is_recognized_by_the_next_call(
    monkeypatch: pytest.MonkeyPatch, *, lease: bool
) -> None:
    ledger = LateLedger()
    shop = Shop(approved(), ledger=ledger, patience=0.5)
    assert isinstance(await shop.result(), LedgerUnavailableError)
    await ledger.arrive()
    if not lease:
        now = ledger.inner._now()
        monkeypatch.setattr(ledger.inner, "_now", lambda: now + 3600)
    assert (await shop.entry()).state is (State.INFLIGHT if lease else State.UNKNOWN)
    stranger = await shop.result(shop.new_client(), timeout=SHORT)
    assert isinstance(stranger, InFlightError if lease else OutcomeUnknownError)
    assert isinstance(await shop.approve(), Approved)
    await shop.client.aclose()


@pytest.mark.usefixtures("no_background_release")
async def test_late_claim_is_released_when_the_client_is_closed() -> None:
    ledger = LateLedger()
    shop = Shop(ledger=ledger, patience=0.5)
    await shop.result()
    await ledger.arrive()
    await shop.client.aclose()
    assert (await shop.entry()).state is State.RELEASED
    assert len(asyncio.all_tasks()) == 1


async def test_release_that_fails_is_repeated_in_the_background() -> None:
    """The request was provably not sent, so its entry must not stay in flight."""
    ledger = LateLedger()
    ledger.is_down = False
    step, arrived, go = held_response(not_connected())
    shop = Shop(step, ledger=ledger)
    call = asyncio.create_task(shop.result())
    await arrived.wait()
    ledger.is_down = True
    go.set()
    await call
    assert (await shop.entry()).state is State.INFLIGHT
    ledger.is_down = False
    await settled(shop, State.RELEASED)
    await shop.client.aclose()


def test_release_is_repeated_in_the_next_event_loop() -> None:
    ledger = LateLedger()
    shop = Shop(ledger=ledger, patience=0.5)
    asyncio.run(shop.result())  # the background task ends with the loop

    async def run_again() -> None:
        await ledger.arrive()
        ledger.is_down = True
        await shop.result(code="TSTXYZ00A00A000B")
        ledger.is_down = False
        ledger.waiting.clear()
        await settled(shop, State.RELEASED, State.RELEASED)
        await shop.client.aclose()

    asyncio.run(run_again())


async def test_late_claim_over_an_unknown_outcome_stays_unknown() -> None:
    ledger = LateLedger()
    ledger.is_down = False
    shop = Shop(timed_out(), ledger=ledger, patience=0.5)
    await shop.result()
    ledger.is_down = True
    assert isinstance(await shop.result(repeat_unknown=True), LedgerUnavailableError)
    await ledger.arrive()
    await settled(shop, State.UNKNOWN)
    await shop.client.aclose()


async def test_claims_that_cannot_be_released_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unsent_claims, "_MAX_CLAIMS", 3)
    claims = unsent_claims.UnsentClaims(LateLedger(), 1.0)
    for number in range(5):
        claims.add(f"t{number}", "k", "p", Settlement(state=State.RELEASED))
    ledger = MemoryLedger()
    entries = [await ledger.claim(f"k{at}", token=f"t{at}", payload="p", lease=60) for at in range(5)]
    assert [claims.owns(entry) for entry in entries] == [False, False, True, True, True]


async def test_late_claim_after_the_release_of_another_is_released(store: HangingLedger) -> None:
    """Its own release arrived first, and another token has claimed and released the entry since."""
    key, ledger = token_hex(8), store.ledger
    release = Settlement(state=State.RELEASED, note="not sent")
    claims = unsent_claims.UnsentClaims(ledger, 1.0)
    claims.add("late", key, "p", release)
    assert not claims.owns(await claims.release("late"))
    await ledger.claim(key, token="other", payload="p", lease=60)
    await ledger.settle(key, token="other", payload="p", settlement=release)
    landed = await ledger.claim(key, token="late", payload="p", lease=60)
    assert landed.is_claimed_by("late")
    assert claims.owns(landed)
    assert (await claims.release("late")).state is State.RELEASED
    assert not claims.owns(landed)


async def test_claim_is_released_after_a_second_caller_was_cancelled() -> None:
    claiming, releasing = asyncio.Event(), asyncio.Event()

    async def hang(event: asyncio.Event) -> None:
        event.set()
        await asyncio.Event().wait()

    async def hang_once() -> None:
        if not releasing.is_set():
            await hang(releasing)

    ledger = FailingLedger(claim=lambda: hang(claiming), settle=hang_once)
    shop = Shop(ledger=ledger)
    for event in (claiming, releasing):
        caller = asyncio.create_task(shop.approve())
        await event.wait()
        await asyncio.sleep(0)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        if event is claiming:
            await releasing.wait()
    await settled(shop, State.RELEASED)
    await shop.client.aclose()


async def test_call_with_a_hanging_ledger_ends_after_total_and_patience() -> None:
    """Measured by the timeouts of the operations, not by the clock of this machine."""
    limits: list[float] = []
    timeout = asyncio.timeout

    def recorded_timeout(within: float | None) -> asyncio.Timeout:
        assert within is not None
        limits.append(within)
        return timeout(min(within, 0.01))

    async def hanging() -> NoReturn:
        await asyncio.Event().wait()
        raise NotImplementedError

    ledger = FailingLedger(claim=hanging, settle=hanging)
    shop = Shop(ledger=ledger, patience=7.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("loanasync.ledger.recorder.asyncio.timeout", recorded_timeout)
        error = await shop.result(timeout=Timeout(total=1, attempt=0.9, connect=0.1), code=FISCAL_CODE)
    assert isinstance(error, LedgerUnavailableError)
    claim, release, *_ = limits
    assert 0 < claim <= 1.0
    assert release == 7.0
    ledger.faults.clear()
    await shop.client.aclose()
