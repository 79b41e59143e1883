"""The taskiq task that requests approvals, its middleware, and its redelivery after errors."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from logging import ERROR, INFO, WARNING
from secrets import token_hex
from typing import Annotated, Any

from attrs import frozen
from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from taskiq import (
    AsyncBroker,
    AsyncTaskiqDecoratedTask,
    BrokerMessage,
    Context,
    TaskiqDepends,
    TaskiqEvents,
    TaskiqMessage,
    TaskiqMiddleware,
    TaskiqResult,
    TaskiqState,
)
from taskiq.abc.formatter import TaskiqFormatter
from taskiq.acks import AcknowledgeType
from taskiq.exceptions import NoResultError, SendTaskError
from taskiq.kicker import AsyncKicker

from loanasync._client import LoanClient
from loanasync._log import log
from loanasync.errors import CircuitOpenError, ConfigurationError, LoanError
from loanasync.worker.delivery import QueueBroker, Requeue, Tries, all_paused, paused_tasks, pending_requeue
from loanasync.worker.handler import TaskResult, handle, next_step, required_ledger, task_result

_trace_context = TraceContextTextMapPropagator()
_TRIES_LABEL = "loanasync-tried"  # label of a message: number of tries so far
_NATS_ACK_WAIT = 30.0  # seconds; default of the NATS server


class _MessageMiddleware(TaskiqMiddleware):
    """Adds the sender's trace to messages of this task, and controls their acknowledgement."""

    def __init__(self, name: str, tries: Tries) -> None:
        super().__init__()
        self._name = name
        self._tries = tries

    def pre_send(self, message: TaskiqMessage) -> TaskiqMessage:
        """Add the sender's trace, unless the message already has one."""
        if message.task_name == self._name and "traceparent" not in message.labels:
            _trace_context.inject(message.labels)
        return message

    def pre_execute(self, message: TaskiqMessage) -> TaskiqMessage:
        """Acknowledge the message after its result was saved, whatever the worker's options are."""
        if message.task_name == self._name:
            message.labels["ack_type"] = AcknowledgeType.WHEN_SAVED.value
            if isinstance(self.broker, QueueBroker):  # the task resets this when it has a result
                pending_requeue.set(_after_try(message, "its task failed", self._tries))
        return message

    def post_execute(self, message: TaskiqMessage, result: TaskiqResult[Any]) -> None:
        """Save no result for a task that failed or was cancelled: its message is delivered again."""
        if message.task_name == self._name and result.error is not None and pending_requeue.get() is not None:
            result.error = NoResultError()


class _SafeFormatter(TaskiqFormatter):
    """Wraps the formatter of a broker so that an unreadable message is neither logged nor lost.

    taskiq itself logs an unreadable message with its personal data, and acknowledges it. With a broker of
    this package, the message becomes a dead letter. With any other broker, an empty message takes its place,
    which ends with the status ``rejected``.
    """

    def __init__(self, broker: AsyncBroker, name: str, tries: Tries) -> None:
        self._broker = broker
        self._formatter = broker.formatter
        self._name = name
        self._tries = tries

    def dumps(self, message: TaskiqMessage) -> BrokerMessage:
        """See `taskiq.abc.formatter.TaskiqFormatter.dumps`."""
        return self._formatter.dumps(message)

    def loads(self, message: bytes) -> TaskiqMessage:
        """Return the message; an empty one if it cannot be read."""
        task_id = token_hex(16)
        try:
            read = self._formatter.loads(message)
            task_id = read.task_id
            read.parse_labels()  # parse them here: taskiq logs labels that it cannot parse
            read.labels_types = None
            _tried(read)
        except Exception as error:  # noqa: BLE001  (raised by any serializer; its text may contain personal data)
            reason = f"cannot be read ({type(error).__name__})"
            if isinstance(self._broker, QueueBroker):
                pending_requeue.set(Requeue(task_id, reason))
                return TaskiqMessage(task_id=task_id, task_name="", labels={}, args=[], kwargs={})
            log(
                WARNING,
                "a message of the queue %s: its result is 'rejected'; check the program that sent it",
                reason,
            )
        else:
            if isinstance(self._broker, QueueBroker) and self._broker.find_task(read.task_name) is None:
                # taskiq would acknowledge it and only log a warning. Another worker may have this task.
                pending_requeue.set(_after_try(read, "this worker has no such task", self._tries))
            return read
        return TaskiqMessage(task_id=task_id, task_name=self._name, labels={}, args=[None], kwargs={})


@contextmanager
def _senders_trace(labels: Mapping[str, Any]) -> Iterator[None]:
    if trace.get_current_span().get_span_context().is_valid:  # started by taskiq's tracing middleware
        yield
        return
    token = contexts.attach(_trace_context.extract(labels))
    try:
        yield
    finally:
        contexts.detach(token)


