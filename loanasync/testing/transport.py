"""A transport with scripted responses, and a clock that advances only when a client waits."""

import asyncio
from collections import deque
from typing import Any, Self

from loanasync._client import LoanClient
from loanasync._protocol.endpoints import SYSTEM_FAULT
from loanasync._protocol.messages import NoResponse, Request, Response
from loanasync.testing.responses import ScriptedResponse, require_response, response_to
from loanasync.testing.sent import SentRequest, record


class Clock:
    """The clock of a scripted client. A wait between two attempts advances it and takes no real time.

    `time` is the current time in seconds, and may be set. `slept` lists the waits in seconds.

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
        """Return the current time in seconds."""
        return self.time

    async def sleep(self, seconds: float) -> None:
        """Advance the clock by `seconds`, and let other tasks run."""
        self.slept.append(seconds)
        self.time += seconds
        await asyncio.sleep(0)


class ScriptedTransport:
    """A transport that returns the next scripted response for each request, and records the requests.

    It uses no network and does not wait. The rest of the client works as usual: validation, retries after a
    500, and errors. `sent` lists a `SentRequest` for each request, including retries. `clock` is the clock of
    the client. `closed` counts how often a client has closed it, once for each event loop of its calls.

    Args:
        responses: The responses in order, one for each request: `approved()`, `system_error()` and so on.

    Raises:
        TypeError: An argument is not a scripted response.

    Example:
        >>> from loanasync.testing import ScriptedTransport, approved, system_error
        >>> script = ScriptedTransport(system_error(), approved())
        >>> decision = run(script.client().approve(fiscal_code, request))
        >>> decision.approved, [sent.operation for sent in script.sent], script.left
        (True, ['approve', 'approve'], 0)
    """

    raises_errors = True  # errors of functions passed to `computed`, so that the test sees them

    def __init__(self, *responses: ScriptedResponse) -> None:
        self.sent: list[SentRequest] = []
        self.clock: Clock = Clock()
        self.closed: int = 0
        self._responses: deque[ScriptedResponse] = deque()
        self._scripted = 0
        self._after_fault = False
        self.add(*responses)

    def add(self, *responses: ScriptedResponse) -> None:
        """Append responses to the script.

        Raises:
            TypeError: An argument is not a scripted response; then nothing is appended.

        Example:
            >>> from loanasync.testing import ScriptedTransport, refused
            >>> script = ScriptedTransport()
            >>> script.add(refused(), refused())
            >>> script.left
            2
        """
        for each in responses:
            require_response(each)
        self._responses.extend(responses)
        self._scripted += len(responses)

    @property
    def left(self) -> int:
        """The number of responses that were not returned yet."""
        return len(self._responses)

    def client(self, **options: object) -> LoanClient:
        """Return a client that uses this transport, with a made-up address and credentials.

        Args:
            options: Arguments of `LoanClient`, except `session`.

        Raises:
            ConfigurationError: An option is invalid.

        Example:
            >>> from loanasync.testing import ScriptedTransport
            >>> ScriptedTransport().client(shop_id="my-shop")
            LoanClient('https://loans.example.com', shop_id='my-shop', auth_token=***)
        """
        settings: dict[str, Any] = {
            "base_url": "https://loans.example.com",
            "shop_id": "test-shop",
            "auth_token": "test-token",
            "transport": self,
            **options,
        }
        return LoanClient(**settings)

    def __call__(self) -> Self:
        """Return this transport, which all event loops share (called by the client)."""
        return self

    def check(self) -> None:
        """Do nothing: a call can always begin (called by the client)."""

    async def send(self, request: Request, *, connect: float, within: float) -> Response | NoResponse:
        """Return the next scripted response (called by the client).

        Raises:
            AssertionError: All responses were returned already.
        """
        del connect
        sent = record(request, within)
        self.sent.append(sent)
        if not self._responses:
            count = f"{self._scripted} response{' was' if self._scripted == 1 else 's were'} scripted"
            another = f"the client sent another request: {sent.operation}, {sent.method} {sent.template}"
            hint = "; after a 500 the client retries, which needs another response"
            raise AssertionError(f"{count}, but {another}{hint if self._after_fault else ''}")
        scripted = self._responses.popleft()
        await asyncio.sleep(0)  # other calls are sent before this one has its response
        response = await response_to(sent, scripted)
        self._after_fault = isinstance(response, Response) and response.status == SYSTEM_FAULT
        return response

    async def aclose(self) -> None:
        """Count the call in `closed` (called by the client)."""
        self.closed += 1


def scripted_client(*responses: ScriptedResponse, **options: object) -> LoanClient:
    """Return a client with scripted responses. Use `ScriptedTransport` to also inspect the requests.

    Args:
        responses: The responses in order, one for each request.
        options: Arguments of `LoanClient`, except `session`; address and credentials have defaults.

    Raises:
        TypeError: A positional argument is not a scripted response.
        ConfigurationError: An option is invalid.

    Example:
        >>> from loanasync.testing import refused, scripted_client
        >>> shop = scripted_client(refused())
        >>> run(shop.approve(fiscal_code, request)).approved
        False
    """
    return ScriptedTransport(*responses).client(**options)
