"""Where the ledger in PostgreSQL has its connections from: an address, or what the shop has open already."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol, runtime_checkable

from loanasync._runtime.per_loop import PerLoop
from loanasync.errors import ConfigurationError
from loanasync.ledger.remote import CLOSING, missing


@runtime_checkable
class PostgresConnection(Protocol):
    """What the ledger uses of an ``asyncpg.Connection``."""

    async def fetch(self, query: str, *arguments: Any) -> list[Any]:
        """The rows of a statement."""

    def is_in_transaction(self) -> bool:
        """Whether a transaction was begun, and not ended."""


@runtime_checkable
class PostgresPool(Protocol):
    """What the ledger uses of an ``asyncpg.Pool``."""

    def acquire(self) -> Any:  # noqa: ANN401  (as of asyncpg)
        """A connection, when awaited."""

    async def release(self, connection: Any) -> None:  # noqa: ANN401  (as of asyncpg)
        """Take it back."""


class Source(Protocol):
    """Where connections come from."""

    def connection(self) -> AbstractAsyncContextManager[PostgresConnection]:
        """One for a statement."""

    async def aclose(self) -> None:
        """Let go of what is the ledger's own."""


def source(where: object, connections: int) -> Source:
    """Connections to or from what a ledger was given.

    Raises:
        ConfigurationError: It is nothing to connect to, or the extra is not installed.
    """
    if isinstance(where, str):
        return _Own(where, connections)
    if isinstance(where, PostgresPool):
        return _Shared(where)
    if isinstance(where, PostgresConnection):
        return _Single(where)
    raise ConfigurationError("ledger", "must be given an address, or a pool or connection of asyncpg's")


class _Single:
    """A connection of the shop's, which serves one statement after another."""

    def __init__(self, connection: PostgresConnection) -> None:
        self._connection = connection
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[PostgresConnection]:
        async with self._turn:
            yield self._connection

    async def aclose(self) -> None:
        pass


class _Shared:
    """A pool of the shop's."""

    def __init__(self, pool: PostgresPool) -> None:
        self._pool = pool

    def connection(self) -> AbstractAsyncContextManager[PostgresConnection]:
        return _lent(self._pool)

    async def aclose(self) -> None:
        pass


class _Own:
    """Pools of the ledger's own, one for each event loop."""

    def __init__(self, url: str, connections: int) -> None:
        try:
            import asyncpg  # noqa: F401, PLC0415  (its extra may not be installed)
        except ImportError:
            raise missing("asyncpg", "postgres") from None
        if not url.startswith(("postgresql://", "postgres://")):
            raise ConfigurationError("ledger", "must be at an address that begins with postgresql://")
        self._pools = PerLoop(lambda: _Pool(url, connections), _close)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[PostgresConnection]:
        pool = await self._pools.here().opened()
        async with _lent(pool) as connection:
            yield connection

    async def aclose(self) -> None:
        await self._pools.aclose(CLOSING)


class _Pool:
    """One event loop's own."""

    def __init__(self, url: str, connections: int) -> None:
        self._url = url
        self._connections = connections
        self._opening = asyncio.Lock()
        self.pool: Any = None

    async def opened(self) -> PostgresPool:
        import asyncpg  # noqa: PLC0415  (as above)

        async with self._opening:
            if self.pool is None:
                # None is opened before it is used, and what was used needs no tidying up by a statement more.
                self.pool = await asyncpg.create_pool(
                    self._url, min_size=0, max_size=self._connections, reset=_as_it_is
                )
        return self.pool  # type: ignore[no-any-return]  # asyncpg has no types


async def _as_it_is(_: object) -> None:
    """Nothing is left in a connection that only this ledger uses."""


@asynccontextmanager
async def _lent(pool: PostgresPool) -> AsyncIterator[PostgresConnection]:
    connection = await pool.acquire()
    try:
        yield connection
    except asyncio.CancelledError:
        connection.terminate()  # or giving it back would wait for a server that hangs
        raise
    finally:
        await pool.release(connection)


async def _close(pool: _Pool, within: float) -> None:
    if pool.pool is not None:
        try:
            async with asyncio.timeout(within):
                await pool.pool.close()
        except TimeoutError:
            pool.pool.terminate()
