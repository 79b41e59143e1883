"""Servers that restart or are replaced: which operations are repeated, and which connections are used."""

import asyncio
import contextlib
import socket
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import asyncpg
import pytest
from redis import exceptions

from loanasync import Approved, Decision, DecisionNotRecordedError, LedgerUnavailableError, LoanError
from loanasync.ledger import Entry, Ledger, MemoryLedger, PostgresLedger, RedisLedger, State, redis
from loanasync.ledger.drivers import MAX_AGE, may_repeat
from loanasync.testing import approved, timed_out
from support.builders import FISCAL_CODE
from support.ledger_clients import FailingLedger, Shop
from support.virtual_time import VirtualTime

SCRIPT = "ERR Error running script: @user_script:9: "  # before Redis 7
# The server is not the primary any more, starts or stops, or has lost its connection.
OF_VALKEY = [
    exceptions.ReadOnlyError("You can't write against a read only replica."),
    exceptions.ResponseError(f"{SCRIPT}-READONLY You can't write against a read only replica."),
    exceptions.ResponseError("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is 'no'."),
    exceptions.MasterDownError("Link with MASTER is down"),
    exceptions.BusyLoadingError("Redis is loading the dataset in memory"),
    exceptions.ResponseError("NOREPLICAS Not enough good replicas to write."),
]
OF_POSTGRES = [
    asyncpg.ReadOnlySQLTransactionError("cannot execute INSERT in a read-only transaction"),
    asyncpg.AdminShutdownError("terminating connection due to administrator command"),
    asyncpg.CrashShutdownError("terminating connection because of crash of another server process"),
    asyncpg.CannotConnectNowError("the database system is starting up"),
    asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation"),
    asyncpg.ConnectionFailureError("the connection failed"),
]
VALKEY, POSTGRES = RedisLedger("redis://h"), PostgresLedger("postgresql://h/d")


