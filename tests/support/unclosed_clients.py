"""What is said of clients that nobody closed, and a call that opens a connection of theirs."""

import gc
import warnings
from collections.abc import Callable

from loanasync import Decision, LoanClient
from loanasync.testing import approval_request, fiscal_code


async def approval(client: LoanClient, tag: str = "approved") -> Decision:
    code = fiscal_code()
    await client.create_request({"fiscalCode": code})
    return await client.approve(code, approval_request(email=f"anna+{tag}@example.com"))


def warned(what: Callable[[], object]) -> list[warnings.WarningMessage]:
    """The warnings of resources during this, whatever else collects them."""
    gc.collect()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        what()
        gc.collect()
    return [each for each in caught if issubclass(each.category, ResourceWarning)]
