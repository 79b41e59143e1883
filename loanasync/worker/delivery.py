"""Delivery of messages by the brokers: tries, delays, pauses and the opening of a queue."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar

from attrs import field, frozen
from taskiq import AsyncBroker

from loanasync._log import LOGGER
from loanasync.errors import ConfigurationError, LoanError, ServiceError

_DENIALS = 5  # different customers in a row
_NOT_NOW = 429  # the service is busy, and the settings are right
_WITHIN = 30.0  # seconds in which a restarted server has loaded its data and answers
_PAUSE = 0.5


@frozen
class Tries:
    """The number of tries of a message, and the seconds in between."""

    most: int
    base: float
    cap: float

    def __attrs_post_init__(self) -> None:
        if self.most < 1:
            raise ConfigurationError("tries", "must be an int of at least 1")
        if not 0 < self.base <= self.cap:
            raise ConfigurationError("base", "must be a number of seconds above 0, and cap no less")

    def delay(self, tried: int) -> float:
        """Return the seconds to wait after this number of tries."""
        doublings = min(tried - 1, 30)  # of more, a float would be infinite
        return float(min(self.cap, self.base * 2**doublings))


@frozen
class PutBack:
    """A message that is not finished: the broker delivers it again, or makes it a dead letter.

    Args:
        task_id: The task's id, for the log.
        reason: Why, for a person to read; nothing personal.
        tried: How often the message was tried, by its own label. JetStream counts deliveries instead.
        tries: The limit, and the delays.
        is_counted: False if this delivery was no try: the task is paused in this worker.
        with_tries: Return the message's bytes with another count of tries.
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


# taskiq runs a message's task and its acknowledgement in one asyncio task, with a separate context.
# taskiq gives the task no access to the delivery, so the task leaves its request here, and the broker's
# acknowledgement finds it.
put_back: ContextVar[PutBack | None] = ContextVar("loanasync_put_back", default=None)


class PuttingBack:
    """Base class of the brokers that put a message back, with a delay, and keep dead letters."""

    def limit(self, most: int) -> None:
        """Set how many deliveries of a message a task allows."""


class Pause:
    """The state of a task in this worker: running, or paused for a reason.

    Args:
        name: The task's name.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._denied: set[int] = set()
        self.reason: str = ""

    def now(self, reason: str) -> None:
        """Pause the task until the worker is started again."""
        if not self.reason:
            self.reason = reason
            LOGGER.error(
                "task %s is paused in this worker: %s; its messages stay in the queue", self._name, reason
            )

    def denied(self, customer: object, error: LoanError) -> None:
        """Count a customer whose request the service did not accept from this shop."""
        status = error.status if isinstance(error, ServiceError) else 0
        if status == _NOT_NOW:
            return
        self._denied.add(hash(customer))
        if len(self._denied) >= _DENIALS:
            self.now(
                f"{type(error).__name__} (status {status}) for {_DENIALS} customers in a row: "
                "correct base_url, shop_id or auth_token and start the worker again"
            )

    def answered(self) -> None:
        """Take note of any other response of the service: its denials were the customers' own."""
        self._denied.clear()


def pause_of(broker: AsyncBroker, name: str) -> Pause:
    """Return the pause of a new task of this broker."""
    pauses = _pauses(broker)
    return pauses.setdefault(name, Pause(name))


def all_paused(broker: AsyncBroker) -> bool:
    """Return True if this broker has tasks, and each of them is paused."""
    pauses, tasks = _pauses(broker), broker.get_all_tasks()
    return bool(tasks) and all(name in pauses and pauses[name].reason for name in tasks)


def _pauses(broker: AsyncBroker) -> dict[str, Pause]:
    pauses: dict[str, Pause] = broker.state.setdefault("loanasync_pauses", {})
    return pauses


async def when_reached(step: Callable[[], Awaitable[None]], away: tuple[type[Exception], ...]) -> None:
    """Run a step that may be repeated, until the server answers.

    Args:
        step: The step.
        away: The errors of a server that is away; after 30 seconds the last of them is raised.
    """
    until = time.monotonic() + _WITHIN
    while True:
        try:
            return await step()
        except away as error:
            if time.monotonic() >= until:
                raise
            LOGGER.warning("the queue cannot be opened (%s): tried again soon", type(error).__name__)
        await asyncio.sleep(_PAUSE)


def heed_cancellation() -> None:
    """Raise a cancellation that was asked for, and lost on its way.

    On Python 3.11 `asyncio.wait_for` loses one that comes as what it waits for ends; the clients of Redis
    and NATS send with it. Listening would go on, and the worker wait for its end for ever.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
