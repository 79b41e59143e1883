"""The PostgreSQL ledger: transactions, conflicts, access rights, the header, lost writes and poolers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any

import asyncpg
import pytest
from attrs import evolve

from loanasync import Approved, ConfigurationError, LedgerMismatchError, LedgerUnavailableError
from loanasync.ledger import Ledger, LedgerPolicy, PostgresLedger, Settlement, State, create_ledger
from loanasync.ledger.administration import confirm, move_service, rotate_key
from loanasync.ledger.last_number import LastNumber
from loanasync.testing import approved
from support.ledger_clients import Shop
from support.servers import PgBouncer, Postgres, Standby
from support.servers.fixtures import skip_missing_server

REFUSED = Settlement(state=State.REFUSED, status=422)
BASE_URL = "https://loans.example.com"
KEY: dict[str, Any] = {"key": b"0123456789abcdef"}
POLICY = LedgerPolicy(**KEY)


async def claim(ledger: Ledger, key: str = "k", **options: Any) -> Any:
    return await ledger.claim(key, **{"token": "t", "payload": "p", "lease": 60.0, **options})


async def settle(ledger: Ledger, key: str = "k", settlement: Settlement = REFUSED, **options: Any) -> Any:
    return await ledger.settle(key, **{"token": "t", "payload": "p", "settlement": settlement, **options})


async def create(url: str, table: str) -> None:
    async with PostgresLedger(url, table=table) as ledger:
        await create_ledger(ledger, base_url=BASE_URL, policy=POLICY)


@pytest.fixture
async def table(postgres: Postgres) -> str:
    """The table of a ledger, which is created."""
    name = f"t{token_hex(4)}"
    await create(postgres.url, name)
    return name


@pytest.fixture
async def connection(postgres: Postgres) -> AsyncIterator[Any]:
    """Return a connection that the user opened."""
    opened = await asyncpg.connect(postgres.url)
    yield opened
    await opened.close()


async def test_settlement_in_a_transaction_is_committed_with_it(
    connection: Any, postgres: Postgres, table: str
) -> None:
    await connection.execute("CREATE TEMPORARY TABLE orders (state text)")
    own, other = PostgresLedger(connection, table=table), PostgresLedger(postgres.url, table=table)
    await claim(own)
    entry = await settle(own, settlement=Settlement(state=State.LOST))
    for ends, state in (("ROLLBACK", State.LOST), ("COMMIT", State.REFUSED)):
        await connection.execute("BEGIN")
        await connection.execute("INSERT INTO orders VALUES ('refused')")
        assert (await settle(own, token=entry.token)).state is State.REFUSED
        assert [each.state async for each in other.scan()] == [State.LOST]
        await connection.execute(ends)
        assert [each.state async for each in other.scan()] == [state]
    assert await connection.fetchval("SELECT count(*) FROM orders") == 1
    await own.aclose()
    assert not connection.is_closed()
    await other.aclose()


async def test_approve_inside_a_transaction_sends_nothing(connection: Any, table: str) -> None:
    shop = Shop(approved(), ledger=PostgresLedger(connection, table=table), **KEY)
    async with connection.transaction():
        with pytest.raises(ConfigurationError, match="inside a transaction"):
            await shop.approve()
    assert shop.script.left == 1
    assert isinstance(await shop.approve(), Approved)
    assert (await shop.entry()).state is State.APPROVED


async def test_settlement_in_an_aborted_transaction_raises(connection: Any, table: str) -> None:
    ledger = PostgresLedger(connection, table=table)
    await claim(ledger)
    transaction = connection.transaction()
    await transaction.start()
    with pytest.raises(asyncpg.UndefinedTableError):
        await connection.execute("SELECT * FROM no_such_table")
    with pytest.raises(asyncpg.InFailedSQLTransactionError):
        await settle(ledger)
    await transaction.rollback()
    assert (await settle(ledger)).state is State.REFUSED


async def test_lease_expires_while_a_transaction_is_open(
    connection: Any, postgres: Postgres, table: str
) -> None:
    own, other = PostgresLedger(connection, table=table), PostgresLedger(postgres.url, table=table)
    await claim(other, lease=0.2)
    async with connection.transaction():
        assert await own.get("j") is None  # the transaction's time is fixed
        assert await other.wait("k", 30) == await own.get("k")
    await other.aclose()


async def test_operations_on_one_connection_run_one_at_a_time(connection: Any, table: str) -> None:
    ledger = PostgresLedger(connection, table=table)
    claims = [claim(ledger, token=f"t{number}") for number in range(32)]
    entries = await asyncio.gather(*claims)
    assert [entry.is_claimed_by(f"t{number}") for number, entry in enumerate(entries)].count(True) == 1


async def test_given_pool_is_used_and_stays_open(postgres: Postgres, table: str) -> None:
    async with asyncpg.create_pool(postgres.url, min_size=0, max_size=3) as pool:
        shop = Shop(approved(), ledger=PostgresLedger(pool, table=table), **KEY)
        assert isinstance(await shop.approve(), Approved)
        await shop.ledger.aclose()
        assert (await shop.entry()).state is State.APPROVED
        assert repr(shop.ledger) == f"PostgresLedger('Pool', table={table!r})"
    assert repr(PostgresLedger(pool)) == "PostgresLedger('Pool')"


@asynccontextmanager
async def set_up(
    postgres: Postgres, table: str, rights: str = "SELECT, INSERT, UPDATE, DELETE", **settings: str
) -> AsyncIterator[str]:
    """Create a user with other settings, and return the address with which to connect."""
    user = f"user{token_hex(4)}"
    connection = await asyncpg.connect(postgres.url)
    await connection.execute(f"CREATE ROLE {user} LOGIN PASSWORD 'word'")
    for name, value in settings.items():
        await connection.execute(f"ALTER ROLE {user} SET {name} = '{value}'")
    await connection.execute(f"GRANT {rights} ON {table}, {table}_header TO {user}")
    yield f"postgresql://{user}:word@127.0.0.1:{postgres.port}/postgres"
    await connection.execute(f"DROP OWNED BY {user}")
    await connection.execute(f"DROP ROLE {user}")
    await connection.close()


ISOLATIONS = ["read committed", "repeatable read", "serializable"]


@pytest.mark.parametrize("isolation", ISOLATIONS)
async def test_concurrent_claims_have_one_owner_at_each_isolation_level(
    postgres: Postgres, table: str, isolation: str
) -> None:
    async with set_up(postgres, table, default_transaction_isolation=isolation) as url:
        ledgers = [PostgresLedger(url, table=table) for _ in range(4)]
        for key in ("k", "l", "m"):
            claims = [claim(ledgers[number % 4], key, token=f"t{number}") for number in range(32)]
            entries = await asyncio.gather(*claims)
            won = [entry.is_claimed_by(f"t{number}") for number, entry in enumerate(entries)]
            assert won.count(True) == 1
            assert len({entry.token for entry in entries}) == 1
        for ledger in ledgers:
            await ledger.aclose()


async def test_conflict_in_a_given_transaction_is_raised(
    postgres: Postgres, connection: Any, table: str
) -> None:
    own, other = PostgresLedger(connection, table=table), PostgresLedger(postgres.url, table=table)
    await claim(own)
    transaction = connection.transaction(isolation="repeatable_read")
    await transaction.start()
    await own.get("k")
    unknown = Settlement(state=State.UNKNOWN)
    await settle(other, settlement=unknown)
    with pytest.raises(asyncpg.SerializationError):
        await settle(own)
    await transaction.rollback()
    await other.aclose()


@pytest.mark.parametrize("late", ["off", "local"])
async def test_commit_is_synchronous_although_it_is_off_for_the_user(
    postgres: Postgres, table: str, late: str
) -> None:
    async with set_up(postgres, table, synchronous_commit=late) as url:
        connection = await asyncpg.connect(url)
        ledger = PostgresLedger(connection, table=table)
        await ledger.get("k")
        header = await ledger.header()
        for operation in (
            partial(claim, ledger),
            partial(settle, ledger, settlement=Settlement(state=State.HELD)),
            partial(claim, ledger, token="u", over="t"),
            partial(settle, ledger, token="u"),
            partial(ledger.change_header, header, header),
            ledger.header,
        ):
            before = await connection.fetchval("SELECT pg_current_wal_insert_lsn()")
            await operation()
            written = "SELECT pg_current_wal_flush_lsn() > $1::pg_lsn"
            assert await connection.fetchval(written, before)
            assert await connection.fetchval("SHOW synchronous_commit") == late
        await connection.close()


async def test_user_who_may_not_write_sends_nothing(postgres: Postgres, table: str) -> None:
    async with (
        set_up(postgres, table, default_transaction_read_only="on") as read_only,
        set_up(postgres, table, "SELECT") as reader,
    ):
        for url, reason in (
            (read_only, "read-only replica"),
            (reader, "grant SELECT, INSERT, UPDATE and DELETE"),
        ):
            shop = Shop(approved(), ledger=PostgresLedger(url, table=table), **KEY)
            with pytest.raises(LedgerUnavailableError, match=reason):
                await shop.approve()
            assert shop.script.left == 1
            assert await shop.entries() == []
            await shop.ledger.aclose()


async def test_user_with_the_documented_rights_runs_every_operation(postgres: Postgres, table: str) -> None:
    async with set_up(postgres, table) as url, PostgresLedger(url, table=f"public.{table}") as ledger:
        await claim(ledger)
        await settle(ledger)
        assert await ledger.purge(older_than=-3600) == 1
        header = await ledger.header()
        assert await ledger.change_header(header, header)


# The header


async def wait_for_locks(connection: Any, count: int) -> None:
    """Wait until a number of sessions wait for a lock."""
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    while await connection.fetchval(waiting) != count:  # noqa: ASYNC110  (until the server says so)
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("isolation", ISOLATIONS)
async def test_claim_that_waits_for_a_new_generation_is_refused(
    postgres: Postgres, connection: Any, table: str, isolation: str
) -> None:
    """A plain comparison of the generation would see the header as it was before the claim waited."""
    async with (
        set_up(postgres, table, default_transaction_isolation=isolation) as url,
        PostgresLedger(url, table=table) as ledger,
    ):
        header = await ledger.header()
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(f"LOCK TABLE {table}_header IN EXCLUSIVE MODE")
        new = evolve(header, generation=2)
        update = "UPDATE {table}_header SET generation = 2, header = $1"
        await connection.execute(update.format(table=table), new.as_json())
        claims = [asyncio.create_task(claim(ledger, f"k{number}", header=header)) for number in range(4)]
        observer = await asyncpg.connect(postgres.url)
        await wait_for_locks(observer, 4)
        await observer.close()
        await transaction.commit()
        results = await asyncio.gather(*claims, return_exceptions=True)
        assert {type(each).__name__ for each in results} == {"HeaderChangedError"}
        assert [entry async for entry in ledger.scan()] == []


async def test_change_of_the_header_is_not_delayed_by_later_claims(
    postgres: Postgres, connection: Any, table: str
) -> None:
    """Claims that share the lock of the header's row, one after the other, must not go on without end."""
    async with PostgresLedger(postgres.url, table=table) as ledger:
        header = await ledger.header()
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(f"SELECT FROM {table}_header FOR SHARE")  # a claim that is not committed yet
        observer = await asyncpg.connect(postgres.url)
        change = asyncio.create_task(ledger.change_header(header, header))
        await wait_for_locks(observer, 1)
        later = asyncio.create_task(claim(ledger, header=header))
        await wait_for_locks(observer, 2)
        await observer.close()
        await transaction.commit()
        assert await change
        with pytest.raises(Exception) as caught:  # noqa: PT011  (not public)
            await later
        assert type(caught.value).__name__ == "HeaderChangedError"


