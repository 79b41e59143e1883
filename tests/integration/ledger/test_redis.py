"""The Redis ledger: server settings, lost writes, other data, access rights, memory and replicas."""

import asyncio
import re
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from secrets import token_hex
from typing import Any, Self

import pytest
from attrs import evolve
from redis import exceptions
from redis.asyncio import Redis
from redis.asyncio.connection import Connection

from loanasync import (
    Approved,
    DecisionNotRecordedError,
    LedgerError,
    LedgerMismatchError,
    LedgerUnavailableError,
)
from loanasync.ledger import RedisLedger, Settlement, State, import_orphans, redis, resolve
from loanasync.ledger.administration import confirm
from loanasync.testing import approved
from support.ledger_clients import Shop, create, held_response
from support.servers import Valkey
from support.servers.fixtures import skip_missing_server
from support.store_contract import draft, put

OTHER, THIRD = "TSTXYZ00A00A000B", "TSTXYZ00A00A000C"


@contextmanager
def server_with(**settings: str) -> Iterator[Valkey]:
    """Start a server with other settings."""
    with skip_missing_server(), Valkey(**settings) as server:
        yield server


@asynccontextmanager
async def ledger_on(server: Valkey, **options: Any) -> AsyncIterator[RedisLedger]:
    """Create a ledger on a server, and open it."""
    async with RedisLedger(server.url, **{"prefix": f"{token_hex(4)}:", **options}) as ledger:
        await create(ledger)
        yield ledger


async def claim(ledger: RedisLedger, key: str = "k") -> bool:
    return (await ledger.claim(key, token="t", payload="p", lease=60)).is_claimed_by("t")


async def run(server: Valkey, *command: Any) -> Any:
    async with Redis.from_url(server.url) as client:
        return await client.execute_command(*command)  # type: ignore[no-untyped-call]


async def names_of(server: Valkey, prefix: str) -> list[bytes]:
    return sorted(name for name in await run(server, "KEYS", "*") if name.startswith(prefix.encode()))


# Settings of the server

FORGETFUL = [
    ({"maxmemory-policy": "allkeys-lru", "maxmemory": "100mb"}, "maxmemory-policy to noeviction"),
    ({"maxmemory-policy": "allkeys-random"}, "maxmemory-policy to noeviction"),
    ({"appendonly": "no"}, "appendonly to yes"),
]


@pytest.fixture
def every_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the server's settings as if a minute passed between two uses."""
    monkeypatch.setattr(redis, "_CHECK_INTERVAL", 0.0)


@pytest.mark.parametrize(("settings", "advice"), [FORGETFUL[0], FORGETFUL[2]])
async def test_unsafe_server_is_refused_with_the_setting_to_change(
    settings: dict[str, str], advice: str
) -> None:
    with server_with(**settings) as server:
        async with RedisLedger(server.url) as ledger:
            with pytest.raises(LedgerMismatchError, match=advice):
                await create(ledger)
            async with RedisLedger(server.url, durable=False) as other:
                await create(other)
                assert await claim(other)
            shop = Shop(approved(), ledger=ledger)
            for _ in range(2):
                with pytest.raises(LedgerMismatchError, match=f"{advice}.*; request not sent"):
                    await shop.approve()
            assert shop.script.left == 1
            assert len(await shop.entries()) == 1


@pytest.mark.usefixtures("every_use")
async def test_replica_that_accepts_writes_is_refused() -> None:
    """The primary does not see its claims."""
    with server_with() as server:
        async with ledger_on(server) as ledger:
            await run(server, "CONFIG", "SET", "replica-read-only", "no")
            await run(server, "REPLICAOF", "127.0.0.1", "1")
            shop = Shop(approved(), ledger=ledger)
            with pytest.raises(LedgerMismatchError, match="is on a replica that accepts writes"):
                await shop.approve()
            assert shop.script.left == 1


@pytest.mark.usefixtures("every_use")
@pytest.mark.parametrize(("settings", "advice"), FORGETFUL)
async def test_server_that_becomes_unsafe_settles_and_claims_nothing(
    settings: dict[str, str], advice: str
) -> None:
    with server_with() as server:
        async with ledger_on(server) as ledger:
            step, arrived, go = held_response(approved())
            shop = Shop(step, approved(), ledger=ledger)
            call = asyncio.create_task(shop.approve())
            await arrived.wait()
            for name, value in settings.items():
                await run(server, "CONFIG", "SET", name, value)
            go.set()
            assert isinstance(await call, Approved)
            assert (await shop.entry()).state is State.APPROVED
            with pytest.raises(LedgerMismatchError, match=advice):
                await shop.approve(code=OTHER)
            assert shop.script.left == 1
            await run(server, "CONFIG", "SET", "maxmemory-policy", "volatile-lru", "appendonly", "yes")
            assert isinstance(await shop.approve(code=OTHER), Approved)


