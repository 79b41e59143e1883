"""Approvals from a queue: each is requested once, however often its message is delivered.

`register` makes a task for taskiq's workers and needs the extra ``taskiq``. A shop with a queue of another
kind calls `handle` from a task of its own.
"""

from typing import TYPE_CHECKING, Any

from loanasync._public import name_by_package
from loanasync.worker.dead_letters import DeadLetter, NoQueueError
from loanasync.worker.handler import TaskResult, handle, message

if TYPE_CHECKING:
    from taskiq import AsyncBroker, AsyncTaskiqDecoratedTask

    from loanasync._client import LoanClient

__all__ = ["DeadLetter", "NoQueueError", "TaskResult", "handle", "message", "register"]


def register(
    broker: "AsyncBroker",
    client: "LoanClient",
    *,
    name: str = "loanasync:approve",
    redelivery: float | None = None,
    tries: int = 100,
    base: float = 1.0,
    cap: float = 10.0,
) -> "AsyncTaskiqDecoratedTask[[dict[str, Any]], Any]":
    """Give a broker the task that asks for an approval; client and ledger are closed with the worker.

    The task takes what `message` makes and has the result of `handle`. A message is acknowledged once its
    result is saved, or could not be: the ledger is the record, and a later call returns the same decision.
    If nothing was evaluated, as with an error that `handle` raises, the message is put in the queue again
    after a growing delay. After `tries` of them it is a dead letter (see `DeadLetter`); with a broker that is
    not one of this package, its result is that of the last error.

    A task whose client cannot work is paused: at once after a `ConfigurationError`, and after denials for
    five different customers in a row. Its messages stay in the queue, and the log says why. A worker whose
    tasks are all paused ends, if its broker is one of this package.

    Args:
        broker: Of taskiq's, one that delivers again what was not acknowledged.
        client: With a ledger that outlives the process.
        name: The task's, if a broker has those of several shops.
        redelivery: Seconds after which the broker delivers again what was not acknowledged; None: as it is
            set for the brokers of taskiq-redis and taskiq-nats.
        tries: How often a message is tried at most. With `JetStream`, how often it is delivered.
        base: Seconds of the first delay; each is twice the one before.
        cap: Seconds of any delay at most.

    Returns:
        The task, whose ``await task.kiq(message(...))`` puts an approval in the queue.

    Raises:
        ConfigurationError: The client has no such ledger; or a message would be delivered again while the
            first delivery may still be asked, so that workers would only wait for each other.

    Example:
        >>> from taskiq import InMemoryBroker
        >>> from loanasync.ledger import MemoryLedger
        >>> from loanasync.testing import approved, scripted_client
        >>> from loanasync.worker import message, register
        >>> async def example(client):
        ...     broker = InMemoryBroker()
        ...     approve = register(broker, client, redelivery=600)
        ...     await broker.startup()
        ...     sent = await approve.kiq(message(fiscal_code, request))
        ...     result = await sent.wait_result()
        ...     await broker.shutdown()
        ...     return result.return_value["status"]
        >>> run(example(scripted_client(approved(), ledger=MemoryLedger())))
        'approved'
    """
    from loanasync.worker.delivery import Tries  # noqa: PLC0415  (for brokers alone)
    from loanasync.worker.task import registered  # noqa: PLC0415  (it needs the extra)

    return registered(broker, client, name, redelivery, Tries(tries, base, cap))


name_by_package(globals())
