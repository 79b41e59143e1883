"""The PostgreSQL ledger: transactions, access rights, locks, the header, lost writes and poolers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest
from attrs import evolve

from loanasync import Approved, ConfigurationError, LedgerMismatchError, LedgerUnavailableError
from loanasync.ledger import Ledger, LedgerPolicy, PostgresLedger, State, resolve
from loanasync.ledger.administration import confirm, move_service, rotate_key
from loanasync.ledger.last_number import LastNumber
from loanasync.ledger.ledger import HeaderChangedError
from loanasync.testing import approved
from support.ledger_clients import KEY, Shop, create
from support.servers import PgBouncer, Postgres, Standby
from support.servers.fixtures import skip_missing_server
from support.settlements import HELD, LOST, REFUSAL, UNKNOWN, by_person, claim, settle

BASE_URL = "https://loans.example.com"
POLICY = LedgerPolicy(key=KEY)
Operation = Callable[[Ledger], Awaitable[object]]


@pytest.fixture
async def table(postgres: Postgres) -> str:
    """The table of a ledger, which is created."""
    name = f"t{token_hex(4)}"
    async with PostgresLedger(postgres.url, table=name) as ledger:
        await create(ledger)
    return name


@pytest.fixture
async def ledger(postgres: Postgres, table: str) -> AsyncIterator[PostgresLedger]:
    async with PostgresLedger(postgres.url, table=table) as opened:
        yield opened


@pytest.fixture
async def connection(postgres: Postgres) -> AsyncIterator[Any]:
    """Return a connection that the user opened."""
    opened = await asyncpg.connect(postgres.url)
    yield opened
    await opened.close()


@pytest.fixture
def own(connection: Any, table: str) -> PostgresLedger:
    """The ledger on the user's connection."""
    return PostgresLedger(connection, table=table)


async def states(ledger: Ledger) -> list[State]:
    return [entry.state async for entry in ledger.scan()]


async def refusal(ledger: Ledger) -> str:
    """Check that a client sends nothing; return the reason."""
    shop = Shop(approved(), ledger=ledger)
    error = await shop.result()
    await ledger.aclose()
    assert isinstance(error, LedgerMismatchError | LedgerUnavailableError)
    assert shop.script.left == 1
    return str(error)


# Connections and transactions of the user


async def test_resolution_in_a_transaction_is_committed_with_it(
    own: PostgresLedger, ledger: PostgresLedger, connection: Any
) -> None:
    await connection.execute("CREATE TEMPORARY TABLE orders (state text)")
    await claim(own)
    entry = await settle(own, LOST)
    for ends, state in (("ROLLBACK", State.LOST), ("COMMIT", State.REFUSED)):
        await connection.execute("BEGIN")
        await connection.execute("INSERT INTO orders VALUES ('refused')")
        assert (await resolve(own, entry, State.REFUSED, "by telephone")).state is State.REFUSED
        assert await states(ledger) == [State.LOST]
        await connection.execute(ends)
        assert await states(ledger) == [state]
    assert await connection.fetchval("SELECT count(*) FROM orders") == 1
    await own.aclose()
    assert not connection.is_closed()


async def test_claim_and_change_of_the_header_inside_a_transaction_are_refused(
    own: PostgresLedger, connection: Any
) -> None:
    shop, header = Shop(approved(), ledger=own), await own.header()
    async with connection.transaction():
        with pytest.raises(ConfigurationError, match="must not claim inside a transaction"):
            await shop.approve()
        with pytest.raises(ConfigurationError, match="must not change the header inside a transaction"):
            await own.change_header(header, header)
        with pytest.raises(ConfigurationError, match="must not record an outcome inside a transaction"):
            await settle(own, REFUSAL)
    await settle(own, UNKNOWN, key="old")
    async with connection.transaction():
        with pytest.raises(ConfigurationError, match="must not claim inside a transaction"):
            await claim(own, "old", token="u", over="t", within=60)
    assert shop.script.left == 1
    assert isinstance(await shop.approve(), Approved)


