"""Standard error for messages to people, and signals that end a command."""

import asyncio
import io
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, cast

from rich.console import Console

from loanasync import Timeout


class _Heard(io.TextIOBase):
    """Standard error, or what is left of it: a terminal can be closed, and a pipe's reader can go."""

    def __init__(self) -> None:
        self._file = sys.stderr  # None when it was closed from the start

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8" if self._file is None else self._file.encoding

    def fileno(self) -> int:
        if self._file is None:
            raise io.UnsupportedOperation("closed")
        return self._file.fileno()

    def isatty(self) -> bool:
        return self._file is not None and self._file.isatty()

    def write(self, text: str) -> int:
        if self._file is not None:
            with suppress(OSError, ValueError):
                self._file.write(text)
        return len(text)

    def flush(self) -> None:
        if self._file is not None:
            with suppress(OSError, ValueError):
                self._file.flush()


def console() -> Console:
    """On standard error: what goes to standard output is for programs."""
    return Console(file=cast("IO[str]", _Heard()))


def say(sentence: str, style: str | None = None) -> None:
    """Print a sentence to standard error, as it is."""
    console().print(sentence, style=style, highlight=False, markup=False, soft_wrap=True)


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