async def test_claim_that_waited_too_long_for_a_lock_writes_nothing(
    postgres: Postgres, connection: Any, table: str
) -> None:
    async with PostgresLedger(postgres.url, table=table) as ledger:
        await ledger.header()
        transaction = connection.transaction()
        await transaction.start()
        await settle(PostgresLedger(connection, table=table))
        late = asyncio.create_task(claim(ledger, within=0.5))
        observer = await asyncpg.connect(postgres.url)
        await wait_for_locks(observer, 1)
        await observer.execute("SELECT pg_sleep(0.6)")
        await observer.close()
        await transaction.rollback()
        with pytest.raises(TimeoutError):
            await late
        assert await ledger.get("k") is None


async def test_change_of_the_header_does_not_wait_for_a_lock_without_end(
    postgres: Postgres, connection: Any, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loanasync.ledger.postgres._LOCK_TIMEOUT", "50ms")
    async with PostgresLedger(postgres.url, table=table) as ledger, connection.transaction():
        await connection.execute(f"SELECT FROM {table}_header FOR SHARE")
        with pytest.raises(asyncpg.LockNotAvailableError) as caught:
            await confirm(ledger)
        assert "another transaction locked a table of the ledger" in ledger.reason(caught.value)
        assert (await claim(ledger)).is_claimed_by("t")


async def test_change_of_the_header_inside_a_transaction_is_refused(connection: Any, table: str) -> None:
    ledger = PostgresLedger(connection, table=table)
    header = await ledger.header()
    async with connection.transaction():
        with pytest.raises(ConfigurationError, match="must not change the header inside a transaction"):
            await ledger.change_header(header, header)


async def test_missing_ledger_is_refused_and_not_created(postgres: Postgres, connection: Any) -> None:
    table = f"t{token_hex(4)}"
    shop = Shop(approved(), ledger=PostgresLedger(postgres.url, table=table), **KEY)
    with pytest.raises(LedgerMismatchError, match=f"{table} does not exist: .* loanasync ledger create"):
        await shop.approve()
    assert shop.script.left == 1
    assert await connection.fetchval(f"SELECT to_regclass('{table}')") is None
    await shop.ledger.aclose()


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM {table}_header",
        "DROP TABLE {table}_header",
        "DROP TABLE {table}",
        "ALTER TABLE {table} DROP COLUMN revision",
    ],
)
async def test_part_of_a_ledger_is_refused(
    postgres: Postgres, connection: Any, table: str, statement: str
) -> None:
    async with PostgresLedger(postgres.url, table=table) as ledger:
        await claim(ledger)
    await connection.execute(statement.format(table=table))
    shop = Shop(approved(), ledger=PostgresLedger(postgres.url, table=table), **KEY)
    with pytest.raises(LedgerMismatchError, match="is not a ledger, or a part of it is missing: name"):
        await shop.approve()
    assert shop.script.left == 1
    await shop.ledger.aclose()


