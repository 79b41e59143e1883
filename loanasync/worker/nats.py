"""A queue in NATS JetStream, set up for approvals."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

from nats.errors import ConnectionReconnectingError, Error, NoRespondersError
from nats.errors import TimeoutError as NotYetError
from nats.js.api import ConsumerConfig, RetentionPolicy, StorageType, StreamConfig
from nats.js.errors import ServerError, ServiceUnavailableError
from taskiq import AckableMessage
from taskiq_nats import PullBasedJetStreamBroker

from loanasync._events import LOGGER
from loanasync.worker._cancelling import heed_cancellation
from loanasync.worker._starting import when_reached

__all__ = ["JetStream"]

_AWAY = (
    NotYetError,
    NoRespondersError,
    ConnectionReconnectingError,
    ServiceUnavailableError,
    ServerError,
)
_PULL = 2.0  # seconds of one question for a message: a server that restarted has forgotten older ones
_PAUSE = 1.0  # seconds until a server that cannot answer is asked again


class JetStream(PullBasedJetStreamBroker):
    """taskiq-nats's pull broker, whose stream is on the disk and keeps nothing that is done with.

    Left to its own, it would deliver again after 30 seconds, keep all messages for ever, give up a server
    that is away for two minutes, and wait without end for the answer of one that restarted.

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

    def __init__(
        self,
        servers: str | list[str],
        *,
        redelivery: float = 180.0,
        name: str = "loanasync",
        replicas: int = 1,
        **options: Any,
    ) -> None:
        super().__init__(
            servers,
            subject=name,
            stream_name=name,
            durable=name,
            stream_config=StreamConfig(
                retention=RetentionPolicy.WORK_QUEUE, storage=StorageType.FILE, num_replicas=replicas
            ),
            consumer_config=ConsumerConfig(durable_name=name, ack_wait=redelivery),
            **{"max_reconnect_attempts": -1, **options},
        )

    async def _add_or_reuse_stream(self) -> None:
        await when_reached(super()._add_or_reuse_stream, _AWAY)

    async def _startup_consumer(self) -> None:
        await when_reached(super()._startup_consumer, _AWAY)

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """Deliver what there is; a server that cannot answer is asked again."""
        while True:
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
                yield AckableMessage(data=each.data, ack=each.ack)

    async def _make_again(self) -> None:
        """A server that lost its data has neither stream nor consumer; on any other nothing changes."""
        with suppress(Error):
            await super()._add_or_reuse_stream()
            await self.js.add_consumer(self.stream_name, self.consumer_config)
