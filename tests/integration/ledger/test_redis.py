"""The Redis ledger: conformance, server settings, access rights, memory and replicas."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
from redis.asyncio import Redis

from loanasync import Approved, ConfigurationError, DecisionNotRecordedError, LedgerUnavailableError
from loanasync.ledger import RedisLedger, Settlement, State, import_orphans
from loanasync.testing import SharedLedgerConformance, approved
from support.ledger_clients import Shop, held_response
from support.servers import Valkey
from support.servers.fixtures import skip_missing_server

OTHER = "TSTXYZ00A00A000B"
REFUSED = Settlement(state=State.REFUSED, status=422)


class TestRedisLedger(SharedLedgerConformance):
    keys = 1000

    @pytest.mark.scheduled
    async def test_very_large_ledger_returns_all_entries(self) -> None:
        self.keys = 100_000
        await self.test_large_ledger_returns_all_entries()

    @pytest.fixture(autouse=True)
    def _one_for_each_test(self, valkey: Valkey) -> None:
        self.opener = partial(RedisLedger, valkey.url, prefix=f"{token_hex(4)}:")


@contextmanager
def ledger_on(**settings: str) -> Iterator[tuple[Valkey, Callable[..., RedisLedger]]]:
    """Start a server with other settings, and return an opener for a ledger on it."""
    with skip_missing_server(), Valkey(**settings) as server:
        yield server, partial(RedisLedger, server.url)


async def run(server: Valkey, *command: str) -> Any:
    async with Redis.from_url(server.url) as client:
        return await client.execute_command(*command)  # type: ignore[no-untyped-call]


FORGETFUL = [
    ({"maxmemory_policy": "allkeys-lru", "maxmemory": "100mb"}, "maxmemory-policy to noeviction"),
    ({"maxmemory_policy": "allkeys-random"}, "maxmemory-policy to noeviction"),
    ({"appendonly": "no"}, "appendonly to yes"),
]


@pytest.mark.parametrize(("settings", "advice"), FORGETFUL)
async def test_unsafe_server_is_rejected_with_the_setting_to_change(
    settings: dict[str, str], advice: str
) -> None:
    with ledger_on(**settings) as (_, opener):
        shop = Shop(approved(), ledger=opener())
        for _ in range(2):
            with pytest.raises(ConfigurationError, match=advice):
                await shop.approve()
        assert shop.script.left == 1
        await shop.ledger.aclose()
        async with opener(durable=False) as ledger:
            assert (await ledger.claim("k", token="t", payload="p", lease=60)).is_claimed_by("t")


@pytest.mark.parametrize(
    ("settings", "warnings"),
    [({"appendfsync": "everysec"}, 1), ({"appendfsync": "always", "maxmemory_policy": "volatile-lru"}, 0)],
)
async def test_server_that_writes_with_a_delay_is_logged_once(
    settings: dict[str, str], warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    with ledger_on(**settings) as (_, opener):
        async with opener() as ledger:
            await asyncio.gather(*(ledger.get(f"k{number}") for number in range(20)))
            assert [record.levelname for record in caplog.records] == ["WARNING"] * warnings
            assert caplog.text.count("appendfsync everysec") == warnings


async def test_server_that_loads_its_data_is_unavailable() -> None:
    """While it loads, INFO says that append-only files are off."""
    with ledger_on(key_load_delay="200") as (server, opener):
        async with Redis.from_url(server.url) as client, client.pipeline() as many:
            for number in range(20_000):
                many.set(f"other {number}", "x")
            await many.execute()
        await asyncio.to_thread(server.kill)
        starting = asyncio.ensure_future(asyncio.to_thread(server.start))
        shop, results = Shop(approved(), ledger=opener()), set()
        while not starting.done():
            ended = await shop.result()
            results.add(getattr(ended, "cause_type", type(ended).__name__))
        await starting
        assert results - {"Approved"} <= {"BusyLoadingError", "ConnectionError", "TimeoutError"}
        assert "BusyLoadingError" in results
        assert isinstance(await shop.approve(), Approved)
        await shop.ledger.aclose()


async def test_server_that_synchronizes_as_a_replica_is_unavailable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a replica that synchronizes, the setting is on, but the append-only file is off."""
    info = Redis.info

    async def without_file(self: Any, *args: Any) -> Any:
        return {**await info(self, *args), "aof_enabled": 0}

    with ledger_on() as (_, opener):
        shop = Shop(approved(), ledger=opener())
        with monkeypatch.context() as patch:
            patch.setattr(Redis, "info", without_file)
            with pytest.raises(LedgerUnavailableError, match="BusyLoadingError"):
                await shop.approve()
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
        assert (await ledger.claim("k", token="t", payload="p", lease=60)).is_claimed_by("t")
    assert caplog.records == []