# Lost writes


@pytest.fixture
async def own_server() -> AsyncIterator[Postgres]:
    """A server that only one test uses, with a ledger."""
    with skip_missing_server(), Postgres() as server:
        await create(server.url, "decisions")
        yield server


async def test_crash_of_the_server_is_not_taken_for_lost_writes(own_server: Postgres) -> None:
    """A crash takes back the ids of other transactions that wrote nothing to the disk."""
    async with PostgresLedger(own_server.url, table="decisions") as ledger:
        await claim(ledger, "before")
        connection = await asyncpg.connect(own_server.url)
        for _ in range(5):
            await connection.execute("SELECT txid_current()")
        await ledger.get("before")
        await PostgresLedger(connection, table="decisions").header()
        for _ in range(5):
            await connection.execute("SELECT txid_current()")
        await ledger.get("before")
        connection.terminate()
        await asyncio.to_thread(own_server.kill)
        await asyncio.to_thread(own_server.start)
        await ledger.aclose()
        assert (await claim(ledger, "after")).is_claimed_by("t")
        assert (await ledger.open(BASE_URL, POLICY)).generation == 1


async def refuses(ledger: Ledger, operation: Callable[[Ledger], Awaitable[object]]) -> bool:
    """Return True if an operation finds lost writes, and marks the ledger."""
    with suppress(LedgerMismatchError):
        await operation(ledger)
    header = await ledger.refresh()
    return header.has_lost_writes and header.generation == 2


