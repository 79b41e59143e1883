"""An event loop whose time passes at once, and a service in it that fails for some time."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

from loanasync import ConnectError, LoanClient, NoResponse, ReadTimeoutError, Request, Response

T = TypeVar("T")

FAULT = b'{"errors": {"system": ["System error"]}}'


async def turns(number: int = 100) -> None:
    """Run all other tasks for some turns of the event loop, in which hardly any time passes."""
    for _ in range(number):
        await asyncio.sleep(0)


class StoppedClock:
    """Stops the clock of the running event loop. `passed` moves it, as if the loop had been blocked."""

    def __init__(self) -> None:
        loop: Any = asyncio.get_running_loop()
        began, self.passed = loop.time(), 0.0
        loop.time = lambda: began + self.passed


class _Selector(selectors.DefaultSelector):
    """A selector that does not wait for the next timer, but moves the time to it."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "all tasks wait, and no timer is left"
        self.now += max(timeout, 0.0)
        return super().select(0)


class VirtualTime:
    """A clock for clients and their tasks, which `run` runs.

    Example:
        >>> VirtualTime().run(asyncio.sleep(3600))
    """

    def __init__(self) -> None:
        self._selector = _Selector()

    def now(self) -> float:
        """Return the current time in seconds."""
        return self._selector.now

    async def sleep(self, seconds: float) -> None:
        """Wait a number of seconds."""
        await asyncio.sleep(seconds)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end."""
        loop = asyncio.SelectorEventLoop(self._selector)
        loop.time = self.now  # type: ignore[method-assign]
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            return runner.run(work)


class FailingService:
    """A transport to a service that fails until a time, and approves everybody afterwards.

    Args:
        time: The time of the client.
        fails_until: The end of the outage, in seconds.
        fails_from: Its beginning.
        is_silent: During the outage, the service does not respond. Otherwise it responds with status 500.
        is_away: During the outage, the service refuses connections.
        latency: Seconds until a response.
    """

    def __init__(
        self,
        time: VirtualTime,
        fails_until: float,
        *,
        fails_from: float = 0.0,
        is_silent: bool = False,
        is_away: bool = False,
        latency: float = 0.05,
    ) -> None:
        self.time = self.clock = time
        self.fails_until = fails_until
        self.fails_from = fails_from
        self.is_silent = is_silent
        self.is_away = is_away
        self.latency = latency
        self.requests: list[tuple[float, str]] = []

    def client(self, **options: Any) -> LoanClient:
        """Return a client of this service."""
        return LoanClient(
            "https://loans.example.com",
            shop_id="test-shop",
            auth_token="test-token",
            transport=self,
            **options,
        )

    def __call__(self) -> Self:
        return self

    def check(self) -> None:
        """Do nothing: a call can always begin."""

    async def send(self, request: Request, *, connect: float, within: float) -> Response | NoResponse:
        """Return the response of the service."""
        del connect
        fails = self.fails_from <= self.time.now() < self.fails_until
        if fails and self.is_away:
            await asyncio.sleep(0.001)
            return NoResponse(error=ConnectError, cause_type="ConnectionRefusedError", is_sent=False)
        request.is_sent = True
        self.requests.append((self.time.now(), request.url.rpartition("/")[2]))
        if fails and self.is_silent:
            await asyncio.sleep(within)
            return NoResponse(error=ReadTimeoutError, cause_type="TimeoutError", is_sent=True)
        await asyncio.sleep(self.latency)
        status, body = (500, FAULT) if fails else (201, b'{"approved": true}')
        return Response(status=status, headers={}, body=body)

    async def aclose(self) -> None:
        """Do nothing."""
