"""The taskiq task: it runs within the sender's trace and is tried again after a delay."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
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
from taskiq.exceptions import NoResultError, SendTaskError
from taskiq.kicker import AsyncKicker

from loanasync._client import LoanClient
from loanasync._log import LOGGER
from loanasync.errors import ConfigurationError, LoanError
from loanasync.ledger import DecisionLedger, MemoryLedger
from loanasync.worker.delivery import Pause, PutBack, PuttingBack, Tries, all_paused, pause_of, put_back
from loanasync.worker.handler import TaskResult, handle, is_denied, task_result

_trace_context = TraceContextTextMapPropagator()
_TRIED = "loanasync-tried"  # a message's label: how often it was put in the queue again
_NATS_ACK_WAIT = 30.0  # seconds: the server's own, where a consumer says nothing


class _Passage(TaskiqMiddleware):
    """What a message of ours has beside its content: where it comes from, and when it is done with."""

    def __init__(self, name: str, tries: Tries) -> None:
        super().__init__()
        self._name = name
        self._tries = tries

    def pre_send(self, message: TaskiqMessage) -> TaskiqMessage:
        """Add the sender's trace, unless the first sender or taskiq's own middleware did."""
        if message.task_name == self._name and "traceparent" not in message.labels:
            _trace_context.inject(message.labels)
        return message

    def pre_execute(self, message: TaskiqMessage) -> TaskiqMessage:
        """Have it acknowledged in the end, whatever the worker was started with."""
        if message.task_name == self._name:
            message.labels["ack_type"] = AcknowledgeType.WHEN_SAVED.value
            if isinstance(self.broker, PuttingBack):  # until the task has a result
                put_back.set(_put_back(self.broker, message, "its task failed", self._tries))
        return message

    def post_execute(self, message: TaskiqMessage, result: TaskiqResult[Any]) -> None:
        """Save no error of a task that failed or was cancelled: its message is delivered again."""
        if message.task_name == self._name and result.error is not None and put_back.get() is not None:
            result.error = NoResultError()


class _Reading(TaskiqFormatter):
    """The formatter of the broker, which logs no content of a message that it cannot read.

    taskiq would log the message, and acknowledge it. A broker of this package puts it back. With any other
    broker it becomes a message without a customer, and its result is `rejected`.
    """

    def __init__(self, broker: AsyncBroker, name: str, tries: Tries) -> None:
        self._broker = broker
        self._formatter = broker.formatter
        self._name = name
        self._tries = tries

    def dumps(self, message: TaskiqMessage) -> BrokerMessage:
        """As of the broker's."""
        return self._formatter.dumps(message)

    def loads(self, message: bytes) -> TaskiqMessage:
        """As of the broker's; what cannot be read has no content."""
        task_id = token_hex(16)
        try:
            read = self._formatter.loads(message)
            task_id = read.task_id
            read.parse_labels()  # here, since taskiq would log what it cannot parse
            read.labels_types = None
        except Exception as error:  # noqa: BLE001  (whatever the shop's serializer raises; it may quote a person)
            reason = f"cannot be read ({type(error).__name__})"
            if isinstance(self._broker, PuttingBack):
                # It may be this worker that cannot read it. Nobody can count its tries: it has only this one.
                last = self._tries.most - 1
                put_back.set(PutBack(task_id, reason, last, self._tries, True, lambda _: message))  # noqa: FBT003  (counted)
                return TaskiqMessage(task_id=task_id, task_name="", labels={}, args=[], kwargs={})
            LOGGER.warning("a message of the queue %s: turned away", reason)
        else:
            if isinstance(self._broker, PuttingBack) and self._broker.find_task(read.task_name) is None:
                # taskiq acknowledges it with a warning; another worker may know its task.
                put_back.set(_put_back(self._broker, read, "this worker has no such task", self._tries))
            return read
        return TaskiqMessage(task_id=task_id, task_name=self._name, labels={}, args=[None], kwargs={})


@contextmanager
def _within_its_trace(labels: Mapping[str, Any]) -> Iterator[None]:
    if trace.get_current_span().get_span_context().is_valid:  # taskiq's own middleware has begun one
        yield
        return
    token = contexts.attach(_trace_context.extract(labels))
    try:
        yield
    finally:
        contexts.detach(token)


def registered(
    broker: AsyncBroker, client: LoanClient, name: str, redelivery: float | None, tries: Tries
) -> AsyncTaskiqDecoratedTask[[dict[str, Any]], Any]:
    """`loanasync.worker.register`."""
    ledger, patience = _ledger_of(broker, client)
    # As long again if it waits for another call's first; and five calls of the ledger.
    _require(broker, 2 * client.timeout.total + 5 * patience + tries.cap, redelivery)
    pause = pause_of(broker, name)
    task = _Task(broker, client, pause, tries)
    if isinstance(broker, PuttingBack):
        broker.limit(tries.most)

    async def approve(message: Any, context: Annotated[Context, TaskiqDepends()]) -> TaskResult:  # noqa: ANN401  (a type would be parsed by taskiq, which logs what it cannot parse)
        with _within_its_trace(context.message.labels):
            return await task.run(message, context)

    async def opened(_: TaskiqState) -> None:
        try:
            async with asyncio.timeout(patience):
                await ledger.find(customer=f"worker {token_hex(8)}")  # each ledger checks its format for it
        except ConfigurationError as error:
            pause.now(str(error))
            if all_paused(broker):
                raise
        except Exception as error:  # noqa: BLE001  (whatever a backend raises: it may work later)
            LOGGER.warning(
                "the ledger cannot be used (%s): nothing is asked until it can", type(error).__name__
            )

    async def closed(_: TaskiqState) -> None:
        await client.aclose()
        await ledger.aclose()

    broker.add_middlewares(_Passage(name, tries))
    if not isinstance(broker.formatter, _Reading):  # one for all tasks: a second would replace its messages
        broker.formatter = _Reading(broker, name, tries)
    broker.on_event(TaskiqEvents.WORKER_STARTUP)(opened)
    broker.on_event(TaskiqEvents.WORKER_SHUTDOWN)(closed)
    return broker.register_task(approve, task_name=name)  # type: ignore[arg-type]  # the context is taskiq's to give


