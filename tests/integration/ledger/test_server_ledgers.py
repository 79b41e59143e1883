"""Ledgers that fail: no decision is lost, no request is repeated, and a late claim is undone."""

import asyncio
import socket
import sqlite3
import sys
import traceback
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from loanasync import (
    Approved,
    ConfigurationError,
    DecisionNotRecordedError,
    InFlightError,
    LedgerUnavailableError,
    LoanClient,
    OutcomeUnknownError,
    Refused,
    Timeout,
)
from loanasync.ledger import (
    Entry,
    Ledger,
    PostgresLedger,
    RedisLedger,
    SqliteLedger,
    State,
    import_orphans,
    open_ledger,
)
from loanasync.ledger.drivers import may_repeat
from loanasync.testing import ScriptedResponse, SentRequest, approved, computed, not_connected, refused
from support.ledger_clients import (
    FailingLedger,
    Shop,
    create,
    held_response,
    of_another_process,
    orphans_in,
)
from support.server_ledgers import LedgerStore, PostgresStore, ValkeyStore
from support.servers import Server, Valkey
from support.settlements import REFUSAL, claim, settle
from support.virtual_time import VirtualTime

OTHER = "TSTXYZ00A00A000B"
# Seconds of patience with a hanging server; longer than a stall of the machine.
PATIENCE = 2.5


