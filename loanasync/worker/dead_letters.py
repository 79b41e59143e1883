"""Dead letters: messages that a queue does not deliver any more, until somebody replays them."""

import json
from abc import abstractmethod

from attrs import frozen

from loanasync._lifecycle import Closing

# A log message. It names no number of tries: a message that cannot be read has only one.
DEAD_LETTER = "message %s is a dead letter (%s): list and replay it with loanasync dead-letters"


class NoQueueError(Exception):
    """There is no queue of this name on this server.

    Args:
        name: The name that was looked for.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return (
            f"there is no queue {self.name} on this server: name the server and the queue of your workers; "
            "the queue is made when the first worker or sender opens it"
        )


@frozen(kw_only=True)
class DeadLetter:
    """A message that used up its tries. It was never sent to the service, or the service did nothing.

    Args:
        id: Its id among the dead letters of its queue.
        since: Time at which it became one, in seconds since 1970.
        reason: Why, as far as it is known.
        task: Name of its task; empty if the message cannot be read.
        task_id: Id of its task, under which a replay saves its result.

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


class DeadLettersBase(Closing):
    """The dead letters of one queue; use it in ``async with``."""

    @abstractmethod
    async def list(self) -> list[DeadLetter]:
        """Return all dead letters, oldest first."""

    @abstractmethod
    async def replay(self, letter: DeadLetter) -> bool:
        """Put a dead letter into the queue again, as a message that was never tried.

        Returns:
            False if somebody else has replayed it meanwhile.
        """


def named(data: bytes) -> tuple[str, str]:
    """Return the name and the id of a message's task; empty if it is not JSON as taskiq writes it."""
    try:
        message = json.loads(data)
        return str(message["task_name"]), str(message["task_id"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return "", ""
