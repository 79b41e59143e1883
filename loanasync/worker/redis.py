"""A queue in Redis or Valkey that redelivers the messages of dead workers."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import ConnectionError as NotConnectedError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as TooLateError
from taskiq import AckableMessage
from taskiq_redis import RedisStreamBroker

from loanasync._log import LOGGER
from loanasync.worker.dead_letters import DEAD_LETTER, DeadLetter, DeadLettersBase, NoQueueError, named
from loanasync.worker.delivery import (
    PutBack,
    PuttingBack,
    all_paused,
    heed_cancellation,
    put_back,
    when_reached,
)

__all__ = ["DeadLetters", "RedisStreams"]

_BEGIN = b"0-0"
_MOVED = 1000  # delayed messages that one script puts into the stream, at most
_AWAY = (NotConnectedError, TooLateError)
_PAUSE = 1.0  # seconds until a server that cannot answer is asked again

# Scripts, each of which the server runs as one step.
# A server without memory refuses the first command that writes, if the command can need memory: so such a
# command comes first, and a script writes all or nothing.
_NOW = """
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
"""
# KEYS: stream, other. ARGV: group, id. Ends the script if another worker has finished the message.
_IS_OURS = """
if #redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[2], ARGV[2], 1) == 0 then
  return 0
end
"""
_FINISHED = """
redis.call('XACK', KEYS[1], ARGV[1], ARGV[2])
redis.call('XDEL', KEYS[1], ARGV[2])
return 1
"""

# KEYS: stream, delayed messages. ARGV: group, id, message, seconds.
_LATER = f"""{_NOW}{_IS_OURS}
redis.call('ZADD', KEYS[2], now + ARGV[4], ARGV[3])
{_FINISHED}"""

# KEYS: stream, delayed messages. ARGV: number of messages. Puts the messages that are due into the stream.
_DUE = f"""{_NOW}
local due = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, ARGV[1])
for _, message in ipairs(due) do
  redis.call('XADD', KEYS[1], '*', 'data', message)
  redis.call('ZREM', KEYS[2], message)
end
return #due
"""

# KEYS: stream, dead letters. ARGV: group, id, message, reason.
_BURY = f"""{_IS_OURS}
redis.call('XADD', KEYS[2], '*', 'data', ARGV[3], 'reason', ARGV[4])
{_FINISHED}"""

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

# KEYS: stream. ARGV: group, name of a consumer, milliseconds. Deletes that consumer, and each consumer that
# has not called for so long; a consumer that has messages stays, since they would be lost with it.
_LEAVE = """
for _, fields in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local consumer = {}
  for number = 1, #fields, 2 do
    consumer[fields[number]] = fields[number + 1]
  end
  local ended = consumer.name == ARGV[2] or consumer.idle > tonumber(ARGV[3])
  if ended and consumer.pending == 0 then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], consumer.name)
  end
