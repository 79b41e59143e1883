"""A ledger in Valkey or Redis, shared by processes on several machines."""

import asyncio
import re
import time
from collections.abc import Sequence
from inspect import signature
from logging import WARNING
from typing import Any, ClassVar, TypeAlias

from loanasync._runtime.per_loop import PerLoop
from loanasync._telemetry.log import log
from loanasync.errors import ConfigurationError, LedgerMismatchError
from loanasync.ledger.drivers import CLOSE_TIMEOUT, MAX_AGE, has_changed, masked_url, missing_driver_error
from loanasync.ledger.header import Header, mismatch
from loanasync.ledger.ledger import Ledger
from loanasync.ledger.model import Entry, State, dump_entry, load_entry, set_times
from loanasync.ledger.store import PAGE_SIZE, Column, Found, FoundHeader, Write

ScriptResult: TypeAlias = Any  # lists, bytes and integers

_PREFIX = "loanasync:"
_CHECK_INTERVAL = 60.0  # seconds of use between two checks of the server's settings


class RedisLedger(Ledger):
    """A ledger in Valkey, or Redis 6.2 or later, for clients on several machines.

    Each operation is one script, which the server runs atomically. Leases are measured by the server's clock.
    Entries never expire. `loanasync ledger create` or `create_ledger` creates the ledger; a client does not.

    Durability depends on the server: with ``appendonly yes`` and ``appendfsync always``, a completed write is
    on the disk. The ledger checks the server's settings before the first claim, and once a minute while it
    claims. If the server may lose or evict decisions, a claim raises LedgerMismatchError and nothing is sent;
    settlements are still written. A warning is logged if writes reach the disk with a delay. Use a single
    server, with or without replicas. A cluster is refused.

    Needs the extra ``redis``.

    Args:
        url: A ``redis://``, ``rediss://`` (TLS) or ``unix://`` address with user, password, number of the
            database and any other parameter that redis-py accepts.
        prefix: Prefix of all names that the ledger uses, for servers with other data.
        connections: Maximum number of connections per event loop. A call waits while all are in use.
        durable: Check the server's settings. False accepts any server, for example in tests.

    Raises:
        ConfigurationError: The extra is not installed, or the address is invalid.

    Example:
        >>> from loanasync.ledger import RedisLedger
        >>> RedisLedger("rediss://shop:secret@valkey.example.com/0")
        RedisLedger('rediss://valkey.example.com/0')
    """

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
            if parse_url(url).get("decode_responses"):
                raise ConfigurationError("ledger", "needs an address without decode_responses")
        except (AttributeError, TypeError, ValueError):
            raise ConfigurationError("ledger", "needs an address that redis-py accepts") from None
        super().__init__(_RedisStore(url, prefix, connections, is_checked=durable), creates=False)
        self._url = url
        self._prefix = prefix

    def __repr__(self) -> str:
        prefix = "" if self._prefix == _PREFIX else f", prefix={self._prefix!r}"
        return f"RedisLedger({masked_url(self._url)!r}{prefix})"