@pytest.mark.parametrize(
    "operation",
    [
        partial(claim, key="next"),
        partial(settle, key="next", settlement=Settlement(state=State.HELD)),
        partial(Ledger.get, key="next"),
        Ledger.refresh,
    ],
)
async def test_tables_restored_on_the_same_server_are_refused(
    postgres: Postgres, table: str, operation: Callable[[Ledger], Awaitable[object]]
) -> None:
    """The transaction ids of the server do not go back."""
    async with PostgresLedger(postgres.url, table=table) as ledger:
        await ledger.open(BASE_URL, POLICY)
        await asyncio.to_thread(postgres.dump, f"{table}.sql", table, f"{table}_header")
        await claim(ledger)
        await asyncio.to_thread(postgres.restore, f"{table}.sql")
        async with PostgresLedger(postgres.url, table=table) as other:
            assert await other.get("k") is None
            assert not (await other.header()).has_lost_writes, "it has never seen the ledger before"
        assert await refuses(ledger, operation)
        with pytest.raises(LedgerMismatchError, match="has lost writes"):
            await ledger.open(BASE_URL, POLICY)
        await confirm(ledger)
        assert (await ledger.open(BASE_URL, POLICY)).generation == 3
        assert (await claim(ledger, "last")).is_claimed_by("t")