end
"""


class RedisStreams(PuttingBack, RedisStreamBroker):
    """taskiq-redis's stream broker, made to lose no message and to keep none.

    Up to 1.2.4 that one looks for what a dead worker left only after something new came, so that the last
    messages of a queue are stuck; it ends its worker when the server restarts, reads a hundred messages
    ahead, passes over what was sent before anybody opened it, and leaves those that are done with in the
    stream, with all that they say of a person. Here none of that is so. Needs Redis 6.2 or any Valkey.

    A message that is put back waits in the sorted set ``<queue_name>:later``. A message that used up its
    tries is in the stream ``<queue_name>:dead``, for ``loanasync dead-letters``.

    Args:
        url: Of the server: ``redis://``, or ``rediss://`` over TLS.
        redelivery: Seconds after which what was not acknowledged is delivered to another worker.
        queue_name: Name of the stream; nobody else may read it, since what is done with is deleted.
        options: As of ``taskiq_redis.RedisStreamBroker``.

    Example:
        >>> from loanasync.worker.redis import RedisStreams
        >>> RedisStreams("redis://127.0.0.1:6379").idle_timeout
        180000
    """

    def __init__(
        self, url: str, *, redelivery: float = 180.0, queue_name: str = "loanasync", **options: Any
    ) -> None:
        # Without driver_info no connection reads the version of redis-py from a file, in the event loop.
        settings = {"consumer_group_name": queue_name, "consumer_id": "0", "driver_info": None, **options}
        super().__init__(url, queue_name=queue_name, idle_timeout=round(redelivery * 1000), **settings)

    async def _declare_consumer_group(self) -> None:
        await when_reached(super()._declare_consumer_group, _AWAY)

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """Deliver what is new, and what a worker left; a server that cannot answer is asked again."""
        while not all_paused(self):
            try:
                await super()._declare_consumer_group()  # a server that lost its data has none
                await self._delete_consumers()
                async with aclosing(self._deliveries()) as deliveries:
                    async for delivery in deliveries:
                        yield delivery
            except RedisError as error:
                LOGGER.warning("the queue cannot be read (%s): asked again soon", type(error).__name__)
                await asyncio.sleep(_PAUSE)

    async def _deliveries(self) -> AsyncGenerator[AckableMessage, None]:
        pause = min(_PAUSE, self.idle_timeout / 4000)  # seconds between two looks for what was left
        cursor, due = _BEGIN, 0.0
        async with Redis(connection_pool=self.connection_pool) as redis:
            while not all_paused(self):
                heed_cancellation()
                if time.monotonic() >= due:
                    await self._run(redis, _DUE, "later", _MOVED)
                    cursor, found = await self._left(redis, cursor)
                    if cursor == _BEGIN:  # seen all of them
                        due = time.monotonic() + pause
                else:
                    found = await self._new(redis, pause)
                for number, members in found:
                    acknowledge = self._ack_generator(id=number, queue_name=self.queue_name)
                    if members:
                        # Without data it is none of ours; taskiq says so, and takes it off.
                        yield AckableMessage(data=members.get(b"data", b""), ack=acknowledge)
                    else:  # Redis before 7 tells of a message that is deleted already
                        await acknowledge()

    # One at a time, or those that wait here would be taken for left behind.
    async def _left(self, redis: Any, cursor: bytes) -> tuple[bytes, Any]:  # noqa: ANN401  (its types differ between its releases)
        cursor, found, *_ = await redis.xautoclaim(
            self.queue_name, self.consumer_group_name, self.consumer_name, self.idle_timeout, cursor, count=1
        )
        return cursor, found

    async def _new(self, redis: Any, within: float) -> Any:  # noqa: ANN401  (as above)
        fetched = await redis.xreadgroup(
            self.consumer_group_name,
            self.consumer_name,
            {self.queue_name: ">"},
            count=1,
            block=max(1, round(within * 1000)),
        )
        return fetched[0][1] if fetched else []

    def _ack_generator(self, id: str, queue_name: str) -> Callable[[], Awaitable[None]]:  # noqa: A002  (the name there)
        async def acknowledge() -> None:
            asked = put_back.get()
            try:
                async with Redis(connection_pool=self.connection_pool) as redis:
                    if asked is not None:
                        await self._put_back(redis, id, asked)
                        return
                    async with redis.pipeline() as both:
                        both.xack(queue_name, self.consumer_group_name, id)
                        both.xdel(queue_name, id)
                        await both.execute()
            except RedisError as error:  # it comes again, to the same result
                LOGGER.warning("a message is done with, and could not be taken off: %s", type(error).__name__)

        return acknowledge

    async def _put_back(self, redis: Any, number: str, asked: PutBack) -> None:  # noqa: ANN401  (see `_left`)
        tried = asked.tried + asked.is_counted
        mine = (self.consumer_group_name, number)
        if tried >= asked.tries.most:
            LOGGER.error(DEAD_LETTER, asked.task_id, asked.reason)
            await self._run(redis, _BURY, "dead", *mine, asked.with_tries(0), asked.reason)
            return
        delay = asked.delay(tried)
        LOGGER.info("%s: message %s is tried again in %.1f s", asked.reason, asked.task_id, delay)
        await self._run(redis, _LATER, "later", *mine, asked.with_tries(tried), delay)

    async def _run(self, redis: Any, script: str, beside: str, *arguments: str | bytes | float) -> int:  # noqa: ANN401  (see `_left`)
        names = [self.queue_name, f"{self.queue_name}:{beside}"]
        done: int = await redis.register_script(script)(keys=names, args=arguments)
        return done

    async def _delete_consumers(self, own: str = "") -> None:
        """Delete a consumer of this name, and the consumers of workers that were killed."""
        ended = (self.consumer_group_name, own, 2 * self.idle_timeout)
        async with Redis(connection_pool=self.connection_pool) as redis:
            await redis.register_script(_LEAVE)(keys=[self.queue_name], args=ended)

    async def shutdown(self) -> None:
        """Close the connections; a worker deletes its consumer first."""
        if self.is_worker_process:
            try:
                await self._delete_consumers(self.consumer_name)
            except RedisError as error:
                LOGGER.warning("this worker's consumer was not deleted (%s)", type(error).__name__)
        await super().shutdown()


class DeadLetters(DeadLettersBase):
    """The dead letters of a queue that is a `RedisStreams`.

    Args:
        url: Address of the server.
        name: Name of the stream.

    Raises:
        loanasync.worker.NoQueueError: There is no such stream; raised by `list` and `replay`.

    Example:
        >>> from loanasync.worker.redis import DeadLetters
        >>> async def replay_all(url):
        ...     async with DeadLetters(url) as letters:
        ...         return [await letters.replay(each) for each in await letters.list()]
    """

    def __init__(self, url: str, name: str = "loanasync") -> None:
        self._redis: Any = Redis.from_url(url, driver_info=None)  # as above
        self._names = [name, f"{name}:dead"]

    async def list(self) -> list[DeadLetter]:
        """Return all dead letters, oldest first."""
        await self._check()
        return [_letter(number, fields) for number, fields in await self._redis.xrange(self._names[1])]

    async def replay(self, letter: DeadLetter) -> bool:
        """Put a dead letter into the queue again, as a message that was never tried."""
        await self._check()
        script = self._redis.register_script(_REPLAY)
        return bool(await script(keys=self._names, args=[letter.id]))

    async def _check(self) -> None:
        if not await self._redis.exists(*self._names):
            raise NoQueueError(self._names[0])

    async def aclose(self) -> None:
        """Close the connection."""
        await self._redis.aclose()


def _letter(number: bytes, fields: dict[bytes, bytes]) -> DeadLetter:
    name = number.decode()
    task, task_id = named(fields.get(b"data", b""))
    since = int(name.partition("-")[0]) / 1000
    reason = fields.get(b"reason", b"").decode(errors="replace")
    return DeadLetter(id=name, since=since, reason=reason, task=task, task_id=task_id)
