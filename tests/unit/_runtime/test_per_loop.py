import asyncio
import gc
import os
import threading
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from loanasync._runtime.per_loop import PerLoop
from support.memory_clients import cancelled
from support.raw_server import PATIENCE


@pytest.fixture
def other() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop that runs in another thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    asyncio.run_coroutine_threadsafe(loop.shutdown_asyncgens(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def open_in(loop: asyncio.AbstractEventLoop, values: PerLoop[Any]) -> None:
    async def open_value() -> None:
        values.current()

    asyncio.run_coroutine_threadsafe(open_value(), loop).result()


class Value:
    def __init__(self) -> None:
        self.closed_in: asyncio.AbstractEventLoop | None = None


async def close(value: Value, _: float | None) -> None:
    value.closed_in = asyncio.get_running_loop()


def test_value_of_a_closed_loop_is_discarded() -> None:
    values = PerLoop(Value, close)

    async def open_value() -> Value:
        return values.current()

    first = weakref.ref(asyncio.run(open_value()))
    asyncio.run(open_value())
    gc.collect()
    assert first() is None


def test_value_that_cannot_be_closed_leaves_no_other_one_open() -> None:
    async def fail(value: Value, within: float | None) -> None:
        await close(value, within)
        raise OSError

    async def open_value() -> Value:
        return values.current()

    values = PerLoop(Value, fail)
    with asyncio.Runner() as first, asyncio.Runner() as second:
        opened = [each.run(open_value()) for each in (first, second)]
        with pytest.raises(OSError):  # noqa: PT011  (without a text)
            values.close_from_outside(1.0)
        assert [value.closed_in for value in opened] == [first.get_loop(), second.get_loop()]


async def test_value_that_cannot_be_closed_leaves_the_others_their_time(
    other: asyncio.AbstractEventLoop,
) -> None:
    own, ended = asyncio.get_running_loop(), asyncio.Event()
    closed = []

    async def fail_here(_: Value, within: float | None) -> None:
        if asyncio.get_running_loop() is own:
            own.call_soon(ended.set)
            raise OSError
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(ended.wait(), own))
        closed.append(within)

    values = PerLoop(Value, fail_here)
    open_in(other, values)
    values.current()
    with pytest.raises(OSError):  # noqa: PT011  (without a text)
        await values.aclose(5.0)
    assert closed == [5.0]


async def test_forked_child_keeps_the_values_of_its_parent_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """A garbage collection would close the sockets of the parent, too."""
    values = PerLoop(Value, close)
    of_parent = weakref.ref(values.current())
    for process in (-1, -2):
        monkeypatch.setattr(os, "getpid", lambda process=process: process)
        own = values.current()
        await values.aclose(0)
        assert own.closed_in is not None
        gc.collect()
        value = of_parent()
        assert value is not None
        assert value.closed_in is None


@pytest.mark.parametrize(("process", "warnings"), [("parent", 1), ("child", 0)])
async def test_destructor_in_a_forked_child_reports_nothing(
    process: str, warnings: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The values belong to the parent, which may close them later."""
    unclosed: list[None] = []
    values = PerLoop(Value, close, lambda: unclosed.append(None))
    values.current()
    if process == "child":
        monkeypatch.setattr(os, "getpid", lambda: -1)
    del values
    gc.collect()
    assert len(unclosed) == warnings


@pytest.mark.parametrize("created", [("transport", "ledger"), ("ledger", "transport")])
def test_end_of_a_loop_closes_what_calls_need_after_the_calls(created: tuple[str, str]) -> None:
    closed: list[str] = []

    async def close_slowly(value: str, _: float | None) -> None:
        await asyncio.sleep(0.01 if value == "transport" else 0)
        closed.append(value)

    values = [PerLoop(partial(str, name), close_slowly, is_for_calls=name == "ledger") for name in created]

    async def use() -> None:
        for each in values:
            each.current()

    asyncio.run(use())
    assert closed == ["transport", "ledger"]


async def test_concurrent_acloses_close_each_value_once(other: asyncio.AbstractEventLoop) -> None:
    closed: list[asyncio.AbstractEventLoop] = []

    async def slow_close(_: Value, __: float | None) -> None:
        await asyncio.sleep(0.01)
        closed.append(asyncio.get_running_loop())

    values = PerLoop(Value, slow_close)
    open_in(other, values)
    values.current()
    await asyncio.gather(*(values.aclose(1) for _ in range(3)))
    assert sorted(closed, key=id) == sorted([asyncio.get_running_loop(), other], key=id)


async def test_cancelled_aclose_closes_other_loops_without_waiting(other: asyncio.AbstractEventLoop) -> None:
    closed: list[str] = []
    begun, ended = threading.Event(), threading.Event()

    async def drain(_: object, within: float | None) -> None:
        begun.set()
        try:
            await asyncio.sleep(within or 0)
            closed.append("drained")
        finally:
            closed.append("closed")
            ended.set()

    values = PerLoop(object, drain)
    open_in(other, values)
    closing = asyncio.create_task(values.aclose(60))
    await asyncio.to_thread(begun.wait)
    await cancelled(closing)
    assert await asyncio.to_thread(ended.wait, PATIENCE)
    assert closed == ["closed"]


async def test_aclose_raises_the_error_of_another_loop(other: asyncio.AbstractEventLoop) -> None:
    async def fail(_: object, __: float | None) -> None:
        raise LookupError

    values = PerLoop(object, fail)
    open_in(other, values)
    with pytest.raises(LookupError):
        await values.aclose(1)