class _RedisStore:
    """Entries in strings, found by sorted sets of their keys. See the scripts at the end of this module."""

    def __init__(self, url: str, prefix: str, connections: int, *, is_checked: bool) -> None:
        self.name = masked_url(url) + ("" if prefix == _PREFIX else f"?prefix={prefix}")
        self._prefix = prefix
        self._servers = PerLoop(
            lambda: _Server(url, self.name, connections, is_checked=is_checked), _close, is_for_calls=True
        )

    async def _run(self, script: str, *arguments: str | bytes | float) -> ScriptResult:
        """Run a script with the prefix and further arguments."""
        from redis.exceptions import ResponseError  # noqa: PLC0415  (needs its extra)

        server = self._servers.current()
        try:
            return await server.scripts[script]([f"{self._prefix}header"], [self._prefix, *arguments])
        except ResponseError as error:
            for pattern, reason in _MISMATCHES.items():
                if found := re.search(pattern, f"{type(error).__name__} {error}"):
                    raise mismatch(self.name, found.expand(reason)) from None
            raise

    async def header(self) -> FoundHeader:
        now, number, document, has_data = await self._run(_HEADER)
        if document is not None:
            return FoundHeader(Header.from_json(document, self.name), float(now), int(number), float(now))
        if has_data:
            raise mismatch(self.name, _FOREIGN)
        return FoundHeader(None, float(now), 0)

    async def swap_header(self, header: Header, *, replaces: Header | None) -> bool:
        if replaces is None:
            await self._servers.current().check()
            if (await self.header()).header is not None:
                return False
        replaced = ("", "") if replaces is None else (replaces.id, replaces.generation)
        return bool(await self._run(_SWAP_HEADER, *replaced, header.id, header.generation, header.as_json()))

    async def read(self, key: str, header: Header) -> Found:
        head, stored = await self._run(_READ, header.id, key)
        now, number, generation = _head(head)
        return Found(_entry(stored, now), now, generation, number)

    async def swap(self, write: Write) -> Found:
        entry, header, lease = write.entry, write.header, write.lease
        if lease is not None:
            await self._servers.current().check()
        columns, body = dump_entry(entry)[:-1], () if entry.body is None else (entry.body,)
        claim = ("", "") if lease is None else (header.generation, lease)
        not_after = "" if write.not_after is None else write.not_after
        conditions = (header.id, write.expects, *claim, not_after)
        result = await self._run(_SWAP, *conditions, *columns, *body)
        if isinstance(result, list):
            now, number, generation = _head(result[0])
            # It is the written entry, if the driver has repeated a script whose response did not arrive.
            return Found(_entry(result[1], now), now, generation, number)
        now, number, generation = _head(result)
        expires = entry.expires or now if lease is None else round(now + lease, 6)
        claimed, changed = entry.claimed or now, entry.changed or now
        set_times(entry, claimed=claimed, changed=changed, expires=expires, left=expires - now)
        return Found(entry, now, generation, number)

    async def page(
        self, column: Column, value: str, first: str, last: str, header: Header
    ) -> Sequence[Entry]:
        name = f"{column}:{value}" if column else "index"
        begin = f"({last}" if last else f"[{first}"
        head, *stored = await self._run(_PAGE, header.id, name, begin, PAGE_SIZE)
        now, _, _ = _head(head)
        entries = [_entry(each, now) for each in stored]
        return [each for each in entries if each is not None]

    async def drop(self, entries: Sequence[Entry], header: Header) -> int:
        named = [text for each in entries for text in (each.key, each.revision)]
        return int(await self._run(_DROP, header.id, *named))

    def reason(self, error: BaseException) -> str:
        text = f"{type(error).__name__} {error}"
        return next((reason for pattern, reason in _REASONS.items() if re.search(pattern, text)), "")

    async def aclose(self) -> None:
        await self._servers.aclose(CLOSE_TIMEOUT)


class _Connection:
    """A mixin: a connection is opened again after some minutes, and if the server is not the primary.

    After a fail-over, the old server may keep its connections, and refuse each write. If one connection of
    a pool finds that, all others are opened again, too. Each pool has its own subclass.
    """

    opened = changed = float("-inf")  # times; `changed` of the last such error, for the whole class

    async def connect(self) -> None:
        now = time.monotonic()
        if self.opened <= max(self.changed, now - MAX_AGE):
            await self.disconnect(nowait=True)  # type: ignore[attr-defined]  # of redis-py, as below
            self.opened = now
        await super().connect()  # type: ignore[misc]

    async def read_response(self, *args: object, **options: object) -> object:
        try:
            return await super().read_response(*args, **options)  # type: ignore[misc]
        except Exception as error:
            if has_changed(error):
                type(self).changed = time.monotonic()
            raise


