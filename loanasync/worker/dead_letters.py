"""Dead letters: messages that used up their tries. A queue stores them until they are replayed."""

import json
from abc import abstractmethod

from attrs import evolve, field, frozen

from loanasync._models.classes import Closing
from loanasync._models.masking import mask

NEEDS_EXTRA = "{} misses a package, or has one that is too old: run pip install -U '.[taskiq]' in a checkout"


class NoQueueError(Exception):
    """The server has no queue of this name.

    Args:
        name: Name of the queue.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return (
            f"there is no queue {self.name} on this server: name the server and the queue of your workers; "
            "the queue is created when the first worker or sender opens it"
        )


@frozen(kw_only=True)
class DeadLetter:
    """A message that used up its tries.

    The service did not evaluate its request: no request was sent, or the service did not process any. So
    replaying it is safe.

    Args:
        id: Id of the dead letter in its queue.
        since: Time at which the message became a dead letter, in seconds since 1970.
        reason: The reason, as far as it is known, such as the class of the last error.
        task: Name of the task; empty if the message cannot be read.
        task_id: Id of the task, under which a replay stores its result; empty if the message cannot be read.
        order_id: Number of the order; empty without one.
        fiscal_code: Fiscal code of the customer, masked in ``repr``; empty if the message cannot be read.

    Example:
        >>> from loanasync.worker import DeadLetter
        >>> DeadLetter(id="7-0", since=0.0, reason="AccessDeniedError").task
        ''
    """

    id: str
    since: float
    reason: str
    task: str = ""
    task_id: str = ""
    order_id: str = ""
    fiscal_code: str = field(default="", repr=mask)


class DeadLettersBase(Closing):
    """Base class for the dead letters of one queue. Use it in ``async with``."""

    @abstractmethod
    async def list(self) -> list[DeadLetter]:
        """Return all dead letters, oldest first.

        Raises:
            NoQueueError: The queue does not exist.
        """

    @abstractmethod
    async def replay(self, letter: DeadLetter) -> bool:
        """Put a dead letter back into the queue, with all its tries.

        Returns:
            True if it was put back; False if it is not there any more, because another call has replayed it.
        """

    @abstractmethod
    async def delete(self, letter: DeadLetter) -> bool:
        """Delete a dead letter; return False if it is not there any more."""


def letter_of(identity: str, since: float, reason: str, data: bytes) -> DeadLetter:
    """Return the dead letter with this content, which may be anything."""
    letter = DeadLetter(id=identity, since=since, reason=reason)
    try:
        message = json.loads(data)
        letter = evolve(letter, task=str(message["task_name"]), task_id=str(message["task_id"]))
        approval = next(
            each for each in (*message["args"], *message["kwargs"].values()) if "fiscal_code" in each
        )
        return evolve(
            letter, order_id=str(approval.get("order_id", "")), fiscal_code=str(approval["fiscal_code"])
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, StopIteration):
        return letter  # not a JSON message of taskiq, or not one about an approval