@pytest.mark.usefixtures("every_use")
@pytest.mark.parametrize(
    ("settings", "warnings"),
    [({"appendfsync": "everysec"}, 1), ({"appendfsync": "always", "maxmemory_policy": "volatile-lru"}, 0)],
)
async def test_server_that_writes_with_a_delay_is_logged_once(
    settings: dict[str, str], warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    with server_with(**settings) as server:
        async with ledger_on(server) as ledger:
            await asyncio.gather(*(claim(ledger, f"k{number}") for number in range(20)))
            assert [record.levelname for record in caplog.records] == ["WARNING"] * warnings
            assert caplog.text.count("appendfsync everysec") == warnings


async def test_server_that_loads_its_data_is_unavailable() -> None:
    """While it loads, INFO says that append-only files are off."""
    with server_with(key_load_delay="200") as server:
        async with RedisLedger(server.url) as ledger:
            await create(ledger)
        async with Redis.from_url(server.url) as client, client.pipeline() as many:
            for number in range(20_000):
                many.set(f"other {number}", "x")
            await many.execute()
        await asyncio.to_thread(server.kill)
        starting = asyncio.ensure_future(asyncio.to_thread(server.start))
        shop, results = Shop(approved(), ledger=RedisLedger(server.url)), set()
        while not starting.done():
            ended = await shop.result()
            results.add(getattr(ended, "cause_type", type(ended).__name__))
        await starting
        assert results - {"Approved"} <= {"BusyLoadingError", "ConnectionError", "TimeoutError"}
        assert "BusyLoadingError" in results
        assert isinstance(await shop.approve(), Approved)
        await shop.ledger.aclose()


@pytest.mark.parametrize("forbidden", [["-config"], ["-config", "-info"]])
async def test_server_with_unreadable_settings_is_accepted(
    forbidden: list[str], valkey: Valkey, caplog: pytest.LogCaptureFixture
) -> None:
    user = f"user{token_hex(4)}"
    await run(valkey, "ACL", "SETUSER", user, "on", ">word", "~*", "+@all", *forbidden)
    url = valkey.url.replace("redis://", f"redis://{user}:word@")
    async with RedisLedger(url, prefix=f"{token_hex(4)}:") as ledger:
        await create(ledger)
        assert await claim(ledger)
    assert caplog.records == []


async def test_server_out_of_memory_writes_all_or_nothing(tmp_path: Path) -> None:
    with server_with() as server:
        async with ledger_on(server) as ledger:
            step, arrived, go = held_response(approved())
            shop = Shop(step, approved(), ledger=ledger, orphan_folder=tmp_path)
            call = asyncio.create_task(shop.result())
            await arrived.wait()
            before, number = await shop.entry(), ledger.number
            await run(server, "CONFIG", "SET", "maxmemory", "1")
            go.set()
            assert isinstance(await call, DecisionNotRecordedError)
            assert await shop.entry() == before
            with pytest.raises(LedgerUnavailableError, match=r"OutOfMemoryError: .* raise its maxmemory"):
                await shop.approve(code=OTHER)
            assert (shop.script.left, ledger.number) == (1, number)
            await run(server, "CONFIG", "SET", "maxmemory", "0")
            assert await import_orphans(shop.ledger, tmp_path) == 1
            assert isinstance(await shop.approve(code=OTHER), Approved)
            assert {entry.state for entry in await shop.entries()} == {State.APPROVED}


async def test_replica_is_read_and_never_claimed(valkey: Valkey) -> None:
    """A read-only replica is used for lists."""
    prefix = f"{token_hex(4)}:"
    await run(valkey, "CONFIG", "SET", "repl-diskless-sync-delay", "0")
    async with ledger_on(valkey, prefix=prefix) as first:
        await claim(first)
        with server_with(replicaof=f"127.0.0.1 {valkey.port}") as replica:
            while not await names_of(replica, prefix):  # noqa: ASYNC110  (until the replica has it)
                await asyncio.sleep(0.01)
            async with RedisLedger(replica.url, prefix=prefix) as ledger:
                shop = Shop(approved(), ledger=ledger)
                assert await shop.entries() == [await first.get("k")]
                with pytest.raises(LedgerUnavailableError, match="ReadOnlyError: the server is a replica"):
                    await shop.approve()
                assert shop.script.left == 1


class Proxy:
    """A name of a server: new connections reach the present target, and open ones stay where they are."""

    def __init__(self, target: Valkey) -> None:
        self.target = target
        self.url = ""
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[Any] | None] = set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.add(asyncio.current_task())
        far = await asyncio.open_connection("127.0.0.1", self.target.port)
        self._writers += [writer, far[1]]
        await asyncio.gather(self._copy(reader, far[1]), self._copy(far[0], writer))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()
        # Some releases of 3.11 log an error for a connection whose task is cancelled.
        await asyncio.gather(*filter(None, self._tasks))


