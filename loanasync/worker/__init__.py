"""Queue workers: each approval is requested once, however often its message is delivered.

`register` adds a task to a taskiq broker and needs the extra ``taskiq``. With any other task queue, call
`handle` from your own task.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from loanasync._client import LoanClient
from loanasync._models.classes import LazyModule, name_by_package
from loanasync.worker.dead_letters import NEEDS_EXTRA, DeadLetter, NoQueueError
from loanasync.worker.handler import TaskResult, handle, message

if TYPE_CHECKING:
    import taskiq
else:
    taskiq = LazyModule("taskiq")

__all__ = ["DeadLetter", "NoQueueError", "TaskResult", "handle", "message", "register"]


def register(
    broker: "taskiq.AsyncBroker",
    client: LoanClient,
    *,
    name: str = "loanasync:approve",
    tries: int = 5,
    base: float = 1.0,
    cap: float = 10.0,
    lifespan: Callable[[], AbstractAsyncContextManager[object]] = nullcontext,
) -> "taskiq.AsyncTaskiqDecoratedTask[[dict[str, Any]], Any]":
    """Add the task that requests approvals to a broker; the worker closes the client and ledger when it ends.

    The task takes a message made by `message` and returns the result of `handle`. A message is acknowledged
    after its result was saved, or saving it failed: the decision is in the ledger, and a later call returns
    it.

    If `handle` raises an error, this delivery evaluated nobody, and the message goes back into the queue
    with a delay. If a request was sent, this uses up one of its `tries`; after the last one the message
    becomes a dead letter (see `DeadLetter`). With the `InMemoryBroker`, it ends with a result for the last
    error instead.

    The task is paused in this worker after a `ConfigurationError` or a `LedgerMismatchError`: the reason is
    logged, and the messages stay in the queue. A worker whose tasks are all paused exits.

    Args:
        broker: `loanasync.worker.redis.RedisStreams` or `loanasync.worker.nats.JetStream`; in tests, also
            taskiq's `InMemoryBroker`.
        client: A client with a ledger that outlives the process. A `MemoryLedger` is accepted in tests: from
            a client with ``transport=``, or of ``Sandbox.client``.
        name: Name of the task. Set it if one broker has the tasks of several shops.
        tries: Maximum number of deliveries of a message that send a request.
        base: Delay after the first try in seconds. Each further delay is twice the previous one.
        cap: Longest delay after a try, and the delay after a delivery that sent nothing, in seconds.
        lifespan: Returns an async context manager that each worker enters when it starts, and leaves after it
            has closed the client: for example to shut down telemetry, which sends the last metrics.

    Returns:
        The task. Its ``await task.kiq(message(...))`` puts an approval into the queue.

    Raises:
        ConfigurationError: The client has no ledger that outlives the process; or it is another broker; or
            its `redelivery` is shorter than a call may take: then a message would be redelivered while its
            request is in progress.
        ImportError: The extra is not installed, or too old.

    Example:
        >>> from taskiq import InMemoryBroker
        >>> from loanasync.ledger import MemoryLedger
        >>> from loanasync.testing import approved, scripted_client
        >>> from loanasync.worker import message, register
        >>> async def example(client):
        ...     broker = InMemoryBroker()
        ...     approve = register(broker, client)
        ...     await broker.startup()
        ...     sent = await approve.kiq(message(fiscal_code, request))
        ...     result = await sent.wait_result()
        ...     await broker.shutdown()
        ...     return result.return_value["status"]
        >>> run(example(scripted_client(approved(), ledger=MemoryLedger())))
        'approved'
    """
    try:
        from loanasync.worker.delivery import Tries  # noqa: PLC0415  (needs the extra taskiq)
        from loanasync.worker.task import register_task  # noqa: PLC0415  (needs the extra taskiq)
    except ImportError as error:
        raise ImportError(NEEDS_EXTRA.format("register")) from error

    return register_task(broker, client, name, Tries(tries, base, cap), lifespan)


name_by_package(globals())
