"""Redelivery of messages: tries, delays, paused tasks, and the base class of the brokers of this package."""

import asyncio
import time
from abc import abstractmethod
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from contextvars import ContextVar
from functools import cached_property, partial
from logging import ERROR, INFO, WARNING
from typing import Any, ClassVar

from attrs import field, frozen
from taskiq import AckableMessage, AsyncBroker, TaskiqMessage

from loanasync._telemetry.log import log
from loanasync._telemetry.spans import Metrics, metrics_for
from loanasync.errors import ConfigurationError

_START_LIMIT = 30.0  # seconds that a restarted server may need to load its data
_PAUSE = 1.0  # seconds between two attempts while the server is unavailable
_BACKLOG_INTERVAL = 5.0  # seconds between two readings of the length of the queue


@frozen
class Tries:
    """The maximum number of tries of a message, and the delays between them in seconds."""

    maximum: int
    base: float
    cap: float

    def __attrs_post_init__(self) -> None:
        if self.maximum < 1:
            raise ConfigurationError("tries", "must be an int of at least 1")
        if not 0 < self.base <= self.cap:
            raise ConfigurationError("base", "must be a number of seconds greater than 0 and at most cap")

    def delay(self, tried: int) -> float:
        """Return the seconds to wait after this number of tries."""
        return float(min(self.cap, self.base * 2 ** min(tried - 1, 30)))  # more could overflow a float


@frozen
class Requeue:
    """A request to put a message back into the queue, or into the dead letters.

    Args:
        task_id: Id of the task, for the log.
        reason: The reason, for a person to read; nothing personal.
        delay: Seconds until the next delivery; None for a dead letter.
        message: The message with its new number of tries; None if it stays as it is.
    """

    task_id: str
    reason: str
    delay: float | None = None
    message: TaskiqMessage | None = field(default=None, repr=False)


# The `Requeue` of the message that is being processed; None if its task has a result. A taskiq task cannot
# access the delivery of its message. But taskiq runs both the task and the acknowledgement in one asyncio
# task. So the task sets this variable, and the broker reads it when it acknowledges the message.
pending_requeue: ContextVar[Requeue | None] = ContextVar("loanasync_pending_requeue", default=None)


def paused_tasks(broker: AsyncBroker) -> set[str]:
    """Return the names of the tasks that are paused in this worker, as a set that can be changed."""
    names: set[str] = broker.state.setdefault("loanasync_paused", set())
    return names


def all_paused(broker: AsyncBroker) -> bool:
    """Return True if this broker has tasks and all of them are paused."""
    tasks = broker.get_all_tasks()
    return bool(tasks) and paused_tasks(broker).issuperset(tasks)


