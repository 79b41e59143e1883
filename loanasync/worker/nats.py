"""A taskiq broker and its dead letters in NATS JetStream."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import suppress
from datetime import datetime
from functools import partial
from logging import ERROR, INFO, WARNING
from typing import Any

from loanasync._log import log
from loanasync.worker.dead_letters import (
    DEAD_LETTER,
    NEEDS_EXTRA,
    DeadLetter,
    DeadLettersBase,
    NoQueueError,
    task_of,
)
from loanasync.worker.delivery import (
    RequeueBroker,
    all_paused,
    pending_requeue,
    raise_lost_cancellation,
    retry_while_unavailable,
)

try:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.errors import ConnectionReconnectingError, Error, NoRespondersError
    from nats.errors import TimeoutError as NatsTimeoutError
    from nats.js.api import ConsumerConfig, RetentionPolicy, StorageType, StreamConfig
    from nats.js.client import JetStreamContext
    from nats.js.errors import BadRequestError, NotFoundError, ServerError, ServiceUnavailableError
    from taskiq import AckableMessage, AsyncBroker, BrokerMessage
    from taskiq_nats import PullBasedJetStreamBroker
except ImportError as _error:
    raise ImportError(NEEDS_EXTRA.format(__name__)) from _error

__all__ = ["DeadLetters", "JetStream"]

_UNAVAILABLE = (
    NatsTimeoutError,
    NoRespondersError,
    ConnectionReconnectingError,
    ServiceUnavailableError,
    ServerError,
)
_NAME_IN_USE = 10058  # error code: a stream of this name exists, with another configuration
_FETCH_TIMEOUT = 2.0  # seconds of one fetch; a server that was restarted has lost the pending fetches
_PAUSE = 1.0  # seconds between two attempts while the server is unavailable


class JetStream(RequeueBroker, PullBasedJetStreamBroker):
    """The pull broker of taskiq-nats, configured to lose no message and to delete messages that are done.

    Its stream is stored on the disk. Unlike taskiq-nats with its defaults, it does not redeliver after 30
    seconds, deletes acknowledged messages, keeps trying to reconnect to the server, and does not wait forever
    for a response after the server was restarted.

    If a worker puts a message back, the server redelivers it after a delay. The `tries` of `register` limit
    the number of deliveries. After the last one the message stays in the stream as a dead letter, which
    ``loanasync dead-letters`` lists. The server's advisory about it is stored in the stream ``<name>-dead``.

    Args:
        servers: One address such as ``nats://127.0.0.1:4222``, or the addresses of a cluster.
        redelivery: Seconds after which a message that was not acknowledged is delivered to another worker.
        name: Name of the stream, its subject and its consumer. The stream must have no other consumers.
        replicas: Number of servers of a cluster that store the stream.
        options: Arguments of ``nats.connect``, such as ``user_credentials`` and ``tls``.

    Example:
        >>> from loanasync.worker.nats import JetStream
        >>> JetStream("nats://127.0.0.1:4222").consumer_config.ack_wait
        180.0
    """

    consumer: JetStreamContext.PullSubscription

    def __init__(
        self,
        servers: str | list[str],
        *,
        redelivery: float = 180.0,
        name: str = "loanasync",
        replicas: int = 1,
        **options: Any,
    ) -> None:
        defaults = {"max_reconnect_attempts": -1, "error_cb": _ErrorLog().log}
        super().__init__(
            servers,
            subject=name,
            stream_name=name,
            durable=name,
            stream_config=StreamConfig(
                name=name,
                subjects=[name],
                retention=RetentionPolicy.WORK_QUEUE,
                storage=StorageType.FILE,
                num_replicas=replicas,
            ),
            consumer_config=ConsumerConfig(durable_name=name, ack_wait=redelivery),
            **{**defaults, **options},
        )
        self._dead_letters = StreamConfig(
            name=f"{name}-dead",
            subjects=[f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{name}.{name}"],
            storage=StorageType.FILE,
            num_replicas=replicas,
        )

    def set_delivery_limit(self, maximum: int) -> None:
        """See `RequeueBroker.set_delivery_limit`. The tasks of a stream share the highest limit."""
        assert self.consumer_config is not None  # noqa: S101  (for the type checkers)
        self.consumer_config.max_deliver = max(maximum, self.consumer_config.max_deliver or 0)

    async def startup(self) -> None:
        """Connect, and create the streams and the consumer. If the server is unavailable, try again."""
        # Not that of PullBasedJetStreamBroker, which fails if the server is unavailable.
        await AsyncBroker.startup(self)
        await self.client.connect(self.servers, **self.connection_kwargs)
        self.js: JetStreamContext = self.client.jetstream()
        await retry_while_unavailable(self._add_streams, _UNAVAILABLE)
        await retry_while_unavailable(self._add_consumer, _UNAVAILABLE)

    async def _add_streams(self) -> None:
        await self._add_stream(self.stream_config)
        try:
            await self._add_stream(self._dead_letters)
        except BadRequestError as error:  # for example because another stream has the same subject
            log(
                WARNING,
                "dead letters will not be listed: their stream cannot be created (%s)",
                error.description,
            )

    async def _add_stream(self, config: StreamConfig) -> None:
        try:
            await self.js.add_stream(config)
        except BadRequestError as error:
            if error.err_code != _NAME_IN_USE:
                raise

    async def _add_consumer(self) -> None:
        if self.is_worker_process:  # a sender may lack the tasks, and must not reset the limit of deliveries
            await self.js.add_consumer(self.stream_name, self.consumer_config)
        self.consumer = await self.js.pull_subscribe(
            self.subject, self.durable, stream=self.stream_name, config=self.consumer_config
        )

    async def kick(self, message: BrokerMessage) -> None:
        """Send a message, with its labels as headers. NATS accepts only single-line text as a header."""
        headers = {name: " ".join(str(value).split()) for name, value in message.labels.items()}
        await self.js.publish(self.subject, payload=message.message, headers=headers)

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """Yield the messages of the stream. While the server is unavailable, try again."""
        while not all_paused(self):
            raise_lost_cancellation()
            try:
                found = await self.consumer.fetch(timeout=_FETCH_TIMEOUT)
            except NatsTimeoutError:
                continue
            except Error as error:
                log(WARNING, "the queue cannot be read (%s): trying again", type(error).__name__)
                await asyncio.sleep(_PAUSE)
                await self._recreate()
                continue
            for each in found:
                yield AckableMessage(data=each.data, ack=partial(_finish, each, self._max_deliveries))

    @property
    def _max_deliveries(self) -> int | None:
        return None if self.consumer_config is None else self.consumer_config.max_deliver

    async def _recreate(self) -> None:
        """Create the stream and the consumer again if the server has lost its data."""
        with suppress(Error):
            await self._add_streams()
            await self.js.add_consumer(self.stream_name, self.consumer_config)


async def _finish(delivery: Msg, maximum: int | None) -> None:
    requeue = pending_requeue.get()
    if requeue is None:
        await delivery.ack()
        return
    tried = delivery.metadata.num_delivered
    delay = requeue.delay(tried)
    await delivery.nak(delay)
    if maximum is not None and tried >= maximum:
        log(ERROR, DEAD_LETTER, requeue.task_id, requeue.reason)
    else:
        log(INFO, "%s: trying message %s again in %.1f s", requeue.reason, requeue.task_id, delay)


class _ErrorLog:
    """Logs the errors that nats-py reports: repeated errors of one type once, without traceback."""

    def __init__(self) -> None:
        self._last = ""

    async def log(self, error: Exception) -> None:
        kind = type(error).__name__
        if kind != self._last:
            self._last = kind
            log(WARNING, "the connection to NATS failed (%s): reconnecting", kind)


class DeadLetters(DeadLettersBase):
    """The dead letters of a `JetStream` queue.

    Args:
        servers: One address, or the addresses of a cluster.
        name: Name of the stream.
        options: Arguments of ``nats.connect``, such as ``user_credentials`` and ``tls``.

    Raises:
        loanasync.worker.NoQueueError: The stream does not exist; raised by `list`.

    Example:
        >>> from loanasync.worker.nats import DeadLetters
        >>> async def replay_all(url):
        ...     async with DeadLetters(url) as letters:
        ...         return [await letters.replay(each) for each in await letters.list()]
    """

    def __init__(self, servers: str | list[str], name: str = "loanasync", **options: Any) -> None:
        self._servers = servers
        self._name = name
        defaults = {"allow_reconnect": False, "max_reconnect_attempts": 1, "error_cb": _ErrorLog().log}
        self._options = {**defaults, **options}
        self._client = Client()

    async def _stream(self) -> JetStreamContext:
        if not self._client.is_connected:
            await self._client.connect(self._servers, **self._options)
        return self._client.jetstream()

    async def list(self) -> list[DeadLetter]:
        """Return all dead letters, oldest first."""
        stream = await self._stream()
        try:
            state = (await stream.stream_info(f"{self._name}-dead")).state
        except NotFoundError:
            raise NoQueueError(self._name) from None
        found = []
        for number in range(max(1, state.first_seq), state.last_seq + 1):
            with suppress(NotFoundError):  # replayed, or acknowledged late by a worker
                found.append(await self._letter(stream, number))
        return found

    async def _letter(self, stream: JetStreamContext, number: int) -> DeadLetter:
        advisory = json.loads((await stream.get_msg(f"{self._name}-dead", number)).data or b"{}")
        message = await stream.get_msg(self._name, advisory["stream_seq"])
        task, task_id = task_of(message.data or b"")
        return DeadLetter(
            id=str(number),
            since=datetime.fromisoformat(advisory["timestamp"][:19] + "+00:00").timestamp(),
            reason=f"delivered {advisory['deliveries']} times",
            task=task,
            task_id=task_id,
        )

    async def replay(self, letter: DeadLetter) -> bool:
        """Put a dead letter back into the queue, with all its tries.

        Returns:
            True if it was put back; False if another call has replayed it.
        """
        stream = await self._stream()
        dead, number = f"{self._name}-dead", int(letter.id)
        try:
            advisory = json.loads((await stream.get_msg(dead, number)).data or b"{}")
            old = advisory["stream_seq"]
            message = await stream.get_msg(self._name, old)
        except NotFoundError:
            return False
        # With the same message id, so that the server accepts one of two concurrent replays.
        headers = {"Nats-Msg-Id": f"{self._name} {message.time} {old}"}
        await stream.publish(self._name, message.data or b"", headers=headers)
        with suppress(NotFoundError):
            await stream.delete_msg(self._name, old)
            await stream.delete_msg(dead, number)
        return True

    async def aclose(self) -> None:
        """Close the connection."""
        await self._client.close()
