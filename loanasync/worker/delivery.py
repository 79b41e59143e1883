"""Putting a message back in its queue: the request of a task, and the brokers that carry it out."""

from collections.abc import Callable
from contextvars import ContextVar

from attrs import field, frozen

from loanasync.errors import ConfigurationError


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
