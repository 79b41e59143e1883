"""A ledger in Valkey or Redis, shared by processes on several machines."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from logging import WARNING
from typing import Any, ClassVar, TypeAlias, cast

from attrs import fields

from loanasync._log import log
from loanasync._protocol.json import decode_any
from loanasync._runtime.per_loop import PerLoop
from loanasync.errors import ConfigurationError
from loanasync.ledger import transitions
from loanasync.ledger.backend import (
    ALL,
    CLOSE_TIMEOUT,
    PAGE_SIZE,
    WITHOUT_REDIRECT,
    Address,
    StoredLedger,
    format_error,
    masked_url,
    missing_driver_error,
)
from loanasync.ledger.model import (
    FORMAT,
    HISTORY_LENGTH,
    NO_SUBJECT,
    Entry,
    Settlement,
    State,
    Subject,
    load_history,
)

Argument: TypeAlias = str | bytes | float
ScriptResult: TypeAlias = Any  # lists, bytes and integers

_PREFIX = "loanasync:"


class RedisLedger(StoredLedger):
    """A ledger in Valkey, or Redis 6.2 or later, for clients on several machines.

    Each operation is one script, which the server runs atomically. Leases are measured by the server's clock.
    Entries never expire.

    Durability depends on the server: with ``appendonly yes`` and ``appendfsync always``, a completed write is
    on the disk. On first use the ledger checks the server's settings. It raises ConfigurationError if the
    server may lose or evict decisions, and logs a warning if writes reach the disk with a delay. Use a single
    server, with or without replicas. A cluster is not supported.

    Needs the extra ``redis``.

    Args:
        url: A ``redis://``, ``rediss://`` (TLS) or ``unix://`` address with user, password, number of the
            database and any other parameter that redis-py accepts.
        prefix: Prefix of all names that the ledger uses, for servers with other data.
        connections: Maximum number of connections per event loop. A call waits while all are in use.
        durable: Check the server's settings on first use. False accepts any server, for example in tests.

    Raises:
        ConfigurationError: The extra is not installed, or the address is invalid.

    Example:
        >>> from loanasync.ledger import RedisLedger
        >>> RedisLedger("rediss://shop:secret@valkey.example.com/0")
        RedisLedger('rediss://valkey.example.com/0')
    """

    address: ClassVar[Address] = Address(
        schemes=("redis", "rediss", "unix"),
        parameter="prefix",
        absent="this database has no ledger with this prefix: name the address, the number of the database "
        "and the prefix that your clients use, such as redis://host/0?prefix=loanasync:",
    )
    driver: ClassVar[str] = "redis"
    extra: ClassVar[str] = "redis"

    def __init__(
        self, url: str, *, prefix: str = _PREFIX, connections: int = 10, durable: bool = True
    ) -> None:
        try:
            from redis.asyncio.connection import parse_url  # noqa: PLC0415  (its extra may not be installed)
        except ImportError:
            raise missing_driver_error(RedisLedger) from None
        try:
            parse_url(url)
        except (AttributeError, TypeError, ValueError):
            raise ConfigurationError("ledger", "needs an address that redis-py accepts") from None
        self._url = url
        self._prefix = prefix
        self._sets = [f"{prefix}entries", f"{prefix}index"]
        self._entry = f"{prefix}entry:"
        self._connections = connections
        self._durable = durable
        self._servers = PerLoop(self._server, _close)

    def _server(self) -> "_Server":
        return _Server(self._url, self._connections, is_checked=not self._durable)

    async def _transition(self, script: str, key: str, *arguments: Argument) -> Entry:
        names = [*self._sets, self._entry + key]
        return cast("Entry", _entry(key, *await self._run(script, names, key, *arguments)))

    async def _run(self, script: str, names: list[str], *arguments: Argument) -> ScriptResult:
        """Run a script that begins with `_FORMAT`."""
        result = await self._servers.current().run(script, names, arguments)
        if isinstance(result, bytes):  # the content or the type of "entries"
            if result in _OTHER_TYPES:
                message = f"{names[0]} has data that is not a ledger: name another prefix"
                raise ConfigurationError("ledger", message)
            raise format_error(names[0], is_earlier=result in _EARLIER_FORMATS)
        return result

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
        """See `DecisionLedger.claim`."""
        subject_values = (subject.customer, subject.order, subject.scope)
        return await self._transition(
            _CLAIM, key, self._prefix, token, payload, lease, over or "", *subject_values
        )

    async def settle(
        self, key: str, *, token: str, payload: str, settlement: Settlement, over: str | None = None
    ) -> Entry:
        """See `DecisionLedger.settle`."""
        response = {"status": settlement.status, "body": settlement.body, "fault": settlement.fault}
        fields = [part for name, value in response.items() if value is not None for part in (name, value)]
        corrects = transitions.correction_target(token, settlement, over) or ""
        outcome = (settlement.state, settlement.note, settlement.source, corrects)
        return await self._transition(_SETTLE, key, self._prefix, token, payload, *outcome, *fields)

    async def get(self, key: str) -> Entry | None:
        """See `DecisionLedger.get`."""
        return _entry(key, *await self._run(_GET, [*self._sets, self._entry + key]))

    async def _read_page(self, part: str, first: str, last: str) -> tuple[str, list[Entry]]:
        names = self._sets[1] if part == ALL else f"{self._prefix}state:{part}"
        begin = f"({last}" if last else f"[{first}"
        page = await self._run(_LIST, [*self._sets, names], self._entry, begin, str(PAGE_SIZE))
        return page[-1][0].decode() if page else "", _entries(page)

    async def find(self, *, customer: str = "", order: str = "") -> list[Entry]:
        """See `DecisionLedger.find`."""
        sought = {"customer": customer, "order": order}
        sets = [f"{self._prefix}{name}:{digest}" for name, digest in sought.items() if digest]
        if not sets:
            return []
        return transitions.sort_by_age(_entries(await self._run(_FIND, [*self._sets, *sets], self._entry)))

    async def purge(self, older_than: float) -> int:
        """See `DecisionLedger.purge`."""
        after, deleted = "-", 0
        while True:
            page = [self._entry, after, str(PAGE_SIZE)]
            last, more = await self._run(_PURGE, self._sets, *page, self._prefix, older_than)
            if last is None:
                return deleted
            after, deleted = f"({last.decode()}", deleted + more

    async def exists(self) -> bool:
        """Return True if the ledger with this prefix exists. Create nothing."""
        return bool(await self._servers.current().run(_EXISTS, self._sets[:1], []))

    async def aclose(self) -> None:
        """Close all connections. A later call opens them again."""
        await self._servers.aclose(CLOSE_TIMEOUT)

    def __repr__(self) -> str:
        prefix = "" if self._prefix == _PREFIX else f", prefix={self._prefix!r}"
        return f"RedisLedger({masked_url(self._url)!r}{prefix})"


class _Server:
    """The connections of one event loop to the server, whose settings are checked before the first use."""

    def __init__(self, url: str, connections: int, *, is_checked: bool) -> None:
        from redis.asyncio import BlockingConnectionPool, Redis  # noqa: PLC0415  (needs its extra)
        from redis.asyncio.retry import Retry  # noqa: PLC0415  (needs its extra)
        from redis.backoff import NoBackoff  # noqa: PLC0415  (needs its extra)

        # Retry once, since an idle connection may have been closed. Repeating is safe, because the scripts
        # recognize a claim or a settlement by its token.
        retry = Retry(NoBackoff(), 1)
        # driver_info=None: otherwise redis-py reads its version from a file for each new connection. Versions
        # before 7.2 do not know this option, and read the file when they are imported.
        options = {"driver_info": None} if "driver_info" in signature(Redis).parameters else {}
        pool = BlockingConnectionPool.from_url(url, max_connections=connections, retry=retry, **options)
        self.client = Redis.from_pool(pool)
        self._is_checked = is_checked
        self._checking = asyncio.Lock()

    async def run(self, script: str, names: Sequence[str], arguments: Sequence[Argument]) -> ScriptResult:
        if not self._is_checked:
            async with self._checking:
                await self._check()
        return await self.client.register_script(script)(keys=names, args=arguments)

    async def _check(self) -> None:
        from redis.exceptions import BusyLoadingError, ResponseError  # noqa: PLC0415  (needs its extra)

        if self._is_checked:
            return
        try:
            info = await self.client.info()
        except ResponseError:  # this user may not run INFO: trust the settings
            info = {}
        if info.get("maxmemory_policy", "").startswith("allkeys"):
            raise _unsafe("may evict decisions", "set its maxmemory-policy to noeviction")
        if info.get("aof_enabled") == 0:
            # It is also 0 while the server loads its data or synchronizes as a replica.
            if info.get("loading") or await self._setting("appendonly") == "yes":
                raise BusyLoadingError("the server is starting")
            raise _unsafe("loses its decisions when it stops", "set its appendonly to yes")
        when = await self._setting("appendfsync") or "always"
        self._is_checked = True
        if when != "always":
            log(WARNING, _LATE_WRITES, when)

    async def _setting(self, name: str) -> str:
        """Return a setting of the server; empty if this user may not read it."""
        from redis.exceptions import ResponseError  # noqa: PLC0415  (needs its extra)

        try:
            found = (await self.client.config_get(name)).get(name)
        except ResponseError:  # usual on managed servers
            return ""
        return found or ""


_LATE_WRITES = (
    "the ledger's server writes to the disk with a delay (appendfsync %s): if its machine fails, the last "
    "decisions are lost and would be requested again; set its appendfsync to always"
)


def _unsafe(problem: str, fix: str) -> ConfigurationError:
    return ConfigurationError("ledger", f"is on a server that {problem}: {fix}, or pass durable=False")


async def _close(server: _Server, within: float) -> None:
    del within  # closing a connection does not wait for the server
    await server.client.aclose()


def _entries(found: ScriptResult) -> list[Entry]:
    """Return the entries for a list of pairs of a name and an entry."""
    entries = [_entry(name.decode(), *dumped) for name, dumped in found]
    return [entry for entry in entries if entry is not None]


def _entry(key: str, text: bytes, body: bytes | None) -> Entry | None:
    """Return the entry that the Lua function `dump` returned, as of the server's time, or None."""
    stamp, *stored = decode_any(text)
    # Absent fields arrive as False.
    values = {name: value for name, value in zip(_FIELDS, stored, strict=True) if value is not False}
    if not values:
        return None
    values |= {name: read(values[name]) for name, read in _READERS.items() if name in values}
    return transitions.as_of(Entry(key=key, body=body, **values), float(stamp))


