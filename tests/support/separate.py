"""A client that sends every approval, so that a test can request the same one many times."""

from itertools import count
from typing import Any

from loanasync import ApprovalRequest, Decision, LoanClient

_NUMBERS = count()


class SeparateClient(LoanClient):
    """A client whose approvals are separate applications: each call has another scope."""

    async def approve(self, fiscal_code: str, request: ApprovalRequest, **options: Any) -> Decision:
        """Request an approval in a new scope, unless the caller passes one."""
        return await super().approve(fiscal_code, request, **{"scope": f"{next(_NUMBERS)}", **options})