async def test_restarted_process_notices_restored_tables(
    postgres: Postgres, table: str, tmp_path: Path
) -> None:
    async def result(code: str) -> object:
        ledger = PostgresLedger(postgres.url, table=table)
        shop = Shop(approved(), ledger=ledger, orphan_folder=tmp_path, **KEY)
        result = await shop.result(code=code)
        await shop.client.aclose()
        await shop.ledger.aclose()
        return result

    assert isinstance(await result("TSTXYZ00A00A000A"), Approved)
    await asyncio.to_thread(postgres.dump, f"{table}.sql", table, f"{table}_header")
    assert isinstance(await result("TSTXYZ00A00A000B"), Approved)
    await asyncio.to_thread(postgres.restore, f"{table}.sql")
    for code in "CD":
        error = await result(f"TSTXYZ00A00A000{code}")
        assert isinstance(error, LedgerMismatchError)
        assert "has lost writes" in error.reason


@pytest.mark.parametrize("vacuum", ["VACUUM FREEZE", "VACUUM FULL"])
async def test_changes_of_the_header_are_not_taken_for_lost_writes(
    postgres: Postgres, connection: Any, table: str, tmp_path: Path, vacuum: str
) -> None:
    policy = LedgerPolicy(key=b"fedcba9876543210", old_keys=[KEY["key"]])
    url = "https://loans.example.com/v2"
    changes: list[tuple[Callable[[Ledger], Awaitable[object]], str]] = [
        (confirm, BASE_URL),
        (lambda other: rotate_key(other, policy), BASE_URL),
        (lambda other: move_service(other, url), url),
        (lambda _: connection.execute(f"{vacuum} {table}_header"), url),
    ]
    ledger, other = (PostgresLedger(postgres.url, table=table) for _ in range(2))
    file = LastNumber(lambda: [tmp_path])
    await claim(ledger, "k")
    for number, (change, service) in enumerate(changes):
        await change(other)
        assert (await claim(ledger, f"{number}")).is_claimed_by("t")
        header = await ledger.refresh()
        assert not (await ledger.open(service, POLICY)).has_lost_writes
        assert await asyncio.to_thread(file.read, header) <= (header.epoch, ledger.number)
        await asyncio.to_thread(file.write, header, ledger.number)
    await ledger.aclose()
    await other.aclose()


@pytest.mark.scheduled
@pytest.mark.parametrize("is_complete", [False, True])
async def test_promoted_standby_that_lacks_claims_is_refused(
    own_server: Postgres, *, is_complete: bool
) -> None:
    ledger = PostgresLedger(own_server.url, table="decisions")
    standby = Standby(own_server)
    await asyncio.to_thread(standby.start)
    await claim(ledger, "both")
    async with replicated(own_server, standby):
        if is_complete:
            await asyncio.gather(*(claim(ledger, f"{number}") for number in range(4)))
    await asyncio.to_thread(standby.kill)
    if not is_complete:
        await asyncio.gather(*(claim(ledger, f"{number}") for number in range(4)))
    await asyncio.to_thread(own_server.kill)
    standby.port = own_server.port
    await asyncio.to_thread(standby.start)
    await asyncio.to_thread(standby.promote)
    await ledger.aclose()
    try:
        if is_complete:
            assert (await claim(ledger, "next")).is_claimed_by("t")
            assert len([entry async for entry in ledger.scan()]) == 6
        else:
            with pytest.raises(LedgerMismatchError, match="has lost writes"):
                await claim(ledger, "next")
            async with PostgresLedger(own_server.url, table="decisions") as other:
                with pytest.raises(LedgerMismatchError, match="has lost writes"):
                    await other.open(BASE_URL, POLICY)
        await ledger.aclose()
    finally:
        await asyncio.to_thread(standby.stop)