# Storage layout. An entry is a hash. A sorted set, the index, has the names of all entries, so that they can
# be read in pages. There is one more sorted set for each state, and one for approvals that may lack a
# redirect. Sets have the names of the entries of each customer and of each order.
#
# Atomicity. A server that is out of memory rejects the first write command that may need memory (HDEL does
# not). So each script begins its writes with such a command, and writes all or nothing.
#
# Format. The string "entries" contains the format, which each script checks. In format 1 it was a sorted set.
# Entries have a version, which clients of earlier formats check before they change an entry.
_EARLIER_FORMATS = {b"zset", b"2.0", b"2.1"}
_OTHER_TYPES = {b"hash", b"list", b"set", b"stream"}

_FIELDS = [each.name for each in fields(Entry) if each.name not in ("key", "body")]
_NAMES = ", ".join(f"'{each}'" for each in _FIELDS)
_READERS: Mapping[str, Callable[[Any], object]] = {
    "state": State,
    "claimed": float,
    "changed": float,
    "expires": float,
    "takeovers": int,
    "status": int,
    "history": load_history,
}

# All times are the server's. An entry is returned as one JSON text, which a client parses faster than a dozen
# fields, and its body, which may be any bytes.
_BEGIN = f"""
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local stamp = string.format('%.6f', now)
local function dump(entry)
  local fields = redis.call('HMGET', entry, {_NAMES})
  return {{cjson.encode({{stamp, unpack(fields)}}), redis.call('HGET', entry, 'body')}}
end
-- Moves a name from the sorted sets of one state to those of another.
local function list(sets, name, entry, from, to)
  if from and from ~= to then
    redis.call('ZREM', sets .. 'state:' .. from, name)
  end
  redis.call('ZADD', sets .. 'state:' .. to, 0, name)
  local note = redis.call('HGET', entry, 'note')
  if to == 'approved' and (note and note ~= '' or redis.call('HEXISTS', entry, 'body') == 0) then
    redis.call('ZADD', sets .. 'state:{WITHOUT_REDIRECT}', 0, name)
  elseif from == 'approved' then
    redis.call('ZREM', sets .. 'state:{WITHOUT_REDIRECT}', name)
  end
end
-- Adds the state that an entry leaves to its history.
local function leave(entry, state, changed, note, source)
  local text = redis.call('HGET', entry, 'history')
  local history = text and cjson.decode(text) or {{}}
  history[#history + 1] = {{state, changed, note or '', source}}
  while #history > {HISTORY_LENGTH} do
    table.remove(history, 1)
  end
  redis.call('HSET', entry, 'history', cjson.encode(history))
end
"""

