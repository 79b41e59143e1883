"""A taskiq broker and its dead letters in NATS JetStream."""

from asyncio import CancelledError
from contextlib import suppress
from functools import partial
from hashlib import sha256
from logging import WARNING
from typing import Any, ClassVar

from loanasync._telemetry.log import log
from loanasync.errors import ConfigurationError
from loanasync.worker.dead_letters import NEEDS_EXTRA, DeadLetter, DeadLettersBase, NoQueueError, letter_of

try:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.errors import Error
    from nats.errors import TimeoutError as NatsTimeoutError
    from nats.js.api import ConsumerConfig, RawStreamMsg, RetentionPolicy, StorageType, StreamConfig
    from nats.js.client import JetStreamContext
    from nats.js.errors import APIError, BadRequestError, NotFoundError
    from taskiq import AsyncBroker, BrokerMessage
    from taskiq_nats import PullBasedJetStreamBroker

    from loanasync.worker.delivery import QueueBroker, raise_lost_cancellation
except ImportError as _error:
    raise ImportError(NEEDS_EXTRA.format(__name__)) from _error

__all__ = ["DeadLetters", "JetStream"]

_NAME_IN_USE = 10058  # error code: a stream of this name exists, with another configuration
_FETCH_TIMEOUT = 2.0  # seconds of one fetch; a server that was restarted has lost the pending fetches
_DELAY = "Loanasync-Delay"  # header: seconds to wait after the first delivery
_NOT_DELETED = 10057  # error of the server for a message that is not there
_REASON = "Loanasync-Reason"  # header of a dead letter
_IF_FIRST = "Nats-Expected-Last-Subject-Sequence"  # header: publish only if the subject has this number
_LIMITS = ("max_age", "max_msgs", "max_bytes", "max_msgs_per_subject")  # of a stream
_LONGEST = 86_400.0  # seconds of a delay; the server redelivers at once after one that is too long