@pytest.mark.parametrize(
    ("ledger", "error", "is_transient"),
    [
        *((VALKEY, error, True) for error in OF_VALKEY),
        (VALKEY, exceptions.ConnectionError("Connection closed by server."), True),
        (VALKEY, exceptions.TimeoutError("Timeout reading from h:6379"), True),
        (VALKEY, exceptions.AuthenticationError("invalid username-password pair"), False),
        (VALKEY, exceptions.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."), False),
        (VALKEY, exceptions.NoPermissionError("this user has no permissions"), False),
        *((POSTGRES, error, True) for error in OF_POSTGRES),
        (POSTGRES, ConnectionResetError(104, "Connection reset by peer"), True),
        (POSTGRES, asyncpg.InterfaceError("connection is closed"), True),
        (POSTGRES, asyncpg.InvalidPasswordError("password authentication failed"), False),
        (POSTGRES, asyncpg.DiskFullError("could not extend file"), False),
        (POSTGRES, asyncpg.QueryCanceledError("canceling statement due to statement timeout"), False),
        (MemoryLedger(), ConnectionResetError(), False),
    ],
)
def test_errors_of_connection_role_and_state_are_transient(
    ledger: Ledger, error: Exception, *, is_transient: bool
) -> None:
    assert may_repeat(ledger, error, once=False) is is_transient


# Connections


class Clock:
    """The time of a module, which moves only when a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: str) -> None:
        self.now = 1000.0
        monkeypatch.setattr(f"loanasync.ledger.{module}.time", SimpleNamespace(monotonic=lambda: self.now))


class OfRedis:
    """A connection of redis-py."""

    error: Exception | None = None
    is_connected = False
    opened_times = 0

    async def connect(self) -> None:
        self.opened_times += not self.is_connected
        self.is_connected = True

    async def disconnect(self, *, nowait: bool) -> None:
        assert nowait, "a server that hangs must not delay the operation"
        self.is_connected = False

    async def read_response(self) -> None:
        if self.error is not None:
            raise self.error


async def use(connection: Any, error: Exception | None = None) -> int:
    """Take a connection from its pool, read a response or an error; return how often it was opened."""
    connection.error = error
    await connection.connect()
    with contextlib.suppress(exceptions.RedisError):
        await connection.read_response()
    return int(connection.opened_times)


@pytest.mark.parametrize(
    ("error", "expected"), [*((error, 2) for error in OF_VALKEY), (exceptions.OutOfMemoryError("OOM"), 1)]
)
async def test_redis_connections_are_opened_again_if_one_finds_no_primary(
    error: Exception, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch, "redis")
    kind = type("_Connection", (redis._Connection, OfRedis), {})
    one, other, of_another_pool = kind(), kind(), type("_Connection", (kind,), {})()
    for each in (one, other, of_another_pool):
        assert await use(each) == 1
    clock.now += 1
    await use(one, error)
    clock.now += 1
    assert [await use(one), await use(other), await use(other)] == [expected] * 3


async def test_redis_connection_is_opened_again_after_its_age(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in use all the time."""
    clock = Clock(monkeypatch, "redis")
    connection = type("_Connection", (redis._Connection, OfRedis), {})()
    opened = []
    for _ in range(5):
        opened.append(await use(connection))
        clock.now += MAX_AGE / 2
    assert opened == [1, 1, 2, 2, 3]


class OfPostgres:
    """A connection of asyncpg."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.is_ended = False

    async def fetch(self, query: str, *arguments: object) -> list[tuple[object, ...]]:
        del query, arguments
        await asyncio.sleep(0)  # so that two operations use two connections
        if self.error is not None:
            raise self.error
        return [(0.0, None, None)]  # no ledger

    def is_in_transaction(self) -> bool:
        return False

    def is_closed(self) -> bool:
        return self.is_ended

    def terminate(self) -> None:
        self.is_ended = True

    async def close(self) -> None:
        self.is_ended = True


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[OfPostgres]:
    """The connections that asyncpg opens."""
    connections: list[OfPostgres] = []

    async def connect(*_: object, **__: object) -> OfPostgres:
        connections.append(OfPostgres())
        return connections[-1]

    monkeypatch.setattr("asyncpg.connect", connect)
    return connections


async def read_twice(ledger: PostgresLedger) -> None:
    reads = [ledger._store.header() for _ in range(2)]
    await asyncio.gather(*reads, return_exceptions=True)


@pytest.mark.parametrize(
    ("error", "ended"),
    [
        *((error, [True, True]) for error in OF_POSTGRES),
        (asyncpg.DiskFullError("could not extend file"), [False, False]),
    ],
)
async def test_postgres_connections_are_opened_again_if_one_finds_no_primary(
    error: Exception, ended: list[bool], monkeypatch: pytest.MonkeyPatch, opened: list[OfPostgres]
) -> None:
    clock = Clock(monkeypatch, "postgres")
    async with PostgresLedger("postgresql://h/d", statement_cache_size=100) as ledger:
        await read_twice(ledger)
        clock.now += 1
        opened[-1].error = error  # of the connection that was released last, so it is used first
        with pytest.raises(type(error)):
            await ledger._store.header()
        clock.now += 1
        await read_twice(ledger)
        assert [each.is_ended for each in opened[:2]] == ended
        assert len(opened) == 2 + sum(ended)
        await read_twice(ledger)
        assert len(opened) == 2 + sum(ended), "the new connections are kept"


async def test_postgres_connection_is_opened_again_after_its_age(
    monkeypatch: pytest.MonkeyPatch, opened: list[OfPostgres]
) -> None:
    """It is in use all the time."""
    clock = Clock(monkeypatch, "postgres")
    counts = []
    async with PostgresLedger("postgresql://h/d", statement_cache_size=100) as ledger:
        for _ in range(5):
            await ledger._store.header()
            counts.append(len(opened))
            clock.now += MAX_AGE / 2
    assert counts == [1, 1, 2, 2, 3]
    assert all(each.is_ended for each in opened)


# Operations


LOST = ConnectionResetError("lost")
REFUSED = ConnectionRefusedError("refused")
BROKEN = RuntimeError("the disk is full")
HANGS = "hangs"
Fault: TypeAlias = Exception | str | float


class UnsteadyLedger(FailingLedger):
    """A ledger on a server that restarts: operations fail as a list says, then they work.

    Args:
        operation: Name of the operation.
        faults: One for each call: an error, HANGS, or the seconds after which it fails.
        loses_response: The operation is written before it fails.
    """

    driver = "unsteady"

    def __init__(self, operation: str, faults: Iterable[Fault], *, loses_response: bool = False) -> None:
        super().__init__(**{operation: self._fail})
        self._operation = operation
        self._next = iter(faults)
        self._loses_response = loses_response

    async def _fail(self) -> None:
        fault = next(self._next, None)
        if fault == HANGS:
            await asyncio.sleep(3600)
        elif isinstance(fault, Exception):
            raise fault
        elif isinstance(fault, float):
            await asyncio.sleep(fault)
            raise LOST

    async def _call(self, name: str) -> None:
        if name != self._operation or not self._loses_response:
            await super()._call(name)

    async def claim(self, key: str, **options: Any) -> Entry:
        return await self._respond("claim", await super().claim(key, **options))

    async def settle(self, key: str, **options: Any) -> Entry:
        return await self._respond("settle", await super().settle(key, **options))

    async def _respond(self, name: str, entry: Entry) -> Entry:
        if self._loses_response and name == self._operation:
            self.operations.append(name)
            await self._fail()
        return entry


async def test_repeated_claim_is_not_written_later_than_the_first() -> None:
    """The claim may be undone after that time."""

    class Recorded(UnsteadyLedger):
        async def claim(self, key: str, **options: Any) -> Entry:
            limits.append(options["within"])
            return await super().claim(key, **options)

    limits: list[float] = []
    assert (await Shop(approved(), ledger=Recorded("claim", [LOST])).approve()).approved
    first, second = limits
    assert second < first


def approve(ledger: UnsteadyLedger, **policy: Any) -> tuple[Decision | LoanError, float, Shop]:
    """Request an approval; return its result and the seconds that it took."""
    time, shop = VirtualTime(), Shop(approved(), ledger=ledger, **policy)

    async def call() -> Decision | LoanError:
        await asyncio.get_running_loop().shutdown_default_executor()  # virtual time does not wait for threads
        return await shop.result()

    return time.run(call()), time.now(), shop


@pytest.mark.parametrize(
    ("faults", "calls", "result", "seconds"),
    [
        ([LOST], 2, Approved, 0.1),
        ([1.8], 2, Approved, 1.9),
        ([LOST, LOST], 2, LedgerUnavailableError, 0.1),
        ([LOST, HANGS], 2, LedgerUnavailableError, 2.0),
        ([REFUSED], 1, LedgerUnavailableError, 0.0),
        ([LOST, REFUSED], 2, LedgerUnavailableError, 0.1),
        ([3.0], 1, LedgerUnavailableError, 3.0),
        ([BROKEN], 1, LedgerUnavailableError, 0.0),
        ([HANGS], 1, LedgerUnavailableError, 10.0),
    ],
)
@pytest.mark.parametrize("loses_response", [False, True])
def test_claim_is_repeated_once_within_two_seconds(
    faults: list[Fault], calls: int, result: type, seconds: float, *, loses_response: bool
) -> None:
    """The repeat of a claim whose response was lost recognizes its own entry."""
    ledger = UnsteadyLedger("claim", faults, loses_response=loses_response)
    found, took, shop = approve(ledger)
    assert isinstance(found, result)
    assert took == pytest.approx(seconds, abs=0.01)
    assert ledger.operations.count("claim") == calls
    assert len(shop.script.sent) == (result is Approved)
    entries = asyncio.run(shop.entries())
    assert {entry.state for entry in entries} <= {State.APPROVED if result is Approved else State.RELEASED}
    assert all(not entry.takeovers for entry in entries)


@pytest.mark.parametrize(
    ("faults", "result", "seconds"),
    [
        ([LOST, REFUSED, LOST, REFUSED], Approved, 0.4),
        ([REFUSED] * 98, Approved, 9.8),
        ([LOST, HANGS], DecisionNotRecordedError, 10.0),
        ([REFUSED] * 200, DecisionNotRecordedError, 9.95),
        ([BROKEN], DecisionNotRecordedError, 0.0),
    ],
)
@pytest.mark.parametrize("loses_response", [False, True])
def test_settlement_is_repeated_until_patience_is_over(
    faults: list[Fault], result: type, seconds: float, tmp_path: Path, *, loses_response: bool
) -> None:
    ledger = UnsteadyLedger("settle", faults, loses_response=loses_response)
    found, took, shop = approve(ledger, orphan_folder=tmp_path)
    assert isinstance(found, result)
    assert took == pytest.approx(seconds, abs=0.06)
    is_written = result is Approved or loses_response
    entry = asyncio.run(shop.entry())
    assert entry.state is (State.APPROVED if is_written else State.INFLIGHT)
    assert entry.history == ()


async def test_repeated_claim_is_recognized_after_a_change_of_the_header() -> None:
    """It was written under the earlier generation. Otherwise the call would wait for itself."""

    class Rotated(UnsteadyLedger):
        async def _fail(self) -> None:
            if "claim" not in self.operations[:-1]:
                header = await self.header()
                assert await self.change_header(header, header)
                raise LOST

    shop = Shop(approved(), ledger=Rotated("claim", [], loses_response=True))
    assert isinstance(await shop.result(wait=0), Approved)
    assert len(shop.script.sent) == 1


async def test_stated_outcome_is_repeated() -> None:
    """A webhook of the service arrives while the server restarts."""
    ledger = UnsteadyLedger("get", [LOST, REFUSED])
    shop = Shop(timed_out(), ledger=ledger)
    await shop.result()
    resolved = await shop.client.resolve(FISCAL_CODE, "refused", source="webhook")
    assert resolved.state is State.REFUSED


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (exceptions.ConnectionError("Error 111 connecting to h:6379. Connect call failed."), True),
        (exceptions.ConnectionError("Error -2 connecting to h:6379. Name or service not known."), True),
        (REFUSED, True),
        (OSError("Multiple exceptions: [Errno 111] Connect call failed, ..."), True),
        (FileNotFoundError("no such Unix socket"), True),
        (socket.gaierror(-2, "Name or service not known"), True),
        (exceptions.ConnectionError("Connection closed by server."), False),
        (LOST, False),
        (ConnectionError("unexpected connection_lost() call"), False),
        (OF_VALKEY[4], True),
        (OF_POSTGRES[3], True),
        (OF_VALKEY[0], False),
        (OF_POSTGRES[0], False),
        (OF_POSTGRES[4], False),
        (TimeoutError(), False),
    ],
)
def test_claim_is_not_repeated_after_a_refused_connection(error: Exception, *, expected: bool) -> None:
    assert may_repeat(VALKEY, error, once=False)
    assert may_repeat(VALKEY, error, once=True) is not expected
