"""The texts of numbers on the command line, and its signals."""

import asyncio
import os
import signal

import pytest

from loanasync.cli.console import duration, interruptible


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1.0, "0 s"),
        (119.0, "119 s"),
        (120.0, "2 min"),
        (7_199.0, "120 min"),
        (7_200.0, "2 h"),
        (172_800.0, "2 d"),
        (86_400_000.0, "1,000 d"),
    ],
)
def test_duration_has_the_largest_unit_of_which_there_are_two(seconds: float, text: str) -> None:
    assert duration(seconds) == text


posix = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")


@posix
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
async def test_first_signal_stops_and_each_further_one_aborts(name: str) -> None:
    number, calls = getattr(signal, name), asyncio.Queue[str]()
    before = signal.signal(number, lambda *_: calls.put_nowait("not handled"))
    try:
        with interruptible(lambda: calls.put_nowait("stop"), lambda: calls.put_nowait("abort")):
            for expected in ("stop", "abort", "abort"):
                os.kill(os.getpid(), number)
                assert await calls.get() == expected
    finally:
        signal.signal(number, before)


@posix
async def test_ignored_signal_does_not_interrupt() -> None:
    """``nohup`` ignores SIGHUP, and a shell the SIGINT of its background jobs."""
    interrupted = asyncio.Event()
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptible(interrupted.set, interrupted.set):
            os.kill(os.getpid(), signal.SIGHUP)
            await asyncio.sleep(0.01)
            assert not interrupted.is_set()
            os.kill(os.getpid(), signal.SIGTERM)
            await interrupted.wait()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