class _Server:
    """The connections of one event loop to the server, whose settings are checked from time to time."""

    def __init__(self, url: str, name: str, connections: int, *, is_checked: bool) -> None:
        from redis.asyncio import BlockingConnectionPool, Redis  # noqa: PLC0415  (needs its extra)
        from redis.asyncio.retry import Retry  # noqa: PLC0415  (needs its extra)
        from redis.backoff import NoBackoff  # noqa: PLC0415  (needs its extra)

        # Retry once, since an idle connection may have been closed. `swap` recognizes a repeated write.
        retry = Retry(NoBackoff(), 1)
        # driver_info=None: otherwise redis-py reads its version from a file for each new connection. Versions
        # before 7.2 do not know this option, and read the file when they are imported.
        options = {"driver_info": None} if "driver_info" in signature(Redis).parameters else {}
        pool = BlockingConnectionPool.from_url(url, max_connections=connections, retry=retry, **options)
        pool.connection_class = type("_Connection", (_Connection, pool.connection_class), {})
        self.client = Redis.from_pool(pool)
        self.scripts = {script: self.client.register_script(script) for script in _SCRIPTS}
        self._name = name
        self._is_checked = is_checked
        self._checked = float("-inf")  # time of the last check
        self._checking = asyncio.Lock()
        self._is_warned = False

    async def check(self) -> None:
        """Check the server's settings, unless this was done within the last minute.

        Raises:
            LedgerMismatchError: The server may lose or evict decisions.
        """
        if not self._is_checked or time.monotonic() < self._checked + _CHECK_INTERVAL:
            return
        async with self._checking:
            if time.monotonic() >= self._checked + _CHECK_INTERVAL:  # no other call has checked it meanwhile
                began = time.monotonic()
                await self._check()
                self._checked = began

    async def _check(self) -> None:
        from redis.exceptions import BusyLoadingError, ResponseError  # noqa: PLC0415  (needs its extra)

        try:
            info = await self.client.info()
        except ResponseError:  # this user may not run INFO: trust the settings
            info = {}
        if info.get("role") == "slave" and info.get("slave_read_only") == 0:
            raise mismatch(self._name, "is on a replica that accepts writes: use the address of the primary")
        if info.get("cluster_enabled"):
            raise mismatch(self._name, _CLUSTER)
        # Other policies evict only keys that expire, which a ledger does not have.
        if info.get("maxmemory_policy", "").startswith("allkeys"):
            raise self._unsafe("may evict decisions", "set its maxmemory-policy to noeviction")
        if info.get("aof_enabled") == 0:
            # It is also 0 while the server loads its data or synchronizes as a replica.
            if info.get("loading") or await self._setting("appendonly") == "yes":
                raise BusyLoadingError("the server is starting")
            raise self._unsafe("loses its decisions when it stops", "set its appendonly to yes")
        when = await self._setting("appendfsync") or "always"
        if when != "always" and not self._is_warned:
            self._is_warned = True
            log(WARNING, _LATE_WRITES, when)

    async def _setting(self, name: str) -> str:
        """Return a setting of the server; empty if this user may not read it."""
        from redis.exceptions import ResponseError  # noqa: PLC0415  (needs its extra)

        try:
            found = (await self.client.config_get(name)).get(name)
        except ResponseError:  # usual on managed servers
            return ""
        return found or ""

    def _unsafe(self, problem: str, fix: str) -> LedgerMismatchError:
        return mismatch(self._name, f"is on a server that {problem}: {fix}, or pass durable=False")


async def _close(server: _Server, within: float | None) -> None:
    del within  # closing a connection does not wait for the server
    await server.client.aclose()


_LATE_WRITES = (
    "the ledger's server writes to the disk with a delay (appendfsync %s): if its machine fails, the last "
    "decisions are lost and may be requested again; set its appendfsync to always"
)
_FOREIGN = (
    "is not a ledger, but other data, another format or a part of one: restore a complete copy, or name "
    "another prefix"
)
_CLUSTER = "is on a cluster, which cannot run its scripts: use a single server, with or without replicas"
# By the name of an exception and its text.
_MISMATCHES = {
    r"^\w+ LEDGER (.+)": r"\1",  # an error of a script
    r"WRONGTYPE": _FOREIGN,
    r"^(Moved|Ask|Cluster)|CROSSSLOT|CLUSTERDOWN|non local key|in cluster mode": _CLUSTER,
    r"DB index": "names a database that the server does not have: correct its number in the address",
}

