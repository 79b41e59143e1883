"""A queue in NATS JetStream, set up for approvals."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import ConnectionReconnectingError, Error, NoRespondersError
from nats.errors import TimeoutError as NotYetError
from nats.js.api import ConsumerConfig, RetentionPolicy, StorageType, StreamConfig
from nats.js.client import JetStreamContext
from nats.js.errors import BadRequestError, NotFoundError, ServerError, ServiceUnavailableError
from taskiq import AckableMessage, BrokerMessage
from taskiq_nats import PullBasedJetStreamBroker

from loanasync._log import LOGGER
from loanasync.worker.dead_letters import DEAD_LETTER, DeadLetter, DeadLettersBase, NoQueueError, named
from loanasync.worker.delivery import PuttingBack, all_paused, heed_cancellation, put_back, when_reached

__all__ = ["DeadLetters", "JetStream"]

_AWAY = (
    NotYetError,
    NoRespondersError,
    ConnectionReconnectingError,
    ServiceUnavailableError,
    ServerError,
)
_EXISTS = 10058  # error code: a stream of this name exists, with another configuration
_PULL = 2.0  # seconds of one question for a message: a server that restarted has forgotten older ones
_PAUSE = 1.0  # seconds until a server that cannot answer is asked again


class JetStream(PuttingBack, PullBasedJetStreamBroker):
    """taskiq-nats's pull broker, whose stream is on the disk and keeps nothing that is done with.

    Left to its own, it would deliver again after 30 seconds, keep all messages for ever, give up a server
    that is away for two minutes, and wait without end for the answer of one that restarted.

    A message that is put back is delivered again by the server after a delay, at most `max_deliver` times.
    Then it stays in the stream, and the server's advisory of it, which is kept in the stream ``<name>-dead``,
    makes it a dead letter for ``loanasync dead-letters``.

    Args:
        servers: One address such as ``nats://127.0.0.1:4222``, or several of a cluster.
        redelivery: Seconds after which what was not acknowledged is delivered to another worker.
        name: Of the stream, its subject and its consumer; nobody else may read it.
        replicas: In how many servers of a cluster the stream is kept.
        options: As of ``nats.connect``: ``user_credentials``, ``tls`` and so on.

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
        own = {"max_reconnect_attempts": -1, "error_cb": _Errors().heard}
        super().__init__(
            servers,
            subject=name,
            stream_name=name,
            durable=name,
            stream_config=StreamConfig(
                retention=RetentionPolicy.WORK_QUEUE, storage=StorageType.FILE, num_replicas=replicas
            ),
            consumer_config=ConsumerConfig(durable_name=name, ack_wait=redelivery),
            **{**own, **options},
        )
        self._dead_letters = StreamConfig(
            name=f"{name}-dead",
            subjects=[f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{name}.{name}"],
            storage=StorageType.FILE,
            num_replicas=replicas,
        )

    def limit(self, most: int) -> None:
        """Have the server deliver a message as often as the task with the most tries allows."""
        assert self.consumer_config is not None  # noqa: S101  (for the type checkers)
        self.consumer_config.max_deliver = max(most, self.consumer_config.max_deliver or 0)

    async def _add_or_reuse_stream(self) -> None:
        await when_reached(self._add_streams, _AWAY)

    async def _add_streams(self) -> None:
        await super()._add_or_reuse_stream()
        try:
            await self.js.add_stream(self._dead_letters)
        except BadRequestError as error:  # another stream has the advisories, for one
            if error.err_code != _EXISTS:
                LOGGER.warning("dead letters will not be listed (%s)", error.description)

    async def _startup_consumer(self) -> None:
        await when_reached(self._add_consumer, _AWAY)

    async def _add_consumer(self) -> None:
        if self.is_worker_process:
            await super()._startup_consumer()
            return
        # A checkout may know nothing of the tasks, and must not lift the limit of deliveries.
        self.consumer = await self.js.pull_subscribe(
            self.subject, self.durable, stream=self.stream_name, config=self.consumer_config
        )

    async def kick(self, message: BrokerMessage) -> None:
        """Send a message; its labels are headers, too, which NATS takes as text only."""
        headers = {name: " ".join(str(value).split()) for name, value in message.labels.items()}
        await self.js.publish(self.subject, payload=message.message, headers=headers)

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """Deliver what there is; a server that cannot answer is asked again."""
        while not all_paused(self):
            heed_cancellation()
            try:
                found = await self.consumer.fetch(timeout=_PULL)
            except NotYetError:
                continue
            except Error as error:
                LOGGER.warning("the queue cannot be read (%s): asked again soon", type(error).__name__)
                await asyncio.sleep(_PAUSE)
                await self._make_again()
                continue
            for each in found:
                yield AckableMessage(data=each.data, ack=partial(_finish, each, self._most))

    @property
    def _most(self) -> int | None:
        return None if self.consumer_config is None else self.consumer_config.max_deliver

    async def _make_again(self) -> None:
        """A server that lost its data has neither stream nor consumer; on any other nothing changes."""
        with suppress(Error):
            await self._add_streams()
            await self.js.add_consumer(self.stream_name, self.consumer_config)


async def _finish(delivery: Msg, most: int | None) -> None:
    asked = put_back.get()
    if asked is None:
        await delivery.ack()
        return
    tried = delivery.metadata.num_delivered
    delay = asked.delay(tried)
    if most is not None and tried >= most:
        LOGGER.error(DEAD_LETTER, asked.task_id, asked.reason)
    else:
        LOGGER.info("%s: message %s is tried again in %.1f s", asked.reason, asked.task_id, delay)
    await delivery.nak(delay)


class _Errors:
    """A log of the errors that nats-py reports: each kind once in a row, without traceback."""

    def __init__(self) -> None:
        self._last = ""

    async def heard(self, error: Exception) -> None:
        kind = type(error).__name__
        if kind != self._last:
            self._last = kind
            LOGGER.warning("the connection to NATS: %s", kind)


class DeadLetters(DeadLettersBase):
    """The dead letters of a queue that is a `JetStream`.

    Args:
        servers: One address, or several of a cluster.
        name: Name of the stream.
        options: Arguments of ``nats.connect``, such as ``user_credentials`` and ``tls``.

    Raises:
        loanasync.worker.NoQueueError: There is no such stream; raised by `list` and `replay`.

    Example:
        >>> from loanasync.worker.nats import DeadLetters
        >>> async def replay_all(url):
        ...     async with DeadLetters(url) as letters:
        ...         return [await letters.replay(each) for each in await letters.list()]
    """

    def __init__(self, servers: str | list[str], name: str = "loanasync", **options: Any) -> None:
        self._servers = servers
        self._name = name
        own = {"allow_reconnect": False, "max_reconnect_attempts": 1, "error_cb": _Errors().heard}
        self._options = {**own, **options}
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
            with suppress(NotFoundError):  # replayed, or finished by a worker that was late
                found.append(await self._letter(stream, number))
        return found

    async def _letter(self, stream: JetStreamContext, number: int) -> DeadLetter:
        advisory = json.loads((await stream.get_msg(f"{self._name}-dead", number)).data or b"{}")
        message = await stream.get_msg(self._name, advisory["stream_seq"])
        task, task_id = named(message.data or b"")
        return DeadLetter(
            id=str(number),
            since=datetime.fromisoformat(advisory["timestamp"][:19] + "+00:00").timestamp(),
            reason=f"delivered {advisory['deliveries']} times",
            task=task,
            task_id=task_id,
        )

    async def replay(self, letter: DeadLetter) -> bool:
        """Put a dead letter into the queue again, as a message that was never tried."""
        stream = await self._stream()
        dead, number = f"{self._name}-dead", int(letter.id)
        try:
            advisory = json.loads((await stream.get_msg(dead, number)).data or b"{}")
            old = advisory["stream_seq"]
            message = await stream.get_msg(self._name, old)
        except NotFoundError:
            return False
        # Under one id, so that two replays at the same time are one message.
        headers = {"Nats-Msg-Id": f"{self._name} {message.time} {old}"}
        await stream.publish(self._name, message.data or b"", headers=headers)
        with suppress(NotFoundError):
            await stream.delete_msg(self._name, old)
            await stream.delete_msg(dead, number)
        return True

    async def aclose(self) -> None:
        """Close the connection."""
        await self._client.close()