# KEYS: "entries". Ends the script if the data has another format; returns the format, or the type of the key.
_FORMAT = f"""
local format = redis.pcall('GET', KEYS[1])
if type(format) == 'table' then
  return redis.call('TYPE', KEYS[1]).ok
end
if format and format ~= '{FORMAT}' then
  return format
end
"""
_MARK = f"""
if not format then
  redis.call('SET', KEYS[1], '{FORMAT}')
end
"""

# KEYS: "entries", index, entry. ARGV: name, prefix of the sets, token, payload, lease, token to take over or
# an empty string, customer, order, scope.
_CLAIM = f"""{_BEGIN}{_FORMAT}
local entry, sets = KEYS[3], ARGV[2]
local state, token, claimed, changed, expires, takeovers, note, source, customer, order = unpack(redis.call(
  'HMGET', entry, 'state', 'token', 'claimed', 'changed', 'expires', 'takeovers', 'note', 'source',
  'customer', 'order'))
local fresh, stored = not state or state == 'released' and token ~= ARGV[3], state
if state == 'inflight' and tonumber(expires) <= now then
  state, changed, note = 'unknown', expires, '{transitions.LEASE_EXPIRED}'
end
local over = (state == 'unknown' or state == 'lost' or state == 'held') and ARGV[6] ~= '' and token == ARGV[6]
if not (fresh or over) then
  return dump(entry)
end
{_MARK}
if state then
  leave(entry, state, changed, note, source)
end
if fresh then
  claimed, takeovers = stamp, 0
else
  takeovers = takeovers + 1
end
redis.call('HSET', entry, 'version', '{FORMAT}', 'state', 'inflight', 'token', ARGV[3], 'payload', ARGV[4],
  'claimed', claimed, 'changed', stamp, 'expires', string.format('%.6f', now + ARGV[5]),
  'takeovers', takeovers, 'note', '', 'source', '')
if fresh then
  redis.call('HDEL', entry, 'status', 'body', 'fault')
end
if ARGV[7] ~= '' or ARGV[8] ~= '' or ARGV[9] ~= '' then
  if customer and customer ~= '' then
    redis.call('SREM', sets .. 'customer:' .. customer, ARGV[1])
  end
  if order and order ~= '' then
    redis.call('SREM', sets .. 'order:' .. order, ARGV[1])
  end
  redis.call('HSET', entry, 'customer', ARGV[7], 'order', ARGV[8], 'scope', ARGV[9])
  if ARGV[7] ~= '' then
    redis.call('SADD', sets .. 'customer:' .. ARGV[7], ARGV[1])
  end
  if ARGV[8] ~= '' then
    redis.call('SADD', sets .. 'order:' .. ARGV[8], ARGV[1])
  end
end
redis.call('ZADD', KEYS[2], 0, ARGV[1])
list(sets, ARGV[1], entry, stored, 'inflight')
return dump(entry)
"""