@pytest.mark.parametrize("scheme", ["postgresql", "redis"])
def test_server_that_never_answers_delays_a_start_by_two_seconds(
    scheme: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The system accepts the connection, and no program reads from it. `aclose` is not delayed."""
    time = VirtualTime()

    async def start(port: int) -> float:
        ledger = open_ledger(f"{scheme}://shop:secret@127.0.0.1:{port}/0")
        client = LoanClient("https://loans.example.com", shop_id="s", auth_token="t", ledger=ledger)
        async with ledger, client:
            return time.now()

    with socket.create_server(("127.0.0.1", 0)) as server:
        assert time.run(start(server.getsockname()[1])) == pytest.approx(2)
    assert time.now() == pytest.approx(2)
    [record] = [each for each in caplog.records if each.name == "loanasync"]
    assert (record.levelname, "secret" in record.getMessage()) == ("WARNING", False)
    assert record.getMessage().endswith("no request is sent until the ledger works")


@pytest.fixture(params=["valkey", "postgres"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[LedgerStore]:
    server = request.getfixturevalue(request.param)
    found: LedgerStore = ValkeyStore(server) if isinstance(server, Valkey) else PostgresStore(server)
    async with found.ledger() as ledger:
        await create(ledger)
    yield found
    if not server.is_running:
        server.start()


@pytest.mark.parametrize("fault", ["down", "hangs"])
@pytest.mark.parametrize("moment", ["claim", "commit"])
async def test_failing_server_repeats_no_request_and_loses_no_decision(
    store: LedgerStore, moment: str, fault: str, tmp_path: Path
) -> None:
    step, arrived, go = held_response(refused())
    shop = Shop(step, ledger=store.ledger(), patience=PATIENCE, orphan_folder=tmp_path)
    server = store.server
    fail, repair = (server.kill, server.start) if fault == "down" else (server.pause, server.resume)
    await shop.ledger.get("k")
    if moment == "claim":
        await asyncio.to_thread(fail)
    call = asyncio.create_task(shop.result())
    if moment == "commit":
        await arrived.wait()
        await asyncio.to_thread(fail)
    go.set()
    try:
        async with asyncio.timeout(20 * PATIENCE):
            error = await call
    finally:
        await asyncio.to_thread(repair)
    if moment == "claim":
        assert isinstance(error, LedgerUnavailableError)
        assert "request not sent" in str(error)
        assert shop.script.left == 1
    else:
        assert isinstance(error, DecisionNotRecordedError)
        assert isinstance(error.decision, Refused)
        assert await import_orphans(shop.ledger, tmp_path) == 1
    assert isinstance(await shop.approve(), Refused)
    assert len(shop.script.sent) == 1
    await shop.ledger.aclose()


async def test_restart_of_the_server_loses_no_decision_in_flight(store: LedgerStore, tmp_path: Path) -> None:
    """All settlements begin while the server is down."""
    go, count = asyncio.Event(), 30

    async def respond(_: SentRequest) -> ScriptedResponse:
        await go.wait()
        return approved()

    ledger = store.ledger()
    shop = Shop(*[computed(respond)] * count, ledger=ledger, orphan_folder=tmp_path, patience=60)
    codes = [f"TSTXYZ{number:02}A00A000B" for number in range(count)]
    calls = [asyncio.create_task(shop.result(code=code)) for code in codes]
    while len(shop.script.sent) < count:  # noqa: ASYNC110  (each request follows its claim)
        await asyncio.sleep(0.01)
    await asyncio.to_thread(store.server.kill)
    with mock.patch("loanasync.ledger.access.may_repeat", side_effect=may_repeat) as failed:
        go.set()
        while failed.call_count < count:  # noqa: ASYNC110  (each settlement has failed)
            await asyncio.sleep(0.01)
        await asyncio.to_thread(store.server.start)
        assert {type(await call) for call in calls} == {Approved}
    assert [entry.state for entry in await shop.entries()] == [State.APPROVED] * count
    assert orphans_in(tmp_path) == 0
    await shop.client.aclose()
    await ledger.aclose()


async def test_decision_survives_kill_9_of_its_server(store: LedgerStore) -> None:
    ledger = store.ledger()
    keys = [f"k{number}" for number in range(50)]
    await asyncio.gather(*(settle(ledger, REFUSAL, key=key) for key in keys))
    await asyncio.to_thread(store.server.kill)
    await asyncio.to_thread(store.server.start)
    # All connections are open and useless now.
    entries = await asyncio.gather(*(ledger.get(key) for key in keys))
    assert [entry.state for entry in entries if entry] == [State.REFUSED] * 50
    await ledger.aclose()


async def test_wrong_password_is_unavailable_and_never_shown(
    store: LedgerStore, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "wr0ng-w0rd"
    scheme, _, rest = store.server.url.partition("://")
    ledger = store.ledger(f"{scheme}://postgres:{secret}@{rest.rpartition('@')[2]}?password={secret}")
    shop = Shop(approved(), ledger=ledger)
    with pytest.raises(LedgerUnavailableError) as caught:
        await shop.approve()
    assert shop.script.left == 1
    with pytest.raises(Exception) as plain:  # noqa: PT011  (as its library raises it)
        await ledger.get("k")
    texts = [repr(ledger), caplog.text]
    for error in (caught.value, plain.value):
        texts += [str(error), repr(error), *traceback.format_exception(error)]
    assert secret not in "".join(texts)
    assert f"//{rest.rpartition('@')[2]}'" in repr(ledger)
    await ledger.aclose()


async def test_many_operations_share_a_few_connections(store: LedgerStore) -> None:
    ledger = store.ledger()
    await asyncio.gather(*(claim(ledger, f"k{number}") for number in range(300)))
    assert await store.connection_count() <= 10
    await ledger.aclose()
    while await store.connection_count():  # noqa: ASYNC110  (until the server has noticed)
        await asyncio.sleep(0.01)


EXTRAS: list[tuple[Any, str, str, str]] = [
    (RedisLedger, "redis://127.0.0.1/0", "redis.asyncio.connection", "redis"),
    (PostgresLedger, "postgresql://127.0.0.1/shop", "asyncpg", "postgres"),
]


@pytest.mark.parametrize(("kind", "url", "module", "extra"), EXTRAS)
def test_missing_extra_error_has_the_install_command(
    kind: Callable[[str], object], url: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigurationError, match=rf"pip install '\.\[{extra}\]'"):
        kind(url)


@pytest.mark.parametrize(
    "url", ["mysql://u:s3cret@h/d", "s3cret", "", None, 6379, "redis://u:s3cret@h:port/0"]
)
@pytest.mark.parametrize("kind", [RedisLedger, PostgresLedger])
def test_invalid_address_is_rejected_and_not_shown(kind: Callable[[Any], object], url: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        kind(url)
    assert "s3cret" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    ("kind", "url", "expected"),
    [
        (RedisLedger, "redis://:s3cret@h:1/2", "redis://h:1/2"),
        (RedisLedger, "rediss://h/2?password=s3cret", "rediss://h/2"),
        (RedisLedger, "unix://u:s3cret@/run/valkey.sock", "unix:/run/valkey.sock"),
        (PostgresLedger, "postgres://u:s3cret@h/d?password=s3cret", "postgres://h/d"),
        (PostgresLedger, "postgresql://u:s3cret@h1:1,h2:2/d", "***"),
        (PostgresLedger, "postgresql://u:12/s3cret@h/d", "***"),
    ],
)
def test_repr_has_the_address_without_the_password(kind: type, url: str, expected: str) -> None:
    assert repr(kind(url)) == f"{kind.__name__}('{expected}')"


SHORT = Timeout(total=0.3, attempt=0.2, connect=0.1)


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
async def hanging(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[HangingLedger]:
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


async def test_claim_that_arrives_late_is_not_written(hanging: HangingLedger) -> None:
    shop = Shop(approved(), ledger=hanging.ledger, patience=0.3)
    other = shop.new_client(ledger_policy=Shop().policy)  # with the usual patience
    await hanging.hang()
    assert isinstance(await shop.result(timeout=SHORT), LedgerUnavailableError)
    await hanging.resume()
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
        if self.is_down and name not in ("claim", "entries_of"):
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
    other = shop.new_client(ledger=of_another_process(ledger))
    assert isinstance(await shop.result(other, wait=0), of_another)
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
    monkeypatch.setattr("loanasync.ledger.access._MAX_UNWRITTEN", 3)
    ledger = LosingLedger()
    shop = Shop(ledger=ledger)
    for number in range(5):
        await shop.result(code=f"TSTXYZ{number:02}A00A000B")
    ledger.is_down = False
    await shop.client.aclose()
    entries = sorted(await shop.entries(), key=lambda entry: entry.claimed)
    assert [entry.state for entry in entries] == [State.INFLIGHT] * 2 + [State.RELEASED] * 3