async def test_fail_over_that_leaves_the_old_server_alive_is_followed(tmp_path: Path) -> None:
    """The old server becomes a replica of the new one, and keeps the connections of its clients."""
    with (
        server_with(repl_diskless_sync_delay="0") as old,
        server_with(replicaof=f"127.0.0.1 {old.port}") as new,
    ):
        async with Proxy(old) as proxy, RedisLedger(proxy.url) as ledger:
            await create(ledger)
            step, arrived, go = held_response(approved())
            shop = Shop(step, *[approved()] * 38, ledger=ledger, orphan_folder=tmp_path)
            call = asyncio.create_task(shop.approve(order_id="first"))
            await arrived.wait()
            await asyncio.gather(*(ledger.get(f"{number}") for number in range(30)))  # opens connections
            while not await run(new, "KEYS", "*entry:*"):  # noqa: ASYNC110  (until the replica has the claim)
                await asyncio.sleep(0.01)
            await run(new, "REPLICAOF", "NO", "ONE")
            await run(old, "REPLICAOF", "127.0.0.1", str(new.port))
            proxy.target = new
            go.set()
            assert isinstance(await call, Approved)
            results = [type(await shop.result(order_id=f"{number}")) for number in range(38)]
            assert results == [Approved] * 38
            assert {entry.state for entry in await shop.entries()} == {State.APPROVED}


async def test_connection_is_opened_again_after_its_age(
    valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """redis-py asks each connection to connect, before it is used."""

    async def connections() -> set[bytes]:
        return set(re.findall(rb"id=(\d+) .*cmd=evalsha", await run(valkey, "CLIENT", "LIST")))

    async with ledger_on(valkey) as ledger:
        await claim(ledger)
        first = await connections()
        await claim(ledger)
        assert await connections() == first
        monkeypatch.setattr(redis, "MAX_AGE", 0.0)
        await claim(ledger)
        assert first.isdisjoint(await connections())


@pytest.mark.parametrize("has_slots", [True, False])
async def test_cluster_is_refused(*, has_slots: bool) -> None:
    with server_with(cluster_enabled="yes") as server:
        if has_slots:
            await run(server, "CLUSTER", "ADDSLOTSRANGE", "0", "16383")
            while b"cluster_state:ok" not in await run(server, "CLUSTER", "INFO"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        url = server.url.replace("redis://", "redis://default:s3cret@")
        await run(server, "CONFIG", "SET", "requirepass", "s3cret")
        for durable in (True, False):
            async with RedisLedger(url, durable=durable) as ledger:
                shop = Shop(approved(), ledger=ledger)
                for operation in (shop.approve, lambda ledger=ledger: create(ledger)):
                    with pytest.raises(
                        LedgerMismatchError, match=r"is on a cluster, .*: use a single server"
                    ) as caught:
                        await operation()
                    assert "s3cret" not in str(caught.value)
                assert shop.script.left == 1


async def test_missing_database_is_refused(valkey: Valkey) -> None:
    async with RedisLedger(f"{valkey.url.removesuffix('/0')}/99") as ledger:
        shop = Shop(approved(), ledger=ledger)
        for operation in (shop.approve, lambda: create(ledger)):
            with pytest.raises(
                LedgerMismatchError, match="/99 names a database that the server does not have"
            ):
                await operation()
        assert shop.script.left == 1


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (exceptions.ResponseError("MASTERDOWN Link with MASTER is down"), "primary"),
        (exceptions.ResponseError("NOREPLICAS Not enough good replicas to write."), "check the replicas"),
        (exceptions.ResponseError("MISCONF Errors writing to the AOF file: No space left"), "disk space"),
        # as Redis 6.2 reports errors of scripts
        (
            exceptions.ResponseError("ERR Error running script: @user_script:9: -READONLY You can't"),
            "primary",
        ),
        (exceptions.ResponseError("ERR Error running script: @user_script:9: -OOM command not"), "maxmemory"),
        (exceptions.BusyLoadingError("Redis is loading the dataset in memory"), "wait until it has started"),
        (exceptions.AuthenticationError("WRONGPASS invalid username-password pair"), "correct the address"),
        (exceptions.NoPermissionError("this user has no permissions"), "change its rights"),
        (TimeoutError(), "did not respond in time"),
        (exceptions.ConnectionError("Error 111 connecting to 127.0.0.1:6379."), "cannot be reached"),
        (exceptions.ConnectionError("No connection available."), "raise connections="),
        (ValueError("another"), ""),
    ],
)
def test_reason_of_an_error_names_cause_and_remedy(error: Exception, advice: str) -> None:
    reason = RedisLedger("redis://127.0.0.1").reason(error)
    assert advice in reason
    assert bool(reason) is bool(advice)