# KEYS: the same as for _CLAIM. ARGV: name, prefix of the sets, token, payload, state, note, source, token of
# the entry to correct or an empty string; then the name and value of each of status, body and fault that is
# set.
_SETTLE = f"""{_BEGIN}{_FORMAT}
local entry, becomes = KEYS[3], ARGV[5]
local state, token, changed, note, source = unpack(redis.call(
  'HMGET', entry, 'state', 'token', 'changed', 'note', 'source'))
local decided = state == 'approved' or state == 'refused'
local decides = (becomes == 'approved' or becomes == 'refused') and ARGV[7] == 'service'
local corrects = (decided or state == 'released') and source ~= 'service'
  and ARGV[8] ~= '' and token == ARGV[8]
if state and not corrects and (decided or not (decides or token == ARGV[3])) then
  return dump(entry)
end
{_MARK}
if state and state ~= 'inflight' and (corrects or state ~= becomes) then
  leave(entry, state, changed, note, source)
end
local has_body, has_response = false, false
for number = 9, #ARGV, 2 do
  has_body = has_body or ARGV[number] == 'body'
end
for _, name in ipairs({{'status', 'body', 'fault'}}) do
  has_response = has_response or redis.call('HEXISTS', entry, name) == 1
end
local unsettled = becomes == 'unknown' or becomes == 'lost' or becomes == 'held'
redis.call('HSET', entry, 'version', '{FORMAT}', 'state', becomes, 'token', ARGV[3], 'payload', ARGV[4],
  'changed', stamp, 'note', ARGV[6], 'source', ARGV[7])
if not (unsettled and has_response and not has_body) then
  redis.call('HDEL', entry, 'status', 'body', 'fault')
  if #ARGV > 8 then
    redis.call('HSET', entry, unpack(ARGV, 9))
  end
end
if not state then
  redis.call('HSET', entry, 'claimed', stamp, 'expires', stamp, 'takeovers', 0)
end
redis.call('ZADD', KEYS[2], 0, ARGV[1])
list(ARGV[2], ARGV[1], entry, state, becomes)
return dump(entry)
"""

