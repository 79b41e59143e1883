"""A pipeline with scripted responses."""

import asyncio
from typing import TypeAlias

from loanasync import Dialect, Telemetry, Timeout
from loanasync._config import configure
from loanasync._protocol import endpoints
from loanasync._runtime.pipeline import Pipeline
from loanasync._runtime.retry import Quota
from loanasync._runtime.run import run_call
from loanasync._settings import RetryPolicy
from loanasync._telemetry import Instruments
from loanasync.testing import ScriptedResponse, ScriptedTransport, SentRequest, approved, computed
from support.builders import FISCAL_CODE, approval_request

Step: TypeAlias = ScriptedResponse | asyncio.Event


class Run:
    """A pipeline and its script; an Event in it holds a request until it is set, then approves it."""

    def __init__(self, *steps: Step, quota: int = 50, slots: int | None = None) -> None:
        self.arrived = asyncio.Event()
        self.transport = ScriptedTransport()
        self.clock = self.transport.clock
        self.play(*steps)
        self.pipeline = Pipeline(
            lambda: self.transport,
            Instruments(Telemetry()),
            Quota(quota),
            slots,
            breaker=None,
            on_unclosed=None,
            now=self.clock.now,
            sleep=self.clock.sleep,
        )

    def play(self, *steps: Step) -> None:
        self.transport.add(*(self._held(step) if isinstance(step, asyncio.Event) else step for step in steps))

    def _held(self, until: asyncio.Event) -> ScriptedResponse:
        async def hold(_: SentRequest) -> ScriptedResponse:
            self.arrived.set()
            await until.wait()
            return approved()

        return computed(hold)

    async def approve(
        self, timeout: Timeout | None = None, retry: RetryPolicy | None = None
    ) -> endpoints.Outcome:
        return await run_call(self.pipeline, approval(), timeout or Timeout(), retry or RetryPolicy())


def approval() -> endpoints.Call:
    shop = configure("https://loans.example.com", "shop", "token")
    return endpoints.APPROVE.call(shop, Dialect.street_number(), FISCAL_CODE, approval_request())