async def test_user_who_may_not_run_scripts_sends_nothing(valkey: Valkey) -> None:
    user = f"user{token_hex(4)}"
    await run(valkey, "ACL", "SETUSER", user, "on", ">word", "~*", "+@all", "-@scripting")
    url = valkey.url.replace("redis://", f"redis://{user}:word@")
    shop = Shop(approved(), ledger=RedisLedger(url))
    with pytest.raises(LedgerUnavailableError, match="NoPermissionError"):
        await shop.approve()
    assert shop.script.left == 1
    await shop.ledger.aclose()


async def test_server_out_of_memory_writes_all_or_nothing(tmp_path: Path) -> None:
    with ledger_on() as (server, opener):
        step, arrived, go = held_response(approved())
        shop = Shop(step, approved(), ledger=opener(), orphan_folder=tmp_path)
        call = asyncio.create_task(shop.result())
        await arrived.wait()
        before = await shop.entry()
        await run(server, "CONFIG", "SET", "maxmemory", "1")
        go.set()
        assert isinstance(await call, DecisionNotRecordedError)
        assert await shop.entry() == before
        with pytest.raises(LedgerUnavailableError, match="OutOfMemoryError"):
            await shop.approve(code=OTHER)
        assert shop.script.left == 1
        await run(server, "CONFIG", "SET", "maxmemory", "0")
        assert await import_orphans(shop.ledger, tmp_path) == 1
        assert isinstance(await shop.approve(code=OTHER), Approved)
        assert {entry.state for entry in await shop.entries()} == {State.APPROVED}
        await shop.ledger.aclose()


async def test_replica_is_read_and_never_claimed(valkey: Valkey) -> None:
    prefix = f"{token_hex(4)}:"
    await run(valkey, "CONFIG", "SET", "repl-diskless-sync-delay", "0")
    async with RedisLedger(valkey.url, prefix=prefix) as first:
        await first.claim("k", token="t", payload="p", lease=60)
        with ledger_on(replicaof=f"127.0.0.1 {valkey.port}") as (_, opener):
            shop = Shop(approved(), ledger=opener(prefix=prefix))
            while await shop.ledger.get("k") is None:  # noqa: ASYNC110  (until the replica has it)
                await asyncio.sleep(0.01)
            with pytest.raises(LedgerUnavailableError, match="ReadOnlyError"):
                await shop.approve()
            assert shop.script.left == 1
            await shop.ledger.aclose()


async def test_entries_never_expire_and_other_data_is_unchanged(valkey: Valkey) -> None:
    own, others = f"{token_hex(4)}[*]?:", f"{token_hex(4)}:"
    async with (
        RedisLedger(valkey.url, prefix=own) as ledger,
        RedisLedger(valkey.url, prefix=others) as other,
    ):
        for each in (ledger, other):
            await each.claim("k", token="t", payload="p", lease=60)
            await each.settle("k", token="t", payload="p", settlement=Settlement(state=State.REFUSED))
        assert await run(valkey, "TTL", f"{own}entry:k") == -1
        assert await ledger.purge(0) == 1
        assert [entry async for entry in ledger.scan()] == []
        assert len([entry async for entry in other.scan()]) == 1
        names = await run(valkey, "KEYS", "*")
        # the string that contains the format stays
        assert [name for name in names if name.startswith(own.encode())] == [f"{own}entries".encode()]


async def test_flushed_scripts_are_loaded_again(valkey: Valkey) -> None:
    async with RedisLedger(valkey.url, prefix=f"{token_hex(4)}:") as ledger:
        await ledger.claim("k", token="t", payload="p", lease=60)
        await run(valkey, "SCRIPT", "FLUSH")
        assert (await ledger.claim("k", token="t", payload="p", lease=60)).is_claimed_by("t")


async def test_pages_contain_every_entry_once(valkey: Valkey) -> None:
    async with RedisLedger(valkey.url, prefix=f"{token_hex(4)}:") as ledger:
        for number in range(1000):  # two pages
            await ledger.claim(f"k{number}", token="t", payload="p", lease=60)
            await ledger.settle(f"k{number}", token="t", payload="p", settlement=REFUSED)
        assert len([entry async for entry in ledger.scan(State.REFUSED)]) == 1000
        assert await ledger.purge(0) == 1000


async def test_purge_removes_all_names(valkey: Valkey) -> None:
    prefix = f"{token_hex(4)}:"
    decision = Settlement(state=State.APPROVED, note="ticket 17", source="person")
    async with RedisLedger(valkey.url, prefix=prefix) as ledger:
        await ledger.settle("k", token="t", payload="p", settlement=decision)
        assert await ledger.purge(0) == 1
    assert await run(valkey, "KEYS", f"{prefix}*") == [f"{prefix}entries".encode()]
