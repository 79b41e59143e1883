"""A transport that responds from a script, and a clock that moves only when a client waits."""

import asyncio
from collections import deque
from typing import Any

from loanasync._client import LoanClient
from loanasync._protocol.messages import NoResponse, Request, Response
from loanasync._runtime.retry import is_system_fault
from loanasync.testing.responses import ScriptedResponse, play, require_step
from loanasync.testing.sent import SentRequest, record


class Clock:
    """The time of a scripted client: its waits between attempts move the clock and take no time.

    `time` is in seconds and may be set; `slept` has the seconds of each wait.

    Example:
        >>> from loanasync.testing import Clock
        >>> clock = Clock()
        >>> run(clock.sleep(30))
        >>> clock.now(), clock.slept
        (1030.0, [30])
    """

    def __init__(self) -> None:
        self.time: float = 1000.0
        self.slept: list[float] = []

    def now(self) -> float:
        """The time, seconds."""
        return self.time

    async def sleep(self, seconds: float) -> None:
        """Move on by so many seconds, and let others run meanwhile."""
        self.slept.append(seconds)
        self.time += seconds
        await asyncio.sleep(0)


class ScriptedTransport:
    """Answers each request of a client with the next step of a script, and remembers what was sent.

    No network, no waits: the rest of the client is the real one, with its rules, its retries after a 500
    and its errors. `sent` has a `SentRequest` for each request, the repeated ones too; `clock` the client's
    time; `closed` counts how often a client was closed.

    Args:
        steps: One for each request, in order: `approved()`, `system_error()` and the others.

    Raises:
        TypeError: One of them is no step.

    Example:
        >>> from loanasync.testing import ScriptedTransport, approved, system_error
        >>> script = ScriptedTransport(system_error(), approved())
        >>> decision = run(script.client().approve(fiscal_code, request))
        >>> decision.approved, [sent.operation for sent in script.sent], script.left
        (True, ['approve', 'approve'], 0)
    """

    raises_errors = True  # of functions in the script: the test is to see them

    def __init__(self, *steps: ScriptedResponse) -> None:
        self.sent: list[SentRequest] = []
        self.clock: Clock = Clock()
        self.closed: int = 0
        self._steps: deque[ScriptedResponse] = deque()
        self._scripted = 0
        self._after_fault = False
        self.add(*steps)

    def add(self, *steps: ScriptedResponse) -> None:
        """Go on with these steps after those that are left.

        Raises:
            TypeError: One of them is no step; none is added.

        Example:
            >>> from loanasync.testing import ScriptedTransport, refused
            >>> script = ScriptedTransport()
            >>> script.add(refused(), refused())
            >>> script.left
            2
        """
        for step in steps:
            require_step(step)
        self._steps.extend(steps)
        self._scripted += len(steps)

    @property
    def left(self) -> int:
        """How many steps are still to be played."""
        return len(self._steps)

    def client(self, **options: object) -> LoanClient:
        """Make a client of a made-up shop that plays this script.

        Args:
            options: Arguments of `LoanClient` but `session`, address and credentials among them.

        Raises:
            ConfigurationError: A setting cannot work; it is named.

        Example:
            >>> from loanasync.testing import ScriptedTransport
            >>> ScriptedTransport().client(shop_id="my-shop")
            LoanClient('https://loans.example.com', shop_id='my-shop', auth_token=***)
        """
        settings: dict[str, Any] = {
            "base_url": "https://loans.example.com",
            "shop_id": "test-shop",
            "auth_token": "test-token",
            "transport": lambda: self,
            "clock": self.clock,
            **options,
        }
        return LoanClient(**settings)

    def check(self) -> None:
        """Let any call begin; the client asks this first."""

    async def send(self, request: Request, *, connect: float, within: float) -> Response | NoResponse:
        """Play the next step; called by the client.

        Raises:
            AssertionError: The script is at its end.
        """
        del connect
        sent = record(request, within)
        self.sent.append(sent)
        if not self._steps:
            raise AssertionError(self._too_short(sent))
        step = self._steps.popleft()
        playing = asyncio.ensure_future(self._play(step, sent))
        try:
            return await asyncio.shield(playing)
        except asyncio.CancelledError:
            if request.outlives_caller:
                request.late = playing
            else:
                playing.cancel()
            raise

    async def _play(self, step: ScriptedResponse, sent: SentRequest) -> Response | NoResponse:
        answer = await play(step, sent)
        self._after_fault = is_system_fault(answer)
        return answer

    async def aclose(self) -> None:
        """Count; called when a client is closed."""
        self.closed += 1

    def _too_short(self, sent: SentRequest) -> str:
        scripted = f"{self._scripted} step{' was' if self._scripted == 1 else 's were'} scripted"
        came = f"one more request came: {sent.operation}, {sent.method} {sent.template}"
        hint = "; after a 500 the client asks again, which takes a step, too" if self._after_fault else ""
        return f"{scripted}, and {came}{hint}"


def scripted_client(*steps: ScriptedResponse, **options: object) -> LoanClient:
    """Make a client whose requests are answered by a script; to see what was sent, see `ScriptedTransport`.

    Args:
        steps: One for each request, in order.
        options: Arguments of `LoanClient` but `session`, address and credentials among them.

    Raises:
        TypeError: One of the steps is none.
        ConfigurationError: A setting cannot work; it is named.

    Example:
        >>> from loanasync.testing import refused, scripted_client
        >>> shop = scripted_client(refused())
        >>> run(shop.approve(fiscal_code, request)).approved
        False
    """
    return ScriptedTransport(*steps).client(**options)