async def test_lease_expires_while_a_transaction_is_open(
    own: PostgresLedger, ledger: PostgresLedger, connection: Any
) -> None:
    await claim(ledger, lease=0.2)
    async with connection.transaction():
        assert await own.get("j") is None  # the transaction's time is fixed
        assert await ledger.wait("k", 30) == await own.get("k")


async def test_operations_on_one_connection_run_one_at_a_time(own: PostgresLedger) -> None:
    entries = await asyncio.gather(*(claim(own, token=f"t{number}") for number in range(32)))
    assert len({entry.token for entry in entries}) == 1


async def test_given_pool_is_used_and_stays_open(postgres: Postgres, table: str) -> None:
    async with asyncpg.create_pool(postgres.url, min_size=0, max_size=3) as pool:
        shop = Shop(approved(), ledger=PostgresLedger(pool, table=table))
        assert isinstance(await shop.approve(), Approved)
        await shop.ledger.aclose()
        assert (await shop.entry()).state is State.APPROVED
        assert repr(shop.ledger) == f"PostgresLedger('Pool', table={table!r})"
    assert repr(PostgresLedger(pool)) == "PostgresLedger('Pool')"


# Users of the database


@asynccontextmanager
async def user_of(
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
    async with user_of(postgres, table, default_transaction_isolation=isolation) as url:
        ledgers = [PostgresLedger(url, table=table) for _ in range(4)]
        entries = await asyncio.gather(*(claim(ledgers[n % 4], token=f"t{n}") for n in range(32)))
        assert len({entry.token for entry in entries}) == 1
        for ledger in ledgers:
            await ledger.aclose()


@pytest.mark.parametrize("late", ["off", "local"])
async def test_commit_is_synchronous_although_it_is_off_for_the_user(
    postgres: Postgres, table: str, late: str
) -> None:
    async with user_of(postgres, table, synchronous_commit=late) as url:
        connection = await asyncpg.connect(url)
        ledger = PostgresLedger(connection, table=table)
        header = await ledger.header()
        for operation in (
            partial(claim, ledger),
            partial(settle, ledger, HELD),
            partial(claim, ledger, token="u", over="t"),
            partial(settle, ledger, REFUSAL, token="u"),
            partial(ledger.change_header, header, header),
        ):
            before = await connection.fetchval("SELECT pg_current_wal_insert_lsn()")
            await operation()
            written = "SELECT pg_current_wal_flush_lsn() > $1::pg_lsn"
            assert await connection.fetchval(written, before)
            assert await connection.fetchval("SHOW synchronous_commit") == late
        await connection.close()


async def test_user_who_may_not_write_sends_nothing(postgres: Postgres, table: str) -> None:
    async with (
        user_of(postgres, table, default_transaction_read_only="on") as read_only,
        user_of(postgres, table, "SELECT") as reader,
    ):
        assert "read-only replica" in await refusal(PostgresLedger(read_only, table=table))
        expected = "grant SELECT, INSERT, UPDATE and DELETE"
        assert expected in await refusal(PostgresLedger(reader, table=table))


@pytest.mark.parametrize("cache", [0, 100])
@pytest.mark.parametrize("has_pool", [False, True])
async def test_sessions_that_became_read_only_are_replaced(
    postgres: Postgres, connection: Any, table: str, cache: int, *, has_pool: bool
) -> None:
    """After a fail-over, the old server keeps its sessions, and refuses writes. New ones reach another."""
    async with user_of(postgres, table, default_transaction_read_only="on") as url, AsyncExitStack() as stack:
        where = await stack.enter_async_context(asyncpg.create_pool(url, min_size=3)) if has_pool else url
        ledger = await stack.enter_async_context(
            PostgresLedger(where, table=table, statement_cache_size=cache)
        )
        await asyncio.gather(*(ledger.get(f"{number}") for number in range(30)))  # opens all connections
        await connection.execute(f"ALTER ROLE {urlsplit(url).username} RESET default_transaction_read_only")
        shop = Shop(*[approved()] * 38, ledger=ledger)
        results = [type(await shop.result(order_id=f"{number}")) for number in range(38)]
        assert results == [Approved] * 38


@pytest.mark.parametrize("cache", [0, 100])
async def test_user_with_the_documented_rights_runs_every_operation(
    postgres: Postgres, table: str, cache: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        user_of(postgres, table) as url,
        PostgresLedger(url, table=f"public.{table}", statement_cache_size=cache) as ledger,
    ):
        await claim(ledger)
        await settle(ledger, REFUSAL)
        assert await states(ledger) == [State.REFUSED]
        with monkeypatch.context() as patch:
            patch.setattr("time.time", lambda: 4e9)  # the server's clock counts
            assert await ledger.purge(older_than=3600) == 0
        assert await ledger.purge(older_than=-3600) == 1
        header = await ledger.header()
        assert await ledger.change_header(header, header)


# The header and locks


async def wait_for_locks(postgres: Postgres, count: int) -> None:
    """Wait until a number of sessions wait for a lock."""
    observer = await asyncpg.connect(postgres.url)
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    while await observer.fetchval(waiting) != count:  # noqa: ASYNC110  (until the server says so)
        await asyncio.sleep(0.01)
    await observer.close()


@pytest.mark.parametrize("isolation", ISOLATIONS)
async def test_claim_that_waits_for_a_new_generation_is_refused(
    postgres: Postgres, connection: Any, table: str, isolation: str
) -> None:
    """A plain comparison of the generation would see the header as it was before the claim waited."""
    async with (
        user_of(postgres, table, default_transaction_isolation=isolation) as url,
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
        await wait_for_locks(postgres, 4)
        await transaction.commit()
        results = await asyncio.gather(*claims, return_exceptions=True)
        assert {type(each) for each in results} == {HeaderChangedError}
        assert await states(ledger) == []


async def test_change_of_the_header_is_not_delayed_by_later_claims(
    postgres: Postgres, connection: Any, table: str, ledger: PostgresLedger
) -> None:
    """Claims that share the lock of the header's row, one after the other, must not go on without end."""
    header = await ledger.header()
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute(f"SELECT FROM {table}_header FOR SHARE")  # a claim that is not committed yet
    change = asyncio.create_task(ledger.change_header(header, header))
    await wait_for_locks(postgres, 1)
    later = asyncio.create_task(claim(ledger, header=header))
    await wait_for_locks(postgres, 2)
    await transaction.commit()
    assert await change
    with pytest.raises(HeaderChangedError):
        await later


async def test_claim_that_waited_too_long_for_a_lock_writes_nothing(
    postgres: Postgres, connection: Any, own: PostgresLedger, ledger: PostgresLedger
) -> None:
    await ledger.header()
    transaction = connection.transaction()
    await transaction.start()
    await settle(own, by_person(State.REFUSED))
    late = asyncio.create_task(claim(ledger, within=0.5))
    await wait_for_locks(postgres, 1)
    await connection.execute("SELECT pg_sleep(0.6)")
    await transaction.rollback()
    with pytest.raises(TimeoutError):
        await late
    assert await ledger.get("k") is None


async def test_change_of_the_header_does_not_wait_for_a_lock_without_end(
    connection: Any, table: str, ledger: PostgresLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loanasync.ledger.postgres._LOCK_TIMEOUT", "50ms")
    async with connection.transaction():
        await connection.execute(f"SELECT FROM {table}_header FOR SHARE")
        with pytest.raises(asyncpg.LockNotAvailableError) as caught:
            await confirm(ledger)
        assert "another transaction locked a table of the ledger" in ledger.reason(caught.value)
        assert (await claim(ledger)).is_claimed_by("t")


@pytest.mark.parametrize(
    "statements",
    [
        "DELETE FROM {table}_header",
        "DROP TABLE {table}_header",
        "DROP TABLE {table}",
        "ALTER TABLE {table} DROP COLUMN revision",
        "DROP TABLE {table}, {table}_header; CREATE TABLE {table} AS SELECT '' AS key, '' AS token",
    ],
)
async def test_part_of_a_ledger_or_another_format_is_refused(
    postgres: Postgres, connection: Any, table: str, ledger: PostgresLedger, statements: str
) -> None:
    await claim(ledger)
    await connection.execute(statements.format(table=table))
    reason = await refusal(PostgresLedger(postgres.url, table=table))
    assert "is not a ledger of this format, or a part of it is missing: name another table" in reason


# Lost writes


@pytest.fixture
async def own_server() -> AsyncIterator[Postgres]:
    """A server that only one test uses, with a ledger."""
    with skip_missing_server(), Postgres() as server:
        async with PostgresLedger(server.url, table="decisions") as ledger:
            await create(ledger)
        yield server


async def test_crash_of_the_server_is_not_taken_for_lost_writes(own_server: Postgres) -> None:
    """A crash takes back the ids of other transactions that wrote nothing to the disk."""
    async with PostgresLedger(own_server.url, table="decisions") as ledger:
        await claim(ledger, "before")
        connection = await asyncpg.connect(own_server.url)
        for _ in range(5):
            await connection.execute("SELECT txid_current()")
        await ledger.get("before")
        connection.terminate()
        await asyncio.to_thread(own_server.kill)
        await asyncio.to_thread(own_server.start)
        await ledger.aclose()
        assert (await claim(ledger, "after")).is_claimed_by("t")
        assert (await ledger.open(BASE_URL, POLICY)).generation == 1


@pytest.mark.parametrize(
    "operation",
    [
        partial(claim, key="next"),
        lambda ledger: settle(ledger, HELD, key="next"),
        partial(Ledger.get, key="next"),
        Ledger.refresh,
    ],
)
@pytest.mark.parametrize("tables", [["", "_header"], [""]])
async def test_tables_restored_on_the_same_server_are_refused(
    postgres: Postgres, table: str, ledger: PostgresLedger, operation: Operation, tables: list[str]
) -> None:
    """The transaction ids of the server do not go back."""
    await ledger.open(BASE_URL, POLICY)
    await asyncio.to_thread(postgres.dump, f"{table}.sql", *(f"{table}{each}" for each in tables))
    await claim(ledger)
    await asyncio.to_thread(postgres.restore, f"{table}.sql")
    with suppress(LedgerMismatchError):
        await operation(ledger)
    with pytest.raises(LedgerMismatchError, match="has lost writes"):
        await ledger.open(BASE_URL, POLICY)
    assert (await ledger.header()).generation == 2
    await confirm(ledger)
    assert (await ledger.open(BASE_URL, POLICY)).generation == 3
    assert (await claim(ledger, "last")).is_claimed_by("t")


@pytest.mark.parametrize("confirmed", [False, True])
async def test_restarted_process_notices_restored_tables(
    postgres: Postgres, table: str, tmp_path: Path, *, confirmed: bool
) -> None:
    async def result(code: str) -> object:
        ledger = PostgresLedger(postgres.url, table=table)
        shop = Shop(approved(), ledger=ledger, orphan_folder=tmp_path)
        result = await shop.result(code=code)
        assert {entry.history for entry in await shop.entries()} == {()}, "claimed once"
        await shop.client.aclose()
        await shop.ledger.aclose()
        return result

    assert isinstance(await result("TSTXYZ00A00A000A"), Approved)
    await asyncio.to_thread(postgres.dump, f"{table}.sql", table, f"{table}_header")
    if confirmed:
        async with PostgresLedger(postgres.url, table=table) as ledger:
            await confirm(ledger)
    assert isinstance(await result("TSTXYZ00A00A000B"), Approved)
    await asyncio.to_thread(postgres.restore, f"{table}.sql")
    for code in "CD":
        error = await result(f"TSTXYZ00A00A000{code}")
        assert isinstance(error, LedgerMismatchError)
        assert "has lost writes" in error.reason


async def test_number_of_another_process_is_not_taken_for_lost_writes(ledger: PostgresLedger) -> None:
    """It is in a file. This process has not written since."""
    await claim(ledger, "k")
    header, number = await ledger.header(), ledger.number
    await ledger.expect_number(header.epoch, number + 1)
    assert await ledger.get("k") is not None
    assert not (await ledger.refresh()).mark


@pytest.mark.parametrize("vacuum", ["VACUUM FREEZE", "VACUUM FULL"])
async def test_changes_of_the_header_are_not_taken_for_lost_writes(
    postgres: Postgres, connection: Any, table: str, ledger: PostgresLedger, tmp_path: Path, vacuum: str
) -> None:
    policy = LedgerPolicy(key=b"fedcba9876543210", old_keys=[KEY])
    url = "https://loans.example.com/v2"
    changes: list[tuple[Operation, str]] = [
        (confirm, BASE_URL),
        (lambda other: rotate_key(other, policy), BASE_URL),
        (lambda other: move_service(other, url), url),
        (lambda _: connection.execute(f"{vacuum} {table}_header"), url),
    ]
    file = LastNumber(lambda: [tmp_path])
    await claim(ledger, "k")
    async with PostgresLedger(postgres.url, table=table) as other:
        for number, (change, service) in enumerate(changes):
            await change(other)
            assert (await claim(ledger, f"{number}")).is_claimed_by("t")
            header = await ledger.refresh()
            assert not (await ledger.open(service, POLICY)).mark
            assert await asyncio.to_thread(file.read, header) <= (header.epoch, ledger.number)
            await asyncio.to_thread(file.write, header, ledger.number)


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
            assert len(await states(ledger)) == 6
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
    pgbouncer: PgBouncer, table: str, ledger: PostgresLedger
) -> None:
    """Two clients run different statements in the same sessions of the server."""
    for begin in range(0, 600, 100):  # more than a page
        keys = (f"{number:04}" for number in range(begin, begin + 100))
        await asyncio.gather(*(claim(ledger, key, lease=60.0 * (int(key) % 2)) for key in keys))

    async def listed(ledger: Ledger, *states: State) -> list[int]:
        return [len([entry async for entry in ledger.scan(*states)]) for _ in range(25)]

    async def decide(ledger: Ledger) -> None:
        for number in range(100):
            await claim(ledger, f"{number:04}", token="u", over="t", lease=0.0)
            await ledger.entries_of("c")

    async with (
        PostgresLedger(pgbouncer.url, table=table) as one,
        PostgresLedger(pgbouncer.url, table=table) as two,
    ):
        first, second, _ = await asyncio.gather(
            listed(one, State.INFLIGHT, State.UNKNOWN), listed(two), decide(two)
        )
    assert {*first, *second} == {600}


# Arguments and reasons


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (asyncpg.DiskFullError("x"), "disk is full"),
        (asyncpg.UndefinedObjectError("x"), "has a parameter that the server does not know"),
        (asyncpg.DuplicatePreparedStatementError("x"), "put statement_cache_size=0 into the address"),
        (TimeoutError(), "did not answer in time"),
        (ConnectionRefusedError(), "cannot be reached"),
        (ValueError(), ""),
    ],
)
def test_unavailable_ledger_has_the_reason(error: Exception, reason: str) -> None:
    found = PostgresLedger("postgresql://127.0.0.1/shop").reason(error)
    assert reason in found
    assert bool(reason) is bool(found)


@pytest.mark.parametrize("table", ["", "t; DROP TABLE x", 'a"b', "A", "1a", "a.b.c", "a" * 57, "a\n"])
def test_invalid_table_name_is_rejected(table: str) -> None:
    with pytest.raises(ConfigurationError, match="name"):
        PostgresLedger("postgresql://127.0.0.1/shop", table=table)
