"""A taskiq broker and its dead letters in Redis or Valkey."""

import time
from contextlib import suppress
from typing import Any, ClassVar

from loanasync.worker.dead_letters import NEEDS_EXTRA, DeadLetter, DeadLettersBase, NoQueueError, letter_of

try:
    from redis.asyncio import Redis
    from redis.exceptions import RedisError, ResponseError
    from taskiq_redis import RedisStreamBroker

    from loanasync.worker.delivery import QueueBroker
except ImportError as _error:
    raise ImportError(NEEDS_EXTRA.format(__name__)) from _error

__all__ = ["DeadLetters", "RedisStreams"]

_START = b"0-0"
_TIMEOUT = 30.0  # seconds of one operation on dead letters
_MAX_DUE = 1000  # delayed messages that one script puts into the stream, at most
_CHECK_INTERVAL = 1.0  # seconds between two checks for messages that are due or idle, at most

# Lua scripts, which the server runs atomically. A server that is out of memory rejects the first write
# command that may need memory. So each script begins its writes with such a command, and writes all or
# nothing.
_NOW = """
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
"""
# KEYS: stream, any. ARGV: group, id. Ends the script if another worker has acknowledged the message.
_CHECK_PENDING = """
if #redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[2], ARGV[2], 1) == 0 then
  return 0
end
"""
# KEYS: stream. ARGV: group, id.
_REMOVE = """
redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
redis.call('XDEL', KEYS[1], ARGV[2])
return 1
"""

# KEYS: stream, delayed messages. ARGV: group, id, message, seconds.
_DELAY = f"""{_NOW}{_CHECK_PENDING}
redis.call('ZADD', KEYS[2], now + ARGV[4], ARGV[3])
{_REMOVE}"""

# KEYS: stream, delayed messages. ARGV: number of messages. Puts the messages that are due into the stream.
_DELIVER_DUE = f"""{_NOW}
local due = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, ARGV[1])
for _, message in ipairs(due) do
  redis.call('XADD', KEYS[1], '*', 'data', message)
  redis.call('ZREM', KEYS[2], message)
end
return #due
"""

# KEYS: stream, dead letters. ARGV: group, id, message, reason.
_ADD_DEAD_LETTER = f"""{_CHECK_PENDING}
redis.call('XADD', KEYS[2], '*', 'data', ARGV[3], 'reason', ARGV[4])
{_REMOVE}"""

# KEYS: stream, dead letters. ARGV: id of the dead letter.
_REPLAY = """
local found = redis.call('XRANGE', KEYS[2], ARGV[1], ARGV[1])
if #found == 0 then
  return 0
end
local fields = found[1][2]
for number = 1, #fields, 2 do
  if fields[number] == 'data' then
    redis.call('XADD', KEYS[1], '*', 'data', fields[number + 1])
  end
end
redis.call('XDEL', KEYS[2], ARGV[1])
return 1
"""

# KEYS: stream. ARGV: group, milliseconds. Deletes the consumers of ended workers, which have been idle for
# longer. A consumer with pending messages stays, because they would be deleted with it.
_DELETE_CONSUMERS = """
for _, fields in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local consumer = {}
  for number = 1, #fields, 2 do
    consumer[fields[number]] = fields[number + 1]
  end
  if consumer.idle > tonumber(ARGV[2]) and consumer.pending == 0 then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], consumer.name)
  end
end
"""