# Lost data


async def test_restored_copy_is_refused_until_a_person_confirms(tmp_path: Path) -> None:
    with server_with() as server:
        async with (
            ledger_on(server, prefix="own:") as ledger,
            RedisLedger(server.url, prefix="own:") as other,
        ):
            shop = Shop(approved(), approved(), approved(), ledger=ledger, orphan_folder=tmp_path / "one")
            late = Shop(approved(), ledger=other, orphan_folder=tmp_path / "other")
            await shop.approve()
            await asyncio.to_thread(restart, server, save=tmp_path / "copy")
            for number in range(4):
                await claim(ledger, f"k{number}")
            await asyncio.to_thread(restart, server, restore=tmp_path / "copy")

            for each in (shop, shop, late):
                with pytest.raises(LedgerMismatchError, match="has lost writes"):
                    await each.approve(code=OTHER)
            assert (shop.script.left, late.script.left) == (2, 1)
            await confirm(ledger)
            assert isinstance(await late.approve(code=THIRD), Approved)
            assert isinstance(await shop.approve(code=OTHER), Approved)


def restart(server: Valkey, *, save: Path | None = None, restore: Path | None = None) -> None:
    """Kill the server, copy its data or restore a copy, and start it again."""
    server.kill()
    data = server.folder / "appendonlydir"
    if save is not None:
        shutil.copytree(data, save)
    if restore is not None:
        shutil.rmtree(data)
        shutil.copytree(restore, data)
    server.start()


async def test_missing_entry_is_unknown_and_others_are_not_affected(valkey: Valkey) -> None:
    """An entry is missing if the server evicted it, or somebody deleted it."""
    prefix = f"{token_hex(4)}:"
    async with ledger_on(valkey, prefix=prefix) as ledger:
        shop = Shop(approved(), approved(), ledger=ledger)
        await shop.approve()
        stored = await shop.entry()
        key = stored.key
        await run(valkey, "DEL", f"{prefix}entry:{key}")
        error = await shop.result(repeat_unknown=True)
        assert isinstance(error, LedgerError)
        assert (error.outcome, error.repeatable) == ("unknown", False)
        assert not isinstance(error, LedgerMismatchError), "workers would pause"
        assert shop.script.left == 1
        assert isinstance(await shop.approve(code=OTHER), Approved)

        missing = {entry.key: entry for entry in await shop.entries()}[key]
        assert (missing.state, missing.note) == (State.UNKNOWN, "missing on the server")
        assert [entry.state async for entry in ledger.scan(State.APPROVED)] == [State.APPROVED]
        assert await ledger.purge(older_than=-3600) == 1
        assert [entry.key for entry in await shop.entries()] == [key]
        assert (await resolve(ledger, missing, State.REFUSED, "by telephone")).state is State.REFUSED
        for state, keys in ((State.APPROVED, []), (State.REFUSED, [key])):
            assert [entry.key async for entry in ledger.scan(state)] == keys
        assert await ledger.purge(older_than=-3600) == 1
        assert await shop.entries() == await ledger.entries_of(stored.customer) == []