# KEYS: "entries".
_EXISTS = "return redis.call('EXISTS', KEYS[1])"

# KEYS: "entries", index, entry.
_GET = f"""{_BEGIN}{_FORMAT}
return dump(KEYS[3])
"""

# KEYS: "entries", index, the sorted set to read. ARGV: prefix of an entry, lower limit of the page, number of
# entries.
_LIST = f"""{_BEGIN}{_FORMAT}
local page = {{}}
for _, name in ipairs(redis.call('ZRANGEBYLEX', KEYS[3], ARGV[2], '+', 'LIMIT', 0, ARGV[3])) do
  page[#page + 1] = {{name, dump(ARGV[1] .. name)}}
end
return page
"""

# KEYS: "entries", index, one or two sets of names. ARGV: prefix of an entry.
_FIND = f"""{_BEGIN}{_FORMAT}
local found = {{}}
for _, name in ipairs(redis.call('SINTER', unpack(KEYS, 3))) do
  found[#found + 1] = {{name, dump(ARGV[1] .. name)}}
end
return found
"""

# KEYS: "entries", index. ARGV: the same as for _LIST, then the prefix of the sets and the age in seconds.
# Returns the last name of the page, and the number of deleted entries.
_PURGE = f"""{_BEGIN}{_FORMAT}
local names = redis.call('ZRANGEBYLEX', KEYS[2], ARGV[2], '+', 'LIMIT', 0, ARGV[3])
local deleted = 0
for _, name in ipairs(names) do
  local state, changed, customer, order = unpack(redis.call('HMGET', ARGV[1] .. name,
    'state', 'changed', 'customer', 'order'))
  local ended = state == 'approved' or state == 'refused' or state == 'released'
  if ended and tonumber(changed) <= now - ARGV[5] then
    redis.call('DEL', ARGV[1] .. name)
    redis.call('ZREM', KEYS[2], name)
    redis.call('ZREM', ARGV[4] .. 'state:' .. state, name)
    redis.call('ZREM', ARGV[4] .. 'state:{WITHOUT_REDIRECT}', name)
    if customer and customer ~= '' then
      redis.call('SREM', ARGV[4] .. 'customer:' .. customer, name)
    end
    if order and order ~= '' then
      redis.call('SREM', ARGV[4] .. 'order:' .. order, name)
    end
    deleted = deleted + 1
  end
end
return {{names[#names] or false, deleted}}
"""
