"""Ctrl-C, SIGTERM, a closed terminal: the first waits for answers under way, the second gives them up."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from loanasync import Timeout

# What is under way when a person gives up has so long to be written down as unknown.
HASTE = Timeout(total=0.5, attempt=0.4, connect=0.3)


@contextmanager
def interruptible(wait: Callable[[], object], give_up: Callable[[], object]) -> Iterator[None]:
    """Meanwhile the first signal calls `wait`, and each further one `give_up`."""
    times = 0

    def interrupt() -> None:
        nonlocal times
        times += 1
        (wait if times == 1 else give_up)()

    loop = asyncio.get_running_loop()
    # SIGHUP: the terminal is gone, and the answers under way need none. Windows has no such.
    signals = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
    with suppress(NotImplementedError):  # Windows: there Ctrl-C cancels, which waits, too
        for each in signals:
            loop.add_signal_handler(each, interrupt)
    try:
        yield
    finally:
        with suppress(NotImplementedError):
            for each in signals:
                loop.remove_signal_handler(each)
