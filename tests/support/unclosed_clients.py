"""Warnings about unclosed clients, and a call that opens a connection."""

import gc
import warnings
from collections.abc import Callable

from loanasync import Decision, LoanClient
from loanasync.testing import approval_request, fiscal_code


async def approval(client: LoanClient, tag: str = "approved") -> Decision:
    code = fiscal_code()
    await client.create_request({"fiscalCode": code})
    return await client.approve(code, approval_request(email=f"anna+{tag}@example.com"))


def warned(action: Callable[[], object]) -> list[warnings.WarningMessage]:
    """Return the ResourceWarnings during `action` and the garbage collection after it."""
    gc.collect()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        action()
        gc.collect()
    return [each for each in caught if issubclass(each.category, ResourceWarning)]
