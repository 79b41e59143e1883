"""A transport that plays a script, and a clock that only moves when told: for the pipeline's claims."""

import asyncio
from collections.abc import Callable, Mapping
from typing import TypeAlias

from builders import FISCAL_CODE, approval_request

from loanasync import Dialect, Timeout
from loanasync import _calls as calls
from loanasync._calls import NoAnswer, Reply, Request
from loanasync._configuration import configure
from loanasync._pipeline import Pipeline
from loanasync._policy import RetryPolicy
from loanasync._retry import Quota
from loanasync._telemetry import Telemetry
from loanasync.errors import ConnectError, ConnectionLostError, ReadTimeoutError

Step: TypeAlias = "Reply | NoAnswer | Callable[[float], Reply | NoAnswer] | asyncio.Event"

FAULT = Reply(status=500, headers={}, body=b'{"errors":{"system":["System error"]}}')
APPROVED = Reply(status=201, headers={}, body=b'{"approved":true,"redirectUrl":"https://x.example/#t"}')
REFUSED = Reply(status=422, headers={}, body=b'{"approved":false}')
NOT_CONNECTED = NoAnswer(error=ConnectError, cause_type="ClientConnectorError", request_sent="no")
LOST = NoAnswer(error=ConnectionLostError, cause_type="ServerDisconnectedError", request_sent="maybe")
TIMED_OUT = NoAnswer(error=ReadTimeoutError, cause_type="TimeoutError", request_sent="maybe")


def fault(headers: Mapping[str, str]) -> Reply:
    return Reply(status=500, headers=headers, body=FAULT.body)


class Clock:
    def __init__(self) -> None:
        self.time = 1000.0
        self.slept: list[float] = []

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds


class ScriptedTransport:
    """Plays one step for each request; an Event holds the request until it is set, then approves."""

    def __init__(self, *steps: Step) -> None:
        self.steps = list(steps)
        self.sent: list[tuple[Request, float]] = []
        self.closed = 0
        self.arrived = asyncio.Event()

    def check(self) -> None:
        pass

    async def send(self, request: Request, *, connect: float, within: float) -> Reply | NoAnswer:
        assert connect > 0
        self.sent.append((request, within))
        self.arrived.set()
        step = self.steps.pop(0)
        if isinstance(step, asyncio.Event):
            await step.wait()
            return APPROVED
        return step(within) if callable(step) else step

    async def aclose(self) -> None:
        self.closed += 1


class Run:
    """A pipeline over a script."""

    def __init__(self, *steps: Step, quota: int = 50, places: int | None = None) -> None:
        self.clock = Clock()
        self.transport = ScriptedTransport(*steps)
        self.pipeline = Pipeline(
            lambda: self.transport,  # type: ignore[arg-type, return-value]  # the seam's shape is enough
            Telemetry(None, None, "traceparent"),
            Quota(quota),
            places,
            now=self.clock.now,
            sleep=self.clock.sleep,
        )

    async def approve(
        self, timeout: Timeout | None = None, retry: RetryPolicy | None = None
    ) -> calls.Outcome:
        shop = configure("https://loans.example.com", "shop", "token")
        call = calls.approve(shop, Dialect.street_number(), FISCAL_CODE, approval_request())
        return await self.pipeline.run(call, timeout or Timeout(), retry or RetryPolicy())