# By the name of an exception and its text. Before Redis 7, only the text has the code of a script's error.
_REASONS = {
    r"^ReadOnly|READONLY|^MasterDown|MASTERDOWN": "the server is a replica: use the address of the primary",
    r"NOREPLICAS": "the server has too few replicas for its min-replicas-to-write: check the replicas",
    r"^OutOfMemory|OOM": "the server is out of memory: raise its maxmemory",
    r"MISCONF": "the server cannot write to its disk: free disk space, or see its log",
    r"^BusyLoading|LOADING": "the server is loading its data: wait until it has started",
    r"^Authentication|NOAUTH|WRONGPASS": "the server refused the user or the password: correct the address",
    r"^NoPermission|NOPERM": "the user may not run a command that the ledger needs: change its rights",
    r"No connection available": "all connections are in use: raise connections=",
    r"^Timeout": "the server did not respond in time: check the network and the load of the server",
    r"^Connection": "the server cannot be reached: check the address, and that the server runs",
}


def _head(text: bytes) -> tuple[float, int, int]:
    """Return the time, the number and the generation that each script returns."""
    now, number, generation = text.split()
    return float(now), int(number), int(generation)


def _entry(stored: ScriptResult, now: float) -> Entry | None:
    """Return the entry for its key and what was stored; None if nothing was."""
    if len(stored) == 1:
        return None
    key, revision, state, customer, *times, document = [each.decode() for each in stored[:8]]
    columns = (key, state, revision, customer, *map(float, times))
    return load_entry(columns, document, next(iter(stored[8:]), None), left=columns[-1] - now)


# Storage layout. The header is a hash. An entry is a string: a MessagePack list of what scripts read or
# set, of a JSON document with the other members, and of the body. A hash would take 450 bytes more. The
# sorted set "index" has the keys of all entries, so that they can be read in pages. There is one more
# sorted set for each state and customer. Scripts make these names from the prefix, so a cluster
# cannot run them.
#
# Atomicity. A server that is read-only, out of memory or out of disk space rejects a script's first write.
# Out of memory, it rejects only commands that may need memory (ZREM does not). So each script that writes
# an entry begins with HINCRBY, and writes all or nothing.
#
# KEYS: header. ARGV: prefix of all names, id of the ledger, then as each script says.
_BEGIN = """
local prefix = ARGV[1]
local id, generation, number = unpack(redis.call('HMGET', KEYS[1], 'id', 'generation', 'number'))
if id ~= ARGV[2] then
  return redis.error_reply('LEDGER was replaced by another ledger, or deleted')
end
local time = redis.call('TIME')
local now = string.format('%d.%06d', time[1], time[2])
local function read(key)
  local stored = redis.call('GET', prefix .. 'entry:' .. key)
  if stored then
    return {key, unpack(cmsgpack.unpack(stored))}
  elseif not redis.call('ZSCORE', prefix .. 'index', key) then
    return {key}
  end
  -- The server has evicted the entry, or somebody has deleted it.
  return {key, 'missing', 'unknown', '', now, now, now, cjson.encode({
    token = 'missing', payload = '', note = 'missing on the server'})}
end
local function head()
  return now .. ' ' .. number .. ' ' .. generation
end
-- Moves a key from the sorted sets of one state and customer to those of others.
local function move(key, from, to)
  for each, kind in ipairs({'state:', 'customer:'}) do
    local old, new = from[each] or '', to[each] or ''
    if old ~= new and old ~= '' then
      redis.call('ZREM', prefix .. kind .. old, key)
    end
    if old ~= new and new ~= '' then
      redis.call('ZADD', prefix .. kind .. new, 0, key)
    end
  end
end
"""

