"""Messages on standard error, their texts, and signals that stop a command."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import IO, TypeVar

T = TypeVar("T")

# After the second Ctrl-C, calls in progress are recorded as `unknown` within this time.
ABORT_TIMEOUT = 0.9  # seconds


def discard_output(file: IO[str]) -> None:
    """Discard what was and will be written to a file that cannot be written.

    Otherwise Python writes the rest at exit. That fails again, and replaces the exit code.
    """
    with suppress(OSError, ValueError):  # it is closed, or not a file of the operating system
        os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())


def print_message(message: str) -> None:
    """Print a message to standard error. A closed terminal or a broken pipe must not end the run."""
    if sys.stderr is None:  # it was closed when the process started
        return
    try:
        print(message, file=sys.stderr, flush=True)  # noqa: T201  (the one place that does)
    except (OSError, ValueError):
        discard_output(sys.stderr)


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: "1 row", "2,000 rows", "3 entries".

    Args:
        number: The number.
        noun: The noun for the number 1.
        plural: The noun for all other numbers; by default `noun` with an s.
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def batches(items: Iterable[T], size: int) -> Iterator[Sequence[T]]:
    """Yield all items in sequences of at most `size`."""
    iterator = iter(items)
    while batch := tuple(islice(iterator, size)):
        yield batch


def listed(first: Iterable[object], count: int) -> str:
    """Return some of several things as text: "7", "3 and 7", "3, 7, 9 and 39 others".

    Args:
        first: The first things.
        count: The number of all things.
    """
    shown = [*map(str, first)]
    if others := count - len(shown):
        shown.append(counted(others, "other"))
    *most, last = shown
    return f"{', '.join(most)} and {last}" if most else last


def listed_lines(first: Iterable[int], count: int) -> str:
    """Return line numbers as text: "line 7", "lines 3, 7, 9 and 39 others". See `listed`."""
    return f"line{'s' if count > 1 else ''} {listed((f'{line:,}' for line in first), count)}"


def duration(seconds: float) -> str:
    """Return a duration in the largest unit of which there are more than one."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


@contextmanager
def interruptible(stop: Callable[[], object], abort: Callable[[], object]) -> Iterator[None]:
    """Within this context, the first signal calls `stop`, and each further one calls `abort`."""
    times = 0

    def interrupt() -> None:
        nonlocal times
        times += 1
        (stop if times == 1 else abort)()

    loop = asyncio.get_running_loop()
    # SIGHUP means that the terminal was closed. Windows does not have it; nohup ignores it.
    names = ("SIGINT", "SIGTERM", "SIGHUP")
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    signals = [each for each in numbers if signal.getsignal(each) is not signal.SIG_IGN]
    with suppress(
        NotImplementedError
    ):  # Windows: there Ctrl-C cancels the task, which also waits for the calls
        for each in signals:
            loop.add_signal_handler(each, interrupt)
    try:
        yield
    finally:
        with suppress(NotImplementedError):
            for each in signals:
                loop.remove_signal_handler(each)
