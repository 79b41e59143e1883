import asyncio
import os
import threading

import pytest

from loanasync._runtime.per_loop import PerLoop


class Made:
    def __init__(self) -> None:
        self.closed_in: asyncio.AbstractEventLoop | None = None


async def close(made: Made, _: float) -> None:
    made.closed_in = asyncio.get_running_loop()


async def test_current_returns_one_value_per_loop() -> None:
    own = PerLoop(Made, close)
    made = own.current()
    assert own.current() is made
    await own.aclose(0)
    assert made.closed_in is asyncio.get_running_loop()
    assert own.current() is not made


def test_value_of_a_closed_loop_is_discarded() -> None:
    own = PerLoop(Made, close)

    async def here() -> Made:
        return own.current()

    first, second = asyncio.run(here()), asyncio.run(here())
    assert first is not second
    assert [entry.value for entry in own._values.values()] == [second]


def test_aclose_leaves_the_value_of_a_loop_that_does_not_run() -> None:
    own = PerLoop(Made, close)

    async def here() -> Made:
        return own.current()

    with asyncio.Runner() as still:
        made = still.run(here())
        asyncio.run(own.aclose(0))
        assert made.closed_in is None


async def test_forked_child_does_not_close_values_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    own = PerLoop(Made, close)
    parents = own.current()
    monkeypatch.setattr(os, "getpid", lambda: -1)
    childs = own.current()
    assert childs is not parents
    await own.aclose(0)
    assert childs.closed_in is not None
    assert parents.closed_in is None
    assert own._inherited, "kept, so that no garbage collector closes the parent's sockets"
    monkeypatch.setattr(os, "getpid", lambda: -2)
    await own.aclose(0)
    assert parents.closed_in is None


def test_cancelled_aclose_closes_other_loops_without_waiting() -> None:
    closed: list[str] = []
    begun = threading.Event()

    async def drain(_: object, within: float) -> None:
        begun.set()
        try:
            await asyncio.sleep(within)
            closed.append("drained")
        finally:
            closed.append("closed")

    own = PerLoop(object, drain)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def here() -> None:
        own.current()

    asyncio.run_coroutine_threadsafe(here(), loop).result()

    async def give_up() -> None:
        closing = asyncio.create_task(own.aclose(60))
        await asyncio.to_thread(begun.wait)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing

    asyncio.run(give_up())
    asyncio.run_coroutine_threadsafe(loop.shutdown_asyncgens(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
    assert closed == ["closed"]


async def test_aclose_raises_the_error_of_another_loop() -> None:
    async def fail(_: object, __: float) -> None:
        raise LookupError

    own = PerLoop(object, fail)

    async def here() -> None:
        own.current()

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(here(), loop))
    with pytest.raises(LookupError):
        await own.aclose(1)
    loop.call_soon_threadsafe(loop.stop)
    await asyncio.to_thread(thread.join)
    loop.close()
