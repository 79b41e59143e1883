"""Cancellation of a coroutine at a chosen await, so that a test can try all of them."""

import asyncio
from collections.abc import Coroutine, Generator
from types import TracebackType
from typing import Any, Literal, TypeVar

T = TypeVar("T")

# "waiting": cancelled while it waits. "waking": cancelled after its wait has ended, before it continues.
Moment = Literal["waiting", "waking"]


class Stepwise(Coroutine[Any, Any, T]):
    """A coroutine that cancels its own task at await number `at`, counted from 1; 0 means never."""

    def __init__(self, inner: Coroutine[Any, Any, T], at: int = 0, moment: Moment = "waiting") -> None:
        self._inner = inner
        self._at = at
        self._moment = moment
        self.awaits = 0

    def send(self, value: Any) -> Any:
        awaited = self._inner.send(value)
        self.awaits += 1
        if self.awaits == self._at:
            task = asyncio.current_task()
            assert task is not None
            if self._moment == "waking" and isinstance(awaited, asyncio.Future):
                # This callback runs before the callback of the task, which continues the coroutine.
                awaited.add_done_callback(lambda _: task.cancel())
            else:
                task.cancel()
        return awaited

    def throw(
        self,
        kind: Any,
        value: BaseException | object = None,
        traceback: TracebackType | None = None,
    ) -> Any:
        del value, traceback
        awaited = self._inner.throw(kind)
        self.awaits += 1
        return awaited

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return self._inner.__await__()


async def cancelled_at(
    inner: Coroutine[Any, Any, object], at: int, moment: Moment
) -> tuple[asyncio.Task[object], bool]:
    """Run a coroutine as a task; return the task, and whether it reached await number `at`."""
    steps = Stepwise(inner, at, moment)
    task = asyncio.get_running_loop().create_task(steps)
    await asyncio.wait({task})
    return task, steps.awaits >= at
