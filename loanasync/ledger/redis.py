"""A ledger on Valkey or Redis: for the processes of many machines, in a server that shops mostly have."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, TypeAlias, cast

from orjson import loads

from loanasync._lifecycle import Closing
from loanasync._log import LOGGER
from loanasync._runtime.per_loop import PerLoop
from loanasync.errors import ConfigurationError
from loanasync.ledger import lists, lua, polling
from loanasync.ledger import transitions as moves
from loanasync.ledger.model import (
    FORMAT,
    NO_SUBJECT,
    Entry,
    Settlement,
    State,
    Subject,
    check_format,
    history_from,
    source_in_format_1,
)
from loanasync.ledger.remote import CLOSING, missing, shown

Argument: TypeAlias = str | bytes | float
Answer: TypeAlias = Any  # of a script: lists and bytes

_PREFIX = "loanasync:"
_PAGE = 500  # entries that a scan reads at once, between which others have their turn
_FORMATS = {"1": 1, lua.VERSION: FORMAT}


class RedisLedger(Closing):
    """Decisions on a Valkey, or a Redis from 6.2 on, for all clients that reach it.

    Each move is one script there, and its clock is the one that leases go by. Entries never expire. What it
    says is written is as safe as that server makes it: with ``appendonly yes`` and ``appendfsync always``
    it is on the disk. One that would forget decisions is refused when it is first used; one that writes
    them a second late is warned of. It has to be one server, with replicas if you like, and no cluster.

    Needs the extra ``redis``.

    Args:
        url: ``redis://``, ``rediss://`` (TLS) or ``unix://``, with user, password and number of the
            database, and whatever else redis-py takes in one.
        prefix: Stands before the name of all that is kept, for servers with other data.
        connections: To have at once from each event loop; who finds none free waits.
        durable: Refuse a server that keeps nothing on the disk, or that evicts what is still needed. False
            takes it as it is, for instance in tests.

    Raises:
        ConfigurationError: The extra is not installed, or the address cannot be one.

    Example:
        >>> from loanasync.ledger import RedisLedger
        >>> RedisLedger("rediss://shop:secret@valkey.example.com/0")
        RedisLedger('rediss://valkey.example.com/0')
    """

    def __init__(
        self, url: str, *, prefix: str = _PREFIX, connections: int = 10, durable: bool = True
    ) -> None:
        try:
            from redis.asyncio.connection import parse_url  # noqa: PLC0415  (its extra may not be installed)
        except ImportError:
            raise missing("redis", "redis") from None
        try:
            parse_url(url)
        except (AttributeError, TypeError, ValueError):
            raise ConfigurationError("ledger", "is at no address that redis-py can read") from None
        self._url = url
        self._prefix = prefix
        self._sets = [f"{prefix}entries", f"{prefix}index"]
        self._connections = connections
        self._durable = durable
        self._servers = PerLoop(self._server, _close)

    def _server(self) -> "_Server":
        return _Server(self._url, self._connections, is_checked=not self._durable)

    async def _move(self, script: str, key: str, *arguments: Argument) -> Entry:
        names = [*self._sets, f"{self._prefix}entry:{key}"]
        return cast("Entry", _entry(key, *await self._run(script, names, key, *arguments)))

    async def _run(self, script: str, names: list[str], *arguments: Argument) -> Answer:
        """Run a script, once the entries are of this format."""
        server = self._servers.here()
        while (answer := await server.run(script, names, arguments)) == lua.OLD.encode():
            while changed := await server.run(
                lua.MIGRATE, self._sets, [f"{self._prefix}entry:", _PAGE, self._prefix]
            ):
                if changed == lua.FOREIGN.encode():
                    told = f"finds data of something else under {self._sets[0]}: name another prefix"
                    raise ConfigurationError("ledger", told)
        if answer == lua.LATER.encode():
            check_format(FORMAT + 1)
        return answer

    async def claim(
        self,
        key: str,
        *,
        token: str,
        payload: str,
        lease: float,
        over: str | None = None,
        subject: Subject = NO_SUBJECT,
    ) -> Entry:
        """As of `DecisionLedger`, and so the others."""
        about = (subject.customer, subject.order, subject.scope)
        return await self._move(lua.CLAIM, key, self._prefix, token, payload, lease, over or "", *about)

    async def settle(
        self, key: str, *, token: str, payload: str, settlement: Settlement, over: str | None = None
    ) -> Entry:
        """Write down what became of a claim."""
        response = {"status": settlement.status, "body": settlement.body, "fault": settlement.fault}
        there = [part for name, value in response.items() if value is not None for part in (name, value)]
        corrects = moves.correcting(token, settlement, over) or ""
        became = (settlement.state, settlement.note, settlement.source, corrects)
        return await self._move(lua.SETTLE, key, self._prefix, token, payload, *became, *there)

    async def get(self, key: str) -> Entry | None:
        """An entry as it stands now."""
        name = f"{self._prefix}entry:{key}"
        return _entry(key, *await self._servers.here().run(lua.LOOK, [name], []))

    async def wait(self, key: str, within: float) -> Entry | None:
        """The entry as soon as it is not INFLIGHT; after so many seconds as it stands then."""
        return await polling.wait(self.get, key, within)

    def scan(self, *states: State, begins: str = "", without_redirect: bool = False) -> AsyncIterator[Entry]:
        """All entries in these states, or all there are."""
        return lists.listed(self._page, states, begins, without_redirect=without_redirect)

    async def _page(self, part: str, first: str, last: str) -> tuple[str, list[Entry]]:
        names = self._sets[1] if part == lists.ALL else f"{self._prefix}state:{part}"
        begin = f"({last}" if last else f"[{first}"
        page = await self._run(lua.PAGE, [*self._sets, names], f"{self._prefix}entry:", begin, str(_PAGE))
        entries = [_entry(name.decode(), *told) for name, told in page]
        return page[-1][0].decode() if page else "", [entry for entry in entries if entry is not None]

    async def find(self, *, customer: str = "", order: str = "") -> list[Entry]:
        """The entries of a customer, of an order, or of both, oldest first."""
        sought = {"customer": customer, "order": order}
        sets = [f"{self._prefix}{name}:{digest}" for name, digest in sought.items() if digest]
        if not sets:
            return []
        found = await self._run(lua.FIND, [*self._sets, *sets], f"{self._prefix}entry:")
        entries = [_entry(name.decode(), *told) for name, told in found]
        return moves.by_age(entry for entry in entries if entry is not None)

    async def purge(self, older_than: float) -> int:
        """Forget what was decided or released and has not changed for so many seconds."""
        after, gone = "-", 0
        while True:
            page = [f"{self._prefix}entry:", after, str(_PAGE)]
            last, more = await self._run(lua.PURGE, self._sets, *page, self._prefix, older_than)
            if last is None:
                return gone
            after, gone = f"({last.decode()}", gone + more

    async def exists(self) -> bool:
        """Return True if something was written with this prefix. Create nothing."""
        return bool(await self._servers.here().run(lua.EXISTS, self._sets[:1], []))

    async def aclose(self) -> None:
        """Let go of all connections; a later call opens them anew."""
        await self._servers.aclose(CLOSING)

    def __repr__(self) -> str:
        prefix = "" if self._prefix == _PREFIX else f", prefix={self._prefix!r}"
        return f"RedisLedger({shown(self._url)!r}{prefix})"


class _Server:
    """The server as one event loop reaches it, looked over before its first use."""

    def __init__(self, url: str, connections: int, *, is_checked: bool) -> None:
        from redis.asyncio import BlockingConnectionPool, Redis  # noqa: PLC0415  (needs its extra)
        from redis.asyncio.retry import Retry  # noqa: PLC0415  (as above)
        from redis.backoff import NoBackoff  # noqa: PLC0415  (as above)

        # Once more, since a connection that was not used for a while may be gone. By its token, a move that
        # has arrived already is known.
        again = Retry(NoBackoff(), 1)
        # It does not introduce itself: for that it would read its version from a file, with each connection.
        pool = BlockingConnectionPool.from_url(
            url, max_connections=connections, retry=again, driver_info=None
        )
        self.client = Redis.from_pool(pool)
        self._is_checked = is_checked
        self._checking = asyncio.Lock()

    async def run(self, script: str, names: Sequence[str], arguments: Sequence[Argument]) -> Answer:
        if not self._is_checked:
            async with self._checking:
                await self._check()
        return await self.client.register_script(script)(keys=names, args=arguments)

    async def _check(self) -> None:
        from redis.exceptions import BusyLoadingError, ResponseError  # noqa: PLC0415  (needs its extra)

        if self._is_checked:
            return
        try:
            told = await self.client.info()
        except ResponseError:  # this user may not ask: the shop knows its server
            told = {}
        if told.get("maxmemory_policy", "").startswith("allkeys"):
            raise _unsafe("may evict decisions", "set its maxmemory-policy to noeviction")
        if told.get("aof_enabled") == 0:
            # It is off, too, while the server loads its data or synchronizes as a replica.
            if told.get("loading") or await self._setting("appendonly") == "yes":
                raise BusyLoadingError("the server is starting")
            raise _unsafe("forgets decisions when it ends", "set its appendonly to yes")
        when = await self._setting("appendfsync") or "always"
        if when != "always":
            LOGGER.warning(
                "the ledger's server writes to the disk late (appendfsync %s): what it said last is lost "
                "if its machine fails, and would be asked again",
                when,
            )
        self._is_checked = True

    async def _setting(self, name: str) -> str:
        """Return a setting of the server; empty if this user may not read it."""
        from redis.exceptions import ResponseError  # noqa: PLC0415  (needs its extra)

        try:
            found = (await self.client.config_get(name)).get(name)
        except ResponseError:  # where others keep the server, nobody may
            return ""
        return found or ""


def _unsafe(what: str, mend: str) -> ConfigurationError:
    return ConfigurationError("ledger", f"is on a server that {what}: {mend}, or say durable=False")


async def _close(server: _Server, within: float) -> None:
    del within  # it says goodbye to nobody
    await server.client.aclose()


def _entry(key: str, text: bytes, body: bytes | None) -> Entry | None:
    """An entry as seen at a time of the server's; None if there is none."""
    stamp, version, *fields = loads(text)
    if not version:
        return None
    check_format(_FORMATS.get(version, FORMAT + 1))
    state, token, payload, claimed, changed, expires, takeovers, note, status, fault, *later = fields
    customer, order, scope, source, history = later  # format 1 has none of these
    fault = None if fault is False else fault
    entry = Entry(
        key=key,
        state=State(state),
        token=token,
        payload=payload,
        claimed=float(claimed),
        changed=float(changed),
        expires=float(expires),
        takeovers=int(takeovers),
        note=note,
        status=int(status) if status else None,
        body=body,
        fault=fault,
        customer=customer or "",
        order=order or "",
        scope=scope or "",
        source=source_in_format_1(State(state), body, fault) if source is False else source,
        history=history_from(history) if history else (),
    )
    return moves.seen(entry, float(stamp))