class QueueBroker(AsyncBroker):
    """Base class of brokers that can put a message back with a delay, and that store dead letters.

    A delivery is what `_fetch` returns with the content of a message. Each operation stores the message
    in its new place before it removes it from the old one.
    """

    redelivery: float  # seconds after which a message that was not acknowledged is delivered again
    _queue: str  # its name
    _errors: ClassVar[tuple[type[Exception], ...]]  # of the server's library

    @cached_property
    def metrics(self) -> Metrics:
        """The metrics of the last client with a task, which `register` sets."""
        return metrics_for(None)

    @abstractmethod
    async def _open(self) -> None:
        """Connect, and create what the server does not have. This can be repeated."""

    @abstractmethod
    async def _fetch(self) -> Sequence[tuple[Any, bytes]]:
        """Wait a moment for messages, and return their deliveries and contents."""

    @abstractmethod
    async def _delete(self, delivery: Any) -> None:  # noqa: ANN401  (each broker has its own type)
        """Delete a message that is finished."""

    @abstractmethod
    async def _put_back(self, delivery: Any, data: bytes, delay: float) -> None:  # noqa: ANN401  (see `_delete`)
        """Put a message back into the queue, for delivery after some seconds."""

    @abstractmethod
    async def _bury(self, delivery: Any, data: bytes, reason: str) -> None:  # noqa: ANN401  (see `_delete`)
        """Put a message into the dead letters."""

    @abstractmethod
    async def _backlog(self) -> int:
        """Return the number of messages in the queue that are not finished."""

    @abstractmethod
    async def _owner(self, task: str, owner: str) -> str:
        """Return the owner of a task in this queue. The first caller becomes the owner."""

    async def owner(self, task: str, owner: str) -> str | None:
        """Return what `_owner` returns; None if the queue cannot be used."""
        try:
            return await self._owner(task, owner)
        except self._errors as error:
            log(
                WARNING, "the owner of task %s cannot be read from the queue (%s)", task, type(error).__name__
            )
            return None

    async def startup(self) -> None:
        """Open the queue. A worker opens it in `listen`, because taskiq can stop only `listen`.

        Raises:
            TimeoutError: The server was unavailable for 30 seconds.
        """
        await AsyncBroker.startup(self)  # that of taskiq's brokers fails if the server is unavailable
        if not self.is_worker_process:
            async with asyncio.timeout(_START_LIMIT):
                while not await self._is_open():
                    pass

    async def _is_open(self) -> bool:
        """Open the queue, and return True. If the server is unavailable, wait and return False."""
        raise_lost_cancellation()
        try:
            await self._open()
        except self._errors as error:
            await _wait_after(error)
            return False
        return True

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """Yield the messages of the queue. While the server is unavailable, try again."""
        is_open, next_reading = False, 0.0
        while not all_paused(self):
            # Open it again after an error: the server may have lost its data.
            is_open = is_open or await self._is_open()
            if not is_open:
                continue
            if (now := time.monotonic()) >= next_reading:
                next_reading = now + _BACKLOG_INTERVAL
                await self._read_backlog()
            raise_lost_cancellation()
            try:
                fetched = await self._fetch()
            except self._errors as error:
                is_open, next_reading = False, 0.0
                self.metrics.backlog.counts.pop(self._queue, None)
                await _wait_after(error)
                continue
            for delivery, data in fetched:
                yield AckableMessage(data=data, ack=partial(self._acknowledge, delivery, data))

    async def _read_backlog(self) -> None:
        """Set the metric; without a point if the server does not state the length of the queue."""
        counts = self.metrics.backlog.counts
        counts.pop(self._queue, None)
        with suppress(*self._errors):
            counts[self._queue] = await self._backlog()

    async def _acknowledge(self, delivery: object, data: bytes) -> None:
        requeue = pending_requeue.get()
        try:
            if requeue is None:
                await self._delete(delivery)
                return
            if requeue.message is not None:
                data = self.formatter.dumps(requeue.message).message
            if requeue.delay is None:
                await self._bury(delivery, data, requeue.reason)
                self.metrics.dead_letters += 1
                text = "message %s is a dead letter (%s): list and replay it with loanasync dead-letters"
                log(ERROR, text, requeue.task_id, requeue.reason)
            else:
                await self._put_back(delivery, data, requeue.delay)
                text = "%s: trying message %s again in %.1f s"
                log(INFO, text, requeue.reason, requeue.task_id, requeue.delay)
        except self._errors as error:  # the ledger has the result
            text = "a message could not be acknowledged (%s): it will be delivered again"
            log(WARNING, text, type(error).__name__)


async def _wait_after(error: Exception) -> None:
    log(WARNING, "the queue is not available (%s): trying again", type(error).__name__)
    await asyncio.sleep(_PAUSE)


def raise_lost_cancellation() -> None:
    """Raise CancelledError if this task was cancelled and the exception was swallowed.

    On Python 3.11, `asyncio.wait_for` swallows a cancellation that arrives when the awaited call ends. The
    Redis and NATS clients use it. Without this check the broker would listen forever, and the worker would
    never stop.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