@pytest.fixture
def lose_response(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function that loses the next response of the server. The driver then repeats the write."""

    def lose_once() -> None:
        read = Connection.read_response

        async def read_and_lose(self: Any, *args: Any, **kwargs: Any) -> Any:
            await read(self, *args, **kwargs)
            monkeypatch.setattr(Connection, "read_response", read)
            raise exceptions.TimeoutError

        monkeypatch.setattr(Connection, "read_response", read_and_lose)

    return lose_once


@pytest.mark.skipif(
    int(version("redis").partition(".")[0]) < 6, reason="it does not repeat a script whose response was lost"
)
async def test_write_whose_response_is_lost_counts_as_written(
    valkey: Valkey, lose_response: Callable[[], None]
) -> None:
    """The second time, the expected revision or generation is gone."""
    async with ledger_on(valkey) as ledger:
        await claim(ledger)
        store, header = ledger._store, await ledger.header()
        before = ledger.number
        lose_response()
        swapped = await put(store, header, draft("l"), lease=60.0)
        assert (swapped.is_written, swapped.number) == (True, before + 1)
        lose_response()
        assert await store.swap_header(evolve(header, generation=2), replaces=header)


async def test_missing_header_is_refused_while_and_before_the_ledger_is_used(valkey: Valkey) -> None:
    prefix = f"{token_hex(4)}:"
    async with ledger_on(valkey, prefix=prefix) as ledger, RedisLedger(valkey.url, prefix=prefix) as other:
        assert await claim(ledger)
        await run(valkey, "DEL", f"{prefix}header")
        with pytest.raises(LedgerMismatchError, match="was replaced by another ledger, or deleted"):
            await claim(ledger, "another")
        for use in (other.get("k"), create(other)):
            with pytest.raises(LedgerMismatchError, match="or a part of one: restore a complete copy"):
                await use


# Other data


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("ZADD", "entries", 0, "k"), "is not a ledger"),  # format 1
        (("SET", "entries", "3"), "is not a ledger"),
        (("HSET", "header", "document", '{"format": 4}'), "has another format"),
        (("RPUSH", "header", "an order"), "is not a ledger"),
        (("HSET", "header", "an", "order"), "is not a ledger"),
        (("RPUSH", "index", "an order"), "is not a ledger"),
    ],
)
async def test_prefix_with_other_data_is_refused_unchanged(
    valkey: Valkey, command: tuple[Any, ...], message: str
) -> None:
    prefix = f"{token_hex(4)}:"
    name = f"{prefix}{command[1]}"
    await run(valkey, command[0], name, *command[2:])
    before = await run(valkey, "DUMP", name)
    async with RedisLedger(valkey.url, prefix=prefix) as ledger:
        shop = Shop(approved(), ledger=ledger)
        for operation in (shop.approve, shop.entries, lambda: create(ledger), lambda: ledger.purge(0)):
            with pytest.raises(LedgerMismatchError, match=f"{prefix} {message}"):
                await operation()
        assert shop.script.left == 1
    assert await run(valkey, "DUMP", name) == before
    assert await names_of(valkey, prefix) == [name.encode()]


async def test_purge_uses_the_clock_of_the_server(valkey: Valkey, monkeypatch: pytest.MonkeyPatch) -> None:
    async with ledger_on(valkey) as ledger:
        await Shop(approved(), ledger=ledger).approve()
        monkeypatch.setattr("time.time", lambda: 4e9)
        assert await ledger.purge(3600) == 0
        assert await ledger.purge(-3600) == 1


async def test_purge_removes_all_names_and_no_other_data(valkey: Valkey) -> None:
    own, others = f"{token_hex(4)}[*]?:", f"{token_hex(4)}:"
    decision = Settlement(state=State.APPROVED, note="ticket 17", source="person")
    async with ledger_on(valkey, prefix=own) as ledger, ledger_on(valkey, prefix=others) as other:
        for each in (ledger, other):
            await Shop(approved(), ledger=each).approve()
            await each.settle("k", token="t", payload="p", settlement=decision)
        names = await names_of(valkey, own)
        assert {await run(valkey, "TTL", name) for name in names} == {-1}
        assert await ledger.purge(0) == 2
        assert await names_of(valkey, own) == [f"{own}header".encode()]
        assert len([entry async for entry in other.scan()]) == 2
