"""Running the sandbox in a thread of its own, with a loop of its own."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Protocol, TypeVar


class _Startable(Protocol):
    async def start(self) -> None: ...
    async def stop(self) -> None: ...


S = TypeVar("S", bound=_Startable)
_Stop = tuple[asyncio.AbstractEventLoop, asyncio.Event]


@contextmanager
def running_in_thread(sandbox: S) -> Iterator[S]:
    """Start it in a new thread, and stop it at the end.

    Raises:
        OSError: It cannot start.
    """
    started: Future[_Stop] = Future()
    thread = threading.Thread(
        target=lambda: asyncio.run(_serve(sandbox, started)), name="loanasync-sandbox", daemon=True
    )
    thread.start()
    try:
        loop, stop = started.result()
    except BaseException:
        thread.join()
        raise
    try:
        yield sandbox
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()


async def _serve(sandbox: _Startable, started: "Future[_Stop]") -> None:
    try:
        await sandbox.start()
    except BaseException as error:  # noqa: BLE001  (it is raised where the sandbox was asked for)
        started.set_exception(error)
        return
    stop = asyncio.Event()
    started.set_result((asyncio.get_running_loop(), stop))
    await stop.wait()
    await sandbox.stop()