class RedisStreams(QueueBroker, RedisStreamBroker):
    """The stream broker of taskiq-redis, changed to lose no message and to delete messages that are done.

    It differs from taskiq-redis (up to 1.2.4) as follows:

    - The messages of a dead worker are redelivered even if no new message arrives.
    - The worker keeps running while the server restarts.
    - A worker reads one message at a time, not a hundred.
    - Messages that were sent before the first worker started are delivered.
    - An acknowledged message, which contains personal data, is deleted from the stream.

    A message that a worker puts back waits in the sorted set ``<queue_name>:later``. A message that used up
    its tries is in the stream ``<queue_name>:dead``, which ``loanasync dead-letters`` lists.

    Needs Redis 7 or later, or Valkey.

    Args:
        url: Address of the server: ``redis://``, or ``rediss://`` for TLS.
        redelivery: Seconds after which a message that was not acknowledged is delivered to another worker.
        queue_name: Name of the stream. It must have no other consumers, because acknowledged messages are
            deleted.
        options: Arguments of ``taskiq_redis.RedisStreamBroker``.

    Example:
        >>> from loanasync.worker.redis import RedisStreams
        >>> RedisStreams("redis://127.0.0.1:6379").idle_timeout
        180000
    """

    _errors: ClassVar = (RedisError,)

    def __init__(
        self, url: str, *, redelivery: float = 180.0, queue_name: str = "loanasync", **options: Any
    ) -> None:
        # driver_info=None: otherwise redis-py reads its version from a file in the event loop.
        settings = {"consumer_group_name": queue_name, "consumer_id": "0", "driver_info": None, **options}
        super().__init__(url, queue_name=queue_name, idle_timeout=round(redelivery * 1000), **settings)
        self.redelivery: float = redelivery
        self._queue = queue_name
        self._redis: Any = Redis(connection_pool=self.connection_pool)  # types of redis-py differ by release
        self._scripts: dict[str, Any] = {}
        self._cursor, self._next_check = _START, 0.0

    async def _open(self) -> None:
        with suppress(ResponseError):  # it exists
            await self._redis.xgroup_create(
                self.queue_name, self.consumer_group_name, id=self.consumer_id, mkstream=True
            )
        if self.is_worker_process:
            await self._run(_DELETE_CONSUMERS, "", self.consumer_group_name, 2 * self.idle_timeout)

    # Fetch one message at a time: messages that wait here would become idle and be redelivered elsewhere.
    async def _fetch(self) -> list[tuple[bytes, bytes]]:
        interval = min(_CHECK_INTERVAL, self.idle_timeout / 4000)
        names = (self.consumer_group_name, self.consumer_name)
        if time.monotonic() >= self._next_check:
            await self._run(_DELIVER_DUE, "later", _MAX_DUE)
            self._cursor, found, *_ = await self._redis.xautoclaim(
                self.queue_name, *names, self.idle_timeout, self._cursor, count=1
            )
            if self._cursor == _START:  # all pending messages were checked
                self._next_check = time.monotonic() + interval
        else:
            wait = max(1, round(interval * 1000))
            streams = await self._redis.xreadgroup(*names, {self.queue_name: ">"}, count=1, block=wait)
            found = streams[0][1] if streams else []
        # A message without data is not from taskiq.
        return [(number, members.get(b"data", b"")) for number, members in found]

    async def _delete(self, delivery: bytes) -> None:
        await self._run(_REMOVE, "", self.consumer_group_name, delivery)

    async def _put_back(self, delivery: bytes, data: bytes, delay: float) -> None:
        await self._run(_DELAY, "later", self.consumer_group_name, delivery, data, delay)

    async def _bury(self, delivery: bytes, data: bytes, reason: str) -> None:
        await self._run(_ADD_DEAD_LETTER, "dead", self.consumer_group_name, delivery, data, reason)

    async def _backlog(self) -> int:
        later: int = await self._redis.zcard(f"{self.queue_name}:later")
        return later + int(await self._redis.xlen(self.queue_name))

    async def _owner(self, task: str, owner: str) -> str:
        owners = f"{self.queue_name}:owners"
        await self._redis.hsetnx(owners, task, owner)
        stored: bytes | str = await self._redis.hget(owners, task)
        return stored.decode() if isinstance(stored, bytes) else stored

    async def _run(self, script: str, suffix: str, *arguments: str | bytes | float) -> None:
        if script not in self._scripts:
            self._scripts[script] = self._redis.register_script(script)
        await self._scripts[script](keys=[self.queue_name, f"{self.queue_name}:{suffix}"], args=arguments)


class DeadLetters(DeadLettersBase):
    """The dead letters of a `RedisStreams` queue.

    Args:
        url: Address of the server.
        name: Name of the stream.

    Raises:
        loanasync.worker.NoQueueError: The stream does not exist; raised by `list`.

    Example:
        >>> from loanasync.worker.redis import DeadLetters
        >>> async def replay_all(url):
        ...     async with DeadLetters(url) as letters:
        ...         return [await letters.replay(each) for each in await letters.list()]
    """

    def __init__(self, url: str, name: str = "loanasync") -> None:
        limits: dict[str, Any] = {"socket_timeout": _TIMEOUT, "socket_connect_timeout": _TIMEOUT}
        self._redis: Any = Redis.from_url(url, driver_info=None, **limits)  # see `RedisStreams`
        self._names = [name, f"{name}:dead"]

    async def list(self) -> list[DeadLetter]:
        """Return all dead letters, oldest first."""
        if not await self._redis.exists(*self._names):
            raise NoQueueError(self._names[0])
        return [_letter(number, fields) for number, fields in await self._redis.xrange(self._names[1])]

    async def replay(self, letter: DeadLetter) -> bool:
        """Put a dead letter back into the queue, with all its tries.

        Returns:
            True if it was put back; False if another call has replayed it.
        """
        return bool(await self._redis.eval(_REPLAY, 2, *self._names, letter.id))

    async def delete(self, letter: DeadLetter) -> bool:
        """Delete a dead letter; return False if it is not there any more."""
        return bool(await self._redis.xdel(self._names[1], letter.id))

    async def aclose(self) -> None:
        """Close the connection."""
        await self._redis.aclose()


def _letter(number: bytes, fields: dict[bytes, bytes]) -> DeadLetter:
    name, reason = number.decode(), fields.get(b"reason", b"").decode(errors="replace")
    return letter_of(name, int(name.partition("-")[0]) / 1000, reason, fields.get(b"data", b""))