@asynccontextmanager
async def replicated(primary: Postgres, standby: Postgres) -> AsyncIterator[None]:
    """Wait at the end until the standby has all writes of the primary."""
    yield
    written, replayed = await asyncpg.connect(primary.url), await asyncpg.connect(standby.url)
    last = await written.fetchval("SELECT pg_current_wal_flush_lsn()")
    while not await replayed.fetchval("SELECT pg_last_wal_replay_lsn() >= $1", last):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await written.close()
    await replayed.close()


# Poolers


async def test_lists_through_a_pooler_are_complete(
    postgres: Postgres, pgbouncer: PgBouncer, table: str
) -> None:
    """Two clients run different statements in the same sessions of the server."""
    async with PostgresLedger(postgres.url, table=table) as direct:
        for begin in range(0, 1200, 100):
            keys = (f"{number:04}" for number in range(begin, begin + 100))
            await asyncio.gather(*(claim(direct, key, lease=60.0 * (int(key) % 2)) for key in keys))

    async def listed(ledger: Ledger, *states: State) -> list[int]:
        return [len([entry async for entry in ledger.scan(*states)]) for _ in range(75)]

    async def decide(ledger: Ledger) -> None:
        for number in range(100):
            await claim(ledger, f"{number:04}", token="u", over="t", lease=0.0)
            await ledger.find(customer="c")

    async with (
        PostgresLedger(pgbouncer.url, table=table) as one,
        PostgresLedger(pgbouncer.url, table=table) as two,
    ):
        first, second, _ = await asyncio.gather(
            listed(one, State.INFLIGHT, State.UNKNOWN), listed(two), decide(two)
        )
    assert {*first, *second} == {1200}


async def test_shared_prepared_statements_are_reported_with_the_option(
    pgbouncer: PgBouncer, table: str
) -> None:
    async with (
        PostgresLedger(pgbouncer.url, table=table, statement_cache_size=100) as ledger,
        asyncpg.create_pool(pgbouncer.url, min_size=2, statement_cache_size=0) as others,
    ):
        await claim(ledger)
        error: Any = None
        while error is None:
            await asyncio.gather(*(others.execute("DEALLOCATE ALL") for _ in range(2)))
            [error] = await asyncio.gather(ledger.find(customer="c"), return_exceptions=True)
            error = error or None
        assert "put statement_cache_size=0 into the address" in ledger._store.reason(error)


async def test_statement_cache_runs_prepared_statements(postgres: Postgres, table: str) -> None:
    async with PostgresLedger(postgres.url, table=table, statement_cache_size=100) as ledger:
        await claim(ledger)
        assert (await settle(ledger)).state is State.REFUSED
        assert [entry.key async for entry in ledger.scan()] == ["k"]


# Reasons


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (asyncpg.DiskFullError("x"), "disk is full"),
        (asyncpg.TooManyConnectionsError("x"), "too many connections"),
        (asyncpg.InvalidPasswordError("x"), "wrong user or password"),
        (asyncpg.AdminShutdownError("x"), "shutting down"),
        (asyncpg.DuplicatePreparedStatementError("x"), "put statement_cache_size=0 into the address"),
        (TimeoutError(), "did not answer in time"),
        (ConnectionRefusedError(), "cannot be reached"),
    ],
)
def test_unavailable_ledger_has_the_reason(error: Exception, reason: str) -> None:
    assert reason in PostgresLedger("postgresql://127.0.0.1/shop")._store.reason(error)


@pytest.mark.parametrize("table", ["", "t; DROP TABLE x", 'a"b', "A", "1a", "a.b.c", "a-b", "a" * 57, "a\n"])
def test_invalid_table_name_is_rejected(table: str) -> None:
    with pytest.raises(ConfigurationError, match="name"):
        PostgresLedger("postgresql://127.0.0.1/shop", table=table)
