"""Clients that send every approval, so that a test can request the same one many times."""

from typing import Any

from loanasync import Decision, LoanClient, RetryPolicy
from loanasync._runtime import run as runs
from loanasync._runtime.flights import Flights, Memory
from loanasync.testing import ScriptedResponse, ScriptedTransport
from support.builders import FISCAL_CODE, approval_request


class _Forgetting(Flights):
    def memory_of(self, _: runs.Run) -> Memory:
        return Memory()


class SeparateClient(LoanClient):
    """A client without a memory: each call sends its request."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._flights.__class__ = _Forgetting


class Run:
    """A separate client and its script. `quota` is that of its retries."""

    def __init__(
        self,
        *steps: ScriptedResponse,
        quota: int = 50,
        transport: ScriptedTransport | None = None,
        **options: Any,
    ) -> None:
        self.transport = transport or ScriptedTransport(*steps)
        self.clock = self.transport.clock
        self.client = SeparateClient(
            "https://loans.example.com",
            shop_id="shop",
            auth_token="token",
            transport=self.transport,
            retry=RetryPolicy(quota=quota),
            **options,
        )

    async def approve(self, **options: Any) -> Decision:
        return await self.client.approve(FISCAL_CODE, approval_request(), **options)