class JetStream(QueueBroker, PullBasedJetStreamBroker):
    """The pull broker of taskiq-nats, configured to lose no message and to delete messages that are done.

    Its stream is stored on the disk. Unlike taskiq-nats with its defaults, it does not redeliver after 30
    seconds, deletes acknowledged messages, keeps trying to reconnect to the server, and does not wait forever
    for a response after the server was restarted.

    If a worker puts a message back, the server redelivers it after a delay. A message that used up its tries
    is in the stream ``<name>-dead``, which ``loanasync dead-letters`` lists.

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
    _errors: ClassVar = (Error,)

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
        stored: dict[str, Any] = {"storage": StorageType.FILE, "num_replicas": replicas}
        kept = {"retention": RetentionPolicy.LIMITS, **stored}
        super().__init__(
            servers,
            subject=name,
            stream_name=name,
            durable=name,
            stream_config=StreamConfig(
                name=name, subjects=[name], retention=RetentionPolicy.WORK_QUEUE, **stored
            ),
            consumer_config=ConsumerConfig(durable_name=name, ack_wait=redelivery),
            **{**defaults, **options},
        )
        self.redelivery: float = redelivery
        self._queue = name
        self.js: JetStreamContext = self.client.jetstream()
        self._dead, self._owners = f"{name}-dead", f"{name}-owners"
        self._streams = [
            self.stream_config,
            StreamConfig(name=self._dead, subjects=[self._dead], **kept),
            StreamConfig(name=self._owners, subjects=[f"{self._owners}.*"], **kept),
        ]

    async def _open(self) -> None:
        if not (self.client.is_connected or self.client.is_reconnecting):
            await self.client.connect(self.servers, **self.connection_kwargs)
            self.consumer = await self.js.pull_subscribe_bind(self.durable, self.stream_name)
        steps: list[Any] = [partial(self.js.add_stream, each) for each in self._streams]
        for create in (*steps, partial(self.js.add_consumer, self.stream_name, self.consumer_config)):
            try:
                await create()
            except BadRequestError as error:  # for example because another stream has the same subject
                if error.err_code != _NAME_IN_USE:
                    raise ConfigurationError("name", f"cannot be used: {error.description}") from None
        for each in self._streams:
            _check_settings(each, (await self.js.stream_info(str(each.name))).config)

    async def _backlog(self) -> int:
        return (await self.js.stream_info(self._queue)).state.messages

    async def _owner(self, task: str, owner: str) -> str:
        subject = f"{self._owners}.{sha256(task.encode()).hexdigest()[:16]}"
        with suppress(BadRequestError):  # it has one already
            await self.js.publish(subject, owner.encode(), headers={_IF_FIRST: "0"})
        stored = await self.js.get_last_msg(self._owners, subject)
        return (stored.data or b"").decode()

    async def kick(self, message: BrokerMessage) -> None:
        """Send a message without headers: NATS accepts only single-line text there."""
        await self.js.publish(self.subject, message.message)

    async def _fetch(self) -> list[tuple[Msg, bytes]]:
        found: list[Msg] = []
        with suppress(NatsTimeoutError):
            found = await self.consumer.fetch(timeout=_FETCH_TIMEOUT)
        due = []
        for each in found:
            delay = _seconds((each.headers or {}).get(_DELAY, ""))
            if delay and each.metadata.num_delivered == 1:
                await each.nak(delay)
            else:
                due.append((each, each.data))
        return due

    async def _delete(self, delivery: Msg) -> None:
        await delivery.ack()

    async def _put_back(self, delivery: Msg, data: bytes, delay: float) -> None:
        if data == delivery.data:
            await delivery.nak(delay)
        else:
            await self._replace(delivery, self.subject, data, {_DELAY: str(delay)})

    async def _bury(self, delivery: Msg, data: bytes, reason: str) -> None:
        await self._replace(delivery, self._dead, data, {_REASON: reason})

    async def shutdown(self) -> None:
        """Close the client, then the connection. Without a server, nats-py may raise CancelledError."""
        try:
            await AsyncBroker.shutdown(self)
        finally:
            if self.client.is_connected or self.client.is_connecting or self.client.is_reconnecting:
                with suppress(Error, CancelledError):
                    await self.client.close()
        raise_lost_cancellation()

    async def _replace(self, delivery: Msg, subject: str, data: bytes, headers: dict[str, str]) -> None:
        """Publish a message, then acknowledge the one that it replaces."""
        replaced = delivery.metadata
        # The server drops a second message with this id, if the acknowledgement is lost.
        headers["Nats-Msg-Id"] = f"{replaced.timestamp} {replaced.sequence.stream}"
        await self.js.publish(subject, data, headers=headers)
        await delivery.ack()


def _check_settings(wanted: StreamConfig, found: StreamConfig) -> None:
    """Check the settings of a stream that existed before.

    Raises:
        ConfigurationError: It may lose messages, or keep those that are done.
    """
    wrong = [name for name in ("retention", "storage") if getattr(found, name) != getattr(wanted, name)]
    wrong += [name for name in _LIMITS if (getattr(found, name) or 0) > 0]
    wrong += ["num_replicas"] if (found.num_replicas or 1) < (wanted.num_replicas or 1) else []
    if wrong:
        text = f"is a stream with other settings, which you must change: {', '.join(wrong)}"
        raise ConfigurationError("name", text)


def _seconds(text: str) -> float:
    """Return the seconds in a header; 0 for other text, which anyone may write to the stream."""
    with suppress(ValueError):
        return min(max(0.0, float(text)), _LONGEST)
    return 0.0


class _ErrorLog:
    """Logs the errors that nats-py reports: repeated errors of one type once, without traceback."""

    _last = ""

    async def log(self, error: Exception) -> None:
        kind = type(error).__name__
        if kind != self._last:
            self._last = kind
            log(WARNING, "the connection to NATS failed (%s): reconnecting", kind)
        raise_lost_cancellation()  # while it connects, nats-py may swallow a cancellation and try for ever


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
        self._name, self._dead = name, f"{name}-dead"
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
            state = (await stream.stream_info(self._dead)).state
        except NotFoundError:
            raise NoQueueError(self._name) from None
        found = []
        for number in range(max(1, state.first_seq), state.last_seq + 1):
            with suppress(NotFoundError):  # replayed
                found.append(_letter(number, await stream.get_msg(self._dead, number)))
        return found

    async def replay(self, letter: DeadLetter) -> bool:
        """Put a dead letter back into the queue, with all its tries.

        Returns:
            True if it was put back; False if another call has replayed it.
        """
        stream, number = await self._stream(), int(letter.id)
        try:
            message = await stream.get_msg(self._dead, number)
        except NotFoundError:
            return False
        # With the same message id, so that the server accepts one of two concurrent replays.
        headers = {"Nats-Msg-Id": f"{self._dead} {message.time} {number}"}
        await stream.publish(self._name, message.data or b"", headers=headers)
        with suppress(NotFoundError):
            await stream.delete_msg(self._dead, number)
        return True

    async def delete(self, letter: DeadLetter) -> bool:
        """Delete a dead letter; return False if it is not there any more."""
        stream = await self._stream()
        try:
            return await stream.delete_msg(self._dead, int(letter.id))
        except APIError as error:
            if isinstance(error, NotFoundError) or error.err_code == _NOT_DELETED:
                return False
            raise

    async def aclose(self) -> None:
        """Close the connection."""
        await self._client.close()


def _letter(number: int, message: RawStreamMsg) -> DeadLetter:
    since = 0.0 if message.time is None else message.time.timestamp()
    return letter_of(str(number), since, (message.headers or {}).get(_REASON, ""), message.data or b"")