def register_task(
    broker: AsyncBroker, client: LoanClient, name: str, redelivery: float | None, tries: Tries
) -> AsyncTaskiqDecoratedTask[[dict[str, Any]], Any]:
    """See `loanasync.worker.register`."""
    ledger = required_ledger(client)
    patience = client.ledger_policy.patience  # type: ignore[union-attr]  # a client with a ledger has a policy
    # The longest delivery waits for the request of another worker and then sends its own. It also needs five
    # ledger operations and the longest delay. The lease of a dead worker must have expired, too.
    delivery, lease = (
        2 * client.timeout.total + 5 * patience + tries.cap,
        client.timeout.longest + 2 * patience,
    )
    _check_redelivery(broker, max(delivery, lease), redelivery)
    task = _Task(broker, client, name, tries)

    async def approve(message: Any, context: Annotated[Context, TaskiqDepends()]) -> TaskResult:  # noqa: ANN401  (taskiq would parse a typed argument, and log it if that fails)
        with _senders_trace(context.message.labels):
            return await task.run(message, context)

    async def check_ledger(_: TaskiqState) -> None:
        error = await client._ledger_guard.check()  # type: ignore[union-attr]  # noqa: SLF001  (of this package)
        if error is None:
            return
        if next_step(error) != "pause":  # it may work later
            log(WARNING, "%s; no request is sent until the ledger works", error)
            return
        task.pause(error)
        if all_paused(broker):
            raise error

    async def close(_: TaskiqState) -> None:
        await client.aclose()
        await ledger.aclose()

    broker.add_middlewares(_MessageMiddleware(name, tries))
    if not isinstance(
        broker.formatter, _SafeFormatter
    ):  # one for all tasks: a second would replace its messages
        broker.formatter = _SafeFormatter(broker, name, tries)
    broker.on_event(TaskiqEvents.WORKER_STARTUP)(check_ledger)
    broker.on_event(TaskiqEvents.WORKER_SHUTDOWN)(close)
    return broker.register_task(approve, task_name=name)  # type: ignore[arg-type]  # the context is taskiq's to give


@frozen
class _Task:
    """The task in one worker. A message leads to a result, or goes back into the queue."""

    broker: AsyncBroker
    client: LoanClient
    name: str
    tries: Tries

    async def run(self, message: object, context: Context) -> TaskResult:
        """Return the result, or raise NoResultError if a later delivery will have it."""
        queued = context.message
        while True:
            result = await self._attempt(message)
            if isinstance(result, dict):
                pending_requeue.set(None)
                return result
            requeue = self._after_error(queued, result)
            if isinstance(self.broker, QueueBroker):
                pending_requeue.set(requeue)
                raise NoResultError
            # A broker of another package cannot delay a message. So wait here, then send a copy.
            if requeue.delay is None:
                return task_result(result)
            log(INFO, "%s: trying again in %.1f s", requeue.reason, requeue.delay)
            await asyncio.sleep(requeue.delay)
            queued = requeue.message or queued
            with suppress(SendTaskError):  # the queue is down: try again here
                kicker: AsyncKicker[Any, Any] = AsyncKicker(queued.task_name, self.broker, queued.labels)
                await kicker.with_task_id(queued.task_id).kiq(*queued.args, **queued.kwargs)
                raise NoResultError  # the copy will have the result; this message is acknowledged

    async def _attempt(self, message: object) -> TaskResult | LoanError:
        try:
            return await handle(self.client, message)
        except LoanError as error:
            return error.with_traceback(None)  # the frames contain personal data

    def _after_error(self, queued: TaskiqMessage, error: LoanError) -> Requeue:
        reason, step = type(error).__name__, next_step(error)
        if step == "try again":
            return _after_try(queued, reason, self.tries)
        if step == "pause":
            self.pause(error)
        wait = error.retry_after if isinstance(error, CircuitOpenError) else 0.0
        return Requeue(queued.task_id, reason, max(self.tries.cap, wait))

    def pause(self, error: Exception) -> None:
        """Pause the task. A worker of which all tasks are paused ends."""
        paused = paused_tasks(self.broker)
        if self.name not in paused:
            paused.add(self.name)
            text = "task %s is paused in this worker: %s; its messages stay in the queue"
            log(ERROR, text, self.name, error)


def _tried(message: TaskiqMessage) -> int:
    return int(message.labels.get(_TRIES_LABEL, 0))


def _after_try(message: TaskiqMessage, reason: str, tries: Tries) -> Requeue:
    """Count a try of a message. A dead letter has all its tries again when it is replayed."""
    tried = _tried(message) + 1
    is_last = tried >= tries.maximum
    labels = {**message.labels, _TRIES_LABEL: 0 if is_last else tried}
    counted = message.model_copy(update={"labels": labels})
    return Requeue(message.task_id, reason, None if is_last else tries.delay(tried), counted)


def _check_redelivery(broker: AsyncBroker, longest: float, redelivery: float | None) -> None:
    setting, within = _broker_redelivery(broker) if redelivery is None else ("redelivery", redelivery)
    if within is None:
        raise ConfigurationError(
            setting, "must be the seconds after which this broker redelivers an unacknowledged message"
        )
    if within < longest:
        raise ConfigurationError(
            setting,
            f"must be at least {longest:g} seconds, not {within:g}: a delivery may take that long "
            "(timeout, ledger_policy.patience, cap) before another worker may receive its message",
        )


def _broker_redelivery(broker: Any) -> tuple[str, float | None]:  # noqa: ANN401  (the packages of these brokers are optional)
    """Return the name of the broker's setting for the redelivery of a message, and its value in seconds."""
    if hasattr(broker, "idle_timeout"):  # taskiq-redis
        return "idle_timeout", broker.idle_timeout / 1000
    if hasattr(broker, "consumer_config"):  # taskiq-nats
        config = broker.consumer_config
        return "consumer_config.ack_wait", float((config and config.ack_wait) or _NATS_ACK_WAIT)
    return "redelivery", None
