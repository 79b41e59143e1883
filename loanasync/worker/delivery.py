"""Redelivery of messages by the brokers: number of tries, delays, pauses and the opening of a queue."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from logging import ERROR, WARNING
from typing import TYPE_CHECKING

from attrs import field, frozen

from loanasync._log import log
from loanasync.errors import ConfigurationError, LoanError, ServiceError

if TYPE_CHECKING:
    from taskiq import AsyncBroker

_DENIALS = 5  # different customers in a row after which a task is paused
_TOO_MANY_REQUESTS = 429  # the service is busy, which says nothing about the settings
_RETRY_LIMIT = 30.0  # seconds that a restarted server may need to load its data
_PAUSE = 0.5  # seconds between two attempts


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
        doublings = min(tried - 1, 30)  # more could overflow a float
        return float(min(self.cap, self.base * 2**doublings))


@frozen
class Requeue:
    """A request to put a message back into the queue, or into the dead letters after its last try.

    Args:
        task_id: Id of the task, for the log.
        reason: The reason, for a person to read; nothing personal.
        tried: Number of earlier tries, from the message's label. JetStream counts deliveries instead.
        tries: The maximum number of tries, and the delays.
        is_counted: False if this delivery does not count as a try, because the task is paused in this worker.
        with_tries: Returns the bytes of the message with another number of tries in its label.
    """

    task_id: str
    reason: str
    tried: int
    tries: Tries
    is_counted: bool
    with_tries: Callable[[int], bytes] = field(repr=False)

    def delay(self, tried: int) -> float:
        """Return the seconds until the next delivery, after this number of tries."""
        return self.tries.delay(tried) if self.is_counted else self.tries.cap


# The `Requeue` of the message that is being processed; None if its task has a result. A taskiq task cannot
# access the delivery of its message. But taskiq runs both the task and the acknowledgement in one asyncio
# task. So the task sets this variable, and the broker reads it when it acknowledges the message.
pending_requeue: ContextVar[Requeue | None] = ContextVar("loanasync_pending_requeue", default=None)


class RequeueBroker:
    """Base class of brokers that can put a message back with a delay, and that store dead letters."""

    def set_delivery_limit(self, maximum: int) -> None:
        """Allow at least this number of deliveries of a message."""


class Pause:
    """The switch that pauses a task in this worker.

    Args:
        name: Name of the task.

    Attributes:
        reason: The reason of the pause; empty while the task runs.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._denied_customers: set[int] = set()
        self.reason: str = ""

    def start(self, reason: str) -> None:
        """Pause the task until the worker is restarted."""
        if not self.reason:
            self.reason = reason
            log(
                ERROR,
                "task %s is paused in this worker: %s; its messages stay in the queue",
                self._name,
                reason,
            )

    def count_denial(self, customer: object, error: LoanError) -> None:
        """Count a customer for whom the service denied access; pause after five in a row."""
        status = error.status if isinstance(error, ServiceError) else 0
        if status == _TOO_MANY_REQUESTS:
            return
        self._denied_customers.add(hash(customer))
        if len(self._denied_customers) >= _DENIALS:
            self.start(
                f"{type(error).__name__} (status {status}) for {_DENIALS} customers in a row: "
                "correct base_url, shop_id or auth_token and restart the worker"
            )

    def reset_denials(self) -> None:
        """Start counting again after any other response: the settings are right."""
        self._denied_customers.clear()


def add_pause(broker: "AsyncBroker", name: str) -> Pause:
    """Return the pause of a task of this broker; create it if necessary."""
    pauses = _pauses(broker)
    return pauses.setdefault(name, Pause(name))


def all_paused(broker: "AsyncBroker") -> bool:
    """Return True if this broker has tasks and all of them are paused."""
    pauses, tasks = _pauses(broker), broker.get_all_tasks()
    return bool(tasks) and all(name in pauses and pauses[name].reason for name in tasks)


def _pauses(broker: "AsyncBroker") -> dict[str, Pause]:
    pauses: dict[str, Pause] = broker.state.setdefault("loanasync_pauses", {})
    return pauses


async def retry_while_unavailable(
    step: Callable[[], Awaitable[None]], errors: tuple[type[Exception], ...]
) -> None:
    """Run a step, and repeat it while the server is unavailable.

    Args:
        step: A step that can be repeated.
        errors: Exceptions that mean that the server is unavailable. After 30 seconds, the last one is raised.
    """
    until = time.monotonic() + _RETRY_LIMIT
    while True:
        try:
            return await step()
        except errors as error:
            if time.monotonic() >= until:
                raise
            log(WARNING, "the queue cannot be opened (%s): trying again", type(error).__name__)
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
