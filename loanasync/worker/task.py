"""The taskiq task that requests approvals, its middleware, and its redelivery after errors.

A message goes through the formatter, the task and the middleware. Then the broker acknowledges it, or puts it
back into the queue, if one of these has set `pending_requeue`.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from logging import ERROR, WARNING
from secrets import token_hex
from typing import Annotated, Any

from attrs import define
from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from taskiq import (
    AsyncBroker,
    AsyncTaskiqDecoratedTask,
    BrokerMessage,
    Context,
    InMemoryBroker,
    TaskiqDepends,
    TaskiqEvents,
    TaskiqMessage,
    TaskiqMiddleware,
    TaskiqResult,
    TaskiqState,
)
from taskiq.abc.formatter import TaskiqFormatter
from taskiq.acks import AcknowledgeType
from taskiq.exceptions import NoResultError

from loanasync._client import LoanClient
from loanasync._telemetry.log import log
from loanasync.bulk.next_steps import next_step, seconds_to_wait
from loanasync.errors import (
    ConfigurationError,
    LedgerMismatchError,
    LedgerUnavailableError,
    LoanError,
)
from loanasync.worker.delivery import QueueBroker, Requeue, Tries, all_paused, paused_tasks, pending_requeue
from loanasync.worker.handler import TaskResult, handle, required_ledger, task_result

_OTHER_QUEUE = (
    "or the shop is not that of the other workers of this queue: use the same ledger and shop, or another "
    "queue or task name"
)
_trace_context = TraceContextTextMapPropagator()
_TRIES_LABEL = "loanasync-tried"  # label of a message: number of tries so far


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
            # The client has limits. A task that taskiq cuts off would seem not to be evaluated.
            message.labels.pop("timeout", None)
            if isinstance(self.broker, QueueBroker):  # the task resets this when it has a result
                pending_requeue.set(_after_try(message, "its task failed", self._tries))
        return message

    def post_execute(self, message: TaskiqMessage, result: TaskiqResult[Any]) -> None:
        """Save no result for a task that failed or was cancelled: its message is delivered again."""
        if message.task_name == self._name and result.error is not None and pending_requeue.get() is not None:
            result.error = NoResultError()


class _SafeFormatter(TaskiqFormatter):
    """Wraps the formatter of a broker so that an unreadable message becomes a dead letter.

    taskiq itself logs an unreadable message with its personal data, and acknowledges it.
    """

    def __init__(self, broker: QueueBroker, tries: Tries) -> None:
        self._broker = broker
        self._formatter = broker.formatter
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
            pending_requeue.set(Requeue(task_id, f"cannot be read ({type(error).__name__})"))
            return TaskiqMessage(task_id=task_id, task_name="", labels={}, args=[], kwargs={})
        if self._broker.find_task(read.task_name) is None:
            # taskiq would acknowledge it and only log a warning. Another worker may have this task.
            pending_requeue.set(_after_try(read, "this worker has no such task", self._tries))
        return read


def register_task(
    broker: AsyncBroker,
    client: LoanClient,
    name: str,
    tries: Tries,
    lifespan: Callable[[], AbstractAsyncContextManager[object]],
) -> AsyncTaskiqDecoratedTask[[dict[str, Any]], Any]:
    """See `loanasync.worker.register`."""
    ledger = required_ledger(client)
    if broker.find_task(name) is not None:  # taskiq would replace it, and send its messages to this client
        raise ConfigurationError(
            "name", "is the name of a task of this broker: pass another one for each shop"
        )
    if not isinstance(broker, InMemoryBroker):
        _prepare_queue(broker, client, tries)
    task = _Task(broker, client, name, tries)

    async def approve(message: Any, context: Annotated[Context, TaskiqDepends()]) -> TaskResult:  # noqa: ANN401  (taskiq would parse a typed argument, and log it if that fails)
        sender = contexts.get_current()
        if not trace.get_current_span().get_span_context().is_valid:  # no span of taskiq's tracing middleware
            sender = _trace_context.extract(context.message.labels)
        token = contexts.attach(sender)
        try:
            return await task.run(message, context)
        finally:
            contexts.detach(token)

    entered = AsyncExitStack()

    async def start(_: TaskiqState) -> None:
        await entered.enter_async_context(lifespan())
        error = await client._ledger_guard.open()  # type: ignore[union-attr]  # noqa: SLF001  (of this package)
        if error is None:
            return
        if next_step(error) != "pause":  # it may work later
            log(WARNING, "%s; no request is sent until the ledger works", error)
            return
        task.pause(error)
        if all_paused(broker):
            raise error

    async def close(_: TaskiqState) -> None:
        async with entered:  # left at the end, also after an error
            await client.aclose()
            await ledger.aclose()

    broker.add_middlewares(_MessageMiddleware(name, tries))
    broker.on_event(TaskiqEvents.WORKER_STARTUP)(start)
    broker.on_event(TaskiqEvents.WORKER_SHUTDOWN)(close)
    return broker.register_task(approve, task_name=name)  # type: ignore[arg-type]  # the context is taskiq's to give


@define
class _Task:
    """The task in one worker. A message leads to a result, or goes back into the queue."""

    broker: AsyncBroker
    client: LoanClient
    name: str
    tries: Tries
    is_queue_checked: bool = False  # all its workers have the ledger and the shop of this one

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
            if requeue.delay is None:
                return task_result(result)
            await asyncio.sleep(requeue.delay)  # taskiq's broker for tests has no queue
            queued = requeue.message or queued

    async def _attempt(self, message: object) -> TaskResult | LoanError:
        try:
            return await self._check_queue() or await handle(self.client, message)
        except LoanError as error:
            return error.with_traceback(None)  # the frames contain personal data

    async def _check_queue(self) -> LoanError | None:
        """Return an error if the workers of this queue have another ledger or shop.

        If they had, a customer whose message is delivered again would be requested again.
        """
        if self.is_queue_checked or not isinstance(self.broker, QueueBroker):
            return None
        guard, shop = self.client._ledger_guard, self.client._options.shop  # noqa: SLF001  (of this package)
        keys = await guard.attempt(guard.keys, guard.policy.patience)  # type: ignore[union-attr]
        if isinstance(keys, LoanError):
            return keys
        owner = f"{keys.header.id} {shop.shop_id}"
        stored = await self.broker.owner(self.name, owner)
        self.is_queue_checked = stored == owner
        if self.is_queue_checked:
            return None
        if stored is None:
            return LedgerUnavailableError("approve", "", "QueueError", "the queue cannot be used")
        return LedgerMismatchError("approve", "", keys.header.name, _OTHER_QUEUE)

    def _after_error(self, queued: TaskiqMessage, error: LoanError) -> Requeue:
        reason, step = type(error).__name__, next_step(error)
        if step == "try again":
            return _after_try(queued, reason, self.tries)
        if step == "pause":
            self.pause(error)
        return Requeue(queued.task_id, reason, max(self.tries.cap, seconds_to_wait(error)))

    def pause(self, error: Exception) -> None:
        """Pause the task. A worker of which all tasks are paused ends."""
        paused = paused_tasks(self.broker)
        if self.name not in paused:
            paused.add(self.name)
            self.client._pipeline.telemetry.metrics.paused_tasks += 1  # noqa: SLF001  (of this package)
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


def _prepare_queue(broker: AsyncBroker, client: LoanClient, tries: Tries) -> None:
    if not isinstance(broker, QueueBroker):
        raise ConfigurationError(
            "broker",
            "must be loanasync.worker.redis.RedisStreams or loanasync.worker.nats.JetStream, or taskiq's "
            "InMemoryBroker in tests; for another queue, call loanasync.worker.handle from your own task",
        )
    patience = client.ledger_policy.patience  # type: ignore[union-attr]  # a client with a ledger has a policy
    # The longest delivery waits for the request of another worker and then sends its own. It also needs five
    # ledger operations and the longest delay. The lease of a dead worker must have expired, too.
    delivery = 2 * client.timeout.total + 5 * patience + tries.cap
    longest = max(delivery, client.timeout.longest + 2 * patience)
    if broker.redelivery < longest:
        raise ConfigurationError(
            "redelivery",
            f"must be at least {longest:g} seconds, not {broker.redelivery:g}: a delivery may take that long "
            "(timeout, ledger_policy.patience, cap) before another worker may receive its message",
        )
    broker.metrics = client._pipeline.telemetry.metrics  # noqa: SLF001  (of this package)
    if not isinstance(broker.formatter, _SafeFormatter):  # one for all tasks
        broker.formatter = _SafeFormatter(broker, tries)
