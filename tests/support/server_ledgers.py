"""The two ledgers on servers, as tests of both see them: opened, broken into, and read from behind."""

from collections.abc import Callable
from functools import partial
from secrets import token_hex
from typing import Any, Protocol

import asyncpg
from redis.asyncio import Redis

from loanasync.ledger import DecisionLedger, PostgresLedger, RedisLedger
from support.servers import Postgres, Server, Valkey

__all__ = ["OnPostgres", "OnValkey", "Place"]


class Place(Protocol):
    """Where a ledger is kept, on a running server."""

    server: Server

    def opener(self, url: str | None = None) -> Callable[[], DecisionLedger]:
        """What opens it, also in another process."""

    def ledger(self, url: str | None = None) -> DecisionLedger:
        """One more handle on it."""

    async def connected(self) -> int:
        """How many connections it has, besides the one that asks."""

    async def kept(self) -> str:
        """All that the server has of it, to be searched."""

    async def grow_old(self, key: str) -> None:
        """As if a later version had written an entry."""


class OnValkey:
    def __init__(self, server: Valkey) -> None:
        self.server: Server = server
        self.prefix = f"{token_hex(4)}:"

    def opener(self, url: str | None = None) -> Callable[[], RedisLedger]:
        return partial(RedisLedger, url or self.server.url, prefix=self.prefix)

    def ledger(self, url: str | None = None) -> RedisLedger:
        return self.opener(url)()

    async def connected(self) -> int:
        return len((await self.run("CLIENT", "LIST")).splitlines()) - 1

    async def run(self, *command: str) -> Any:
        async with Redis.from_url(self.server.url) as client:
            return await client.execute_command(*command)  # type: ignore[no-untyped-call]

    async def kept(self) -> str:
        names = await self.run("KEYS", f"{self.prefix}*")
        hashes = [await self.run("HGETALL", name) for name in names if b":entry:" in name]
        return repr([names, hashes, await self.run("ZRANGE", f"{self.prefix}index", "0", "-1")])

    async def grow_old(self, key: str) -> None:
        await self.run("HSET", f"{self.prefix}entry:{key}", "version", "3")


class OnPostgres:
    def __init__(self, server: Postgres) -> None:
        self.server: Server = server
        self.table = f"t{token_hex(4)}"

    def opener(self, url: str | None = None) -> Callable[[], PostgresLedger]:
        return partial(PostgresLedger, url or self.server.url, table=self.table)

    def ledger(self, url: str | None = None) -> PostgresLedger:
        return self.opener(url)()

    async def connected(self) -> int:
        [[count]] = await self.run(
            "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
        )
        return int(count) - 1

    async def run(self, statement: str) -> Any:
        connection = await asyncpg.connect(self.server.url)
        try:
            return await connection.fetch(statement.format(table=self.table))
        finally:
            await connection.close()

    async def kept(self) -> str:
        rows = await self.run("SELECT t.*, encode(body, 'escape') FROM {table} t")
        return repr([tuple(row.items()) for row in rows])

    async def grow_old(self, key: str) -> None:
        del key  # and all others
        await self.run("UPDATE {table} SET format = 3")