# ARGV: key.
_READ = _BEGIN + "return {head(), read(ARGV[3])}"

# ARGV: name of a sorted set, lower limit of the keys, number of entries.
_PAGE = f"""{_BEGIN}
local found = {{head()}}
for _, key in ipairs(redis.call('ZRANGEBYLEX', prefix .. ARGV[3], ARGV[4], '+', 'LIMIT', 0, ARGV[5])) do
  found[#found + 1] = read(key)
end
return found
"""

_STATES = ", ".join(f"'{state}'" for state in State)
# ARGV: expected revision; generation, lease and latest time, empty if they do not apply; then the result of
# `dump_entry`: key, state, revision, customer, times of claim, change and end of the lease, document, body.
_SWAP = f"""{_BEGIN}
local key, stored = ARGV[7], read(ARGV[7])
local is_late = ARGV[6] ~= '' and tonumber(now) > tonumber(ARGV[6])
if (stored[2] or '') ~= ARGV[3] or ARGV[4] ~= '' and generation ~= ARGV[4] or is_late then
  return {{head(), stored}}
end
local claimed = tonumber(ARGV[11]) > 0 and ARGV[11] or now
local changed = tonumber(ARGV[12]) > 0 and ARGV[12] or now
local expires = tonumber(ARGV[13]) > 0 and ARGV[13] or now
if ARGV[5] ~= '' then
  expires = string.format('%.6f', now + ARGV[5])
end
number = redis.call('HINCRBY', KEYS[1], 'number', 1)
redis.call('SET', prefix .. 'entry:' .. key, cmsgpack.pack({{
  ARGV[9], ARGV[8], ARGV[10], claimed, changed, expires, unpack(ARGV, 14)}}))
redis.call('ZADD', prefix .. 'index', 0, key)
if stored[2] == 'missing' then
  for _, state in ipairs({{{_STATES}}}) do
    redis.call('ZREM', prefix .. 'state:' .. state, key)
  end
end
move(key, {{unpack(stored, 3, 4)}}, {{ARGV[8], ARGV[10]}})
return head()
"""

# ARGV: a key and its expected revision, any number of times.
_DROP = f"""{_BEGIN}
local dropped = 0
for each = 3, #ARGV, 2 do
  local stored = read(ARGV[each])
  if stored[2] == ARGV[each + 1] then
    redis.call('DEL', prefix .. 'entry:' .. ARGV[each])
    redis.call('ZREM', prefix .. 'index', ARGV[each])
    move(ARGV[each], {{unpack(stored, 3, 4)}}, {{}})
    dropped = dropped + 1
  end
end
return dropped
"""

# ARGV: prefix. "entries" is a name of other formats.
_HEADER = """
local document, number = unpack(redis.call('HMGET', KEYS[1], 'document', 'number'))
local time = redis.call('TIME')
return {string.format('%d.%06d', time[1], time[2]), number, document,
  redis.call('EXISTS', KEYS[1], ARGV[1] .. 'index', ARGV[1] .. 'entries')}
"""

# ARGV: prefix; id and generation of the replaced header, or empty; then those of the new one, and its text.
# The driver repeats a script whose response did not arrive: the new header is then stored already.
_SWAP_HEADER = """
local id, generation, document = unpack(redis.call('HMGET', KEYS[1], 'id', 'generation', 'document'))
if document == ARGV[6] then
  return 1
elseif (id or '') ~= ARGV[2] or (generation or '') ~= ARGV[3] then
  return 0
end
redis.call('HINCRBY', KEYS[1], 'number', 1)
redis.call('HSET', KEYS[1], 'id', ARGV[4], 'generation', ARGV[5], 'document', ARGV[6])
return 1
"""

_SCRIPTS = (_READ, _PAGE, _SWAP, _DROP, _HEADER, _SWAP_HEADER)
