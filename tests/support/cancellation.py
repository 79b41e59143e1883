"""Running a coroutine that is cancelled at a chosen one of its awaits, so that all of them can be tried."""

import asyncio
from collections.abc import Coroutine, Generator
from types import TracebackType
from typing import Any, Literal, TypeVar

T = TypeVar("T")

# "waiting": given up while it waits. "waking": given up when what it waited for has come, before it goes on.
Moment = Literal["waiting", "waking"]


class Stepwise(Coroutine[Any, Any, T]):
    """A coroutine that cancels its own task at its await number `at`, counted from 1; 0 never does."""

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
                awaited.add_done_callback(
                    lambda _: task.cancel()
                )  # runs before the task's own, which wakes it
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
    """Run it as a task; whether it was cancelled at that await, or ended before it."""
    steps = Stepwise(inner, at, moment)
    task = asyncio.get_running_loop().create_task(steps)
    await asyncio.wait({task})
    return task, steps.awaits >= at
