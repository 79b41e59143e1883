"""Claims that the ledger writes late, or whose response is lost: their requests were never sent."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from loanasync import Approved, InFlightError, LedgerUnavailableError, OutcomeUnknownError, Timeout
from loanasync.ledger import Entry, Ledger, SqliteLedger, State
from loanasync.testing import approved, not_connected
from support.ledger_clients import FailingLedger, Shop, create, held_response
from support.server_ledgers import PostgresStore, ValkeyStore
from support.servers import Server, Valkey

SHORT = Timeout(total=0.3, attempt=0.2, connect=0.1)
OTHER = "TSTXYZ00A00A000B"


class HangingLedger:
    """A ledger that can hang. Operations sent meanwhile arrive when it continues."""

    def __init__(self, ledger: Ledger, hang: Callable[[], Any], resume: Callable[[], Any]) -> None:
        self.ledger = ledger
        self._hang, self._resume = hang, resume

    async def hang(self) -> None:
        await asyncio.to_thread(self._hang)

    async def resume(self) -> None:
        await asyncio.to_thread(self._resume)


@pytest.fixture(params=["sqlite", "valkey", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[HangingLedger]:
    if request.param == "sqlite":
        ledger: Ledger = SqliteLedger(tmp_path / "decisions.db")
        await create(ledger)
        other = await asyncio.to_thread(
            sqlite3.connect, tmp_path / "decisions.db", isolation_level=None, check_same_thread=False
        )
        yield HangingLedger(ledger, lambda: other.execute("BEGIN IMMEDIATE"), lambda: other.execute("COMMIT"))
        await asyncio.to_thread(other.close)
    else:
        server: Server = request.getfixturevalue(request.param)
        on_server = ValkeyStore(server) if isinstance(server, Valkey) else PostgresStore(server)  # type: ignore[arg-type]
        ledger = on_server.ledger()
        await create(ledger)
        yield HangingLedger(ledger, server.pause, server.resume)
    await ledger.aclose()


async def test_claim_that_arrives_late_is_not_written(store: HangingLedger) -> None:
    shop = Shop(approved(), ledger=store.ledger, patience=0.3)
    other = shop.new_client(ledger_policy=Shop().policy)  # with the usual patience
    await store.hang()
    assert isinstance(await shop.result(timeout=SHORT), LedgerUnavailableError)
    await store.resume()
    assert isinstance(await shop.approve(other), Approved)
    entry = await shop.entry()
    assert (entry.state, entry.takeovers, entry.history) == (State.APPROVED, 0, ())


class LosingLedger(FailingLedger):
    """A ledger that can be down: it writes claims, but their responses are lost, and all else fails."""

    def __init__(self, **changes: Any) -> None:
        super().__init__()
        self.is_down = True
        self._changes = changes

    async def _call(self, name: str) -> None:
        await super()._call(name)
        if self.is_down and name != "claim":
            raise ConnectionError

    async def claim(self, key: str, **options: Any) -> Entry:
        entry = await super().claim(key, **{**options, **self._changes})
        if self.is_down and entry.is_claimed_by(options["token"]):
            raise ConnectionError
        return entry


@pytest.mark.parametrize(
    ("changes", "state", "of_another"),
    [({}, State.INFLIGHT, InFlightError), ({"lease": 0.0}, State.UNKNOWN, OutcomeUnknownError)],
)
async def test_unsent_claim_is_recognized_by_its_client_only(
    changes: dict[str, Any], state: State, of_another: type
) -> None:
    ledger = LosingLedger(**changes)
    shop = Shop(approved(), ledger=ledger)
    assert isinstance(await shop.result(), LedgerUnavailableError)
    ledger.is_down = False
    assert (await shop.entry()).state is state
    assert isinstance(await shop.result(shop.new_client(), wait=0), of_another)
    assert isinstance(await shop.approve(wait=0), Approved)
    assert len(shop.script.sent) == 1


def test_unsent_claim_is_undone_in_the_next_event_loop() -> None:
    ledger = LosingLedger()
    shop = Shop(approved(), ledger=ledger)
    asyncio.run(shop.result())
    ledger.is_down = False
    asyncio.run(shop.client.aclose())
    assert asyncio.run(shop.entry()).state is State.RELEASED


async def test_release_that_fails_is_repeated_when_the_client_is_closed() -> None:
    """The request was provably not sent, so its entry must not stay in flight."""
    ledger = LosingLedger()
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
    await shop.client.aclose()
    assert (await shop.entry()).state is State.RELEASED


async def test_oldest_of_too_many_unsent_claims_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loanasync.ledger.guard._MAX_UNWRITTEN", 3)
    ledger = LosingLedger()
    shop = Shop(ledger=ledger)
    for number in range(5):
        await shop.result(scope=f"{number}")
    ledger.is_down = False
    await shop.client.aclose()
    states = {entry.scope: entry.state for entry in await shop.entries()}
    assert [states[f"{number}"] for number in range(5)] == [State.INFLIGHT] * 2 + [State.RELEASED] * 3
