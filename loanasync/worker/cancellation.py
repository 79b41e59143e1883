"""A worker that is told to stop stops listening, also where a library loses the cancellation."""

import asyncio


def heed_cancellation() -> None:
    """Raise a cancellation that was asked for, and lost on its way.

    On Python 3.11 `asyncio.wait_for` loses one that comes as what it waits for ends; the clients of Redis
    and NATS send with it. Listening would go on, and the worker wait for its end for ever.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