@frozen
class _Task:
    """One task of a worker: a message ends with a result, or is put in the queue again."""

    broker: AsyncBroker
    client: LoanClient
    pause: Pause
    tries: Tries

    async def run(self, message: object, context: Context) -> TaskResult:
        if not isinstance(self.broker, PuttingBack):
            return await self._tried_here(message, context)
        ended = await self._ended(message)
        if isinstance(ended, dict):
            put_back.set(None)
            return ended
        is_counted = not self.pause.reason
        put_back.set(
            _put_back(self.broker, context.message, _reason(ended), self.tries, is_counted=is_counted)
        )
        raise NoResultError  # that comes with a later delivery

    async def _tried_here(self, message: object, context: Context) -> TaskResult:
        """Wait for the next try in this worker, where the broker itself has no delay."""
        tried = int(context.message.labels.get(_TRIED, 0))
        while True:
            ended = await self._ended(message)
            if isinstance(ended, dict):
                return ended
            delay = self.tries.cap
            if not self.pause.reason:
                tried += 1
                delay = self.tries.delay(tried)
            if ended is not None and tried >= self.tries.most:
                return task_result(ended)
            LOGGER.info("%s: tried again in %.1f s", _reason(ended), delay)
            await asyncio.sleep(delay)
            with suppress(SendTaskError):  # the queue is down: then it is tried again from here
                await _put_again(context, tried)
                raise NoResultError  # that comes later; this message is done with

    async def _ended(self, message: object) -> TaskResult | LoanError | None:
        """Return a result, or the error after which a message is delivered again; None in a pause."""
        if self.pause.reason:
            return None
        try:
            result = await handle(self.client, message)
        except ConfigurationError as error:
            self.pause.now(str(error))
            return error.with_traceback(None)  # its frames know the customer
        except LoanError as error:
            if is_denied(error) and isinstance(message, dict):
                self.pause.denied(message.get("fiscal_code"), error)
            return error.with_traceback(None)  # as above
        if result["meta"]["status"] and result["meta"]["attempts"]:
            self.pause.answered()
        return result


def _reason(ended: LoanError | None) -> str:
    return "the task is paused in this worker" if ended is None else type(ended).__name__


def _put_back(
    broker: AsyncBroker, message: TaskiqMessage, reason: str, tries: Tries, *, is_counted: bool = True
) -> PutBack:
    labels = {name: value for name, value in message.labels.items() if name != _TRIED}

    def with_tries(tried: int) -> bytes:
        counted = TaskiqMessage(
            task_id=message.task_id,
            task_name=message.task_name,
            labels={**labels, _TRIED: tried} if tried else labels,
            labels_types=message.labels_types,
            args=message.args,
            kwargs=message.kwargs,
        )
        return broker.formatter.dumps(counted).message

    tried = int(message.labels.get(_TRIED, 0))
    return PutBack(message.task_id, reason, tried, tries, is_counted, with_tries)


async def _put_again(context: Context, tried: int) -> None:
    message = context.message
    kicker: AsyncKicker[Any, Any] = AsyncKicker(message.task_name, context.broker, dict(message.labels))
    await (
        kicker.with_task_id(message.task_id)
        .with_labels(**{_TRIED: tried})
        .kiq(*message.args, **message.kwargs)
    )


def _ledger_of(broker: AsyncBroker, client: LoanClient) -> tuple[DecisionLedger, float]:
    ledger, policy = client.ledger, client.ledger_policy
    if ledger is None or policy is None:
        raise ConfigurationError("client", "must have a ledger: a queue delivers more than once")
    if isinstance(ledger, MemoryLedger) and not isinstance(broker, InMemoryBroker):
        raise ConfigurationError("client", "must have a ledger that outlives the worker, not a MemoryLedger")
    return ledger, policy.patience


def _require(broker: AsyncBroker, longest: float, redelivery: float | None) -> None:
    setting, within = _redelivery_of(broker) if redelivery is None else ("redelivery", redelivery)
    if within is None:
        raise ConfigurationError(
            setting, "say after how many seconds this broker delivers again what was not acknowledged"
        )
    if within < longest:
        raise ConfigurationError(
            setting,
            f"must be at least {longest:g} seconds, not {within:g}: so long a delivery may take "
            "(timeout.total, ledger_policy.patience, cap), and only then may another worker have it",
        )


def _redelivery_of(broker: Any) -> tuple[str, float | None]:  # noqa: ANN401  (neither package need be installed)
    """Return the setting of a broker for the time until it delivers again, and its seconds."""
    if hasattr(broker, "idle_timeout"):  # of taskiq-redis
        return "idle_timeout", broker.idle_timeout / 1000
    if hasattr(broker, "consumer_config"):  # of taskiq-nats
        config = broker.consumer_config
        return "consumer_config.ack_wait", float((config and config.ack_wait) or _NATS_ACK_WAIT)
    return "redelivery", None
