"""Ledgers on Valkey and PostgreSQL for tests, which open, inspect and modify them in the same way."""

from collections.abc import Callable
from functools import partial
from secrets import token_hex
from typing import Any, TypeAlias

import asyncpg
from redis.asyncio import Redis

from loanasync.ledger import PostgresLedger, RedisLedger
from support.servers import Postgres, Server, Valkey


class ValkeyStore:
    """The data of one ledger on a running server."""

    def __init__(self, server: Valkey) -> None:
        self.server: Server = server
        self.prefix = f"{token_hex(4)}:"

    def opener(self, url: str | None = None) -> Callable[[], RedisLedger]:
        """Return a function that opens the ledger. It can be pickled for other processes."""
        return partial(RedisLedger, url or self.server.url, prefix=self.prefix)

    def ledger(self, url: str | None = None) -> RedisLedger:
        return self.opener(url)()

    async def connection_count(self) -> int:
        """Return the number of connections to the server, without the one that counts them."""
        return len((await self.run("CLIENT", "LIST")).splitlines()) - 1

    async def run(self, *command: str) -> Any:
        async with Redis.from_url(self.server.url) as client:
            return await client.execute_command(*command)  # type: ignore[no-untyped-call]


class PostgresStore:
    """The same for a PostgreSQL server."""

    def __init__(self, server: Postgres) -> None:
        self.server: Server = server
        self.table = f"t{token_hex(4)}"

    def opener(self, url: str | None = None) -> Callable[[], PostgresLedger]:
        return partial(PostgresLedger, url or self.server.url, table=self.table)

    def ledger(self, url: str | None = None) -> PostgresLedger:
        return self.opener(url)()

    async def connection_count(self) -> int:
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


LedgerStore: TypeAlias = ValkeyStore | PostgresStore
