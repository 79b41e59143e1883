"""Clients that send every approval, so that a test can request the same one many times."""

from itertools import count
from typing import Any

from loanasync import ApprovalRequest, Decision, LoanClient, RetryPolicy
from loanasync.testing import ScriptedResponse, ScriptedTransport
from support.builders import FISCAL_CODE, approval_request

_NUMBERS = count()


class SeparateClient(LoanClient):
    """A client whose approvals are separate applications: each call has another scope."""

    async def approve(self, fiscal_code: str, request: ApprovalRequest, **options: Any) -> Decision:
        """Request an approval in a new scope, unless the caller passes one."""
        return await super().approve(fiscal_code, request, **{"scope": f"{next(_NUMBERS)}", **options})


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
