"""The memory of approvals that clients of one process share."""

from loanasync._runtime.flights import MEMORIES


def forget_approvals() -> None:
    """Forget all approvals that this process remembers without a ledger, as a restart does.

    Call it between tests whose clients request approvals of the same customers. The pytest plugin of this
    package calls it before each test. A client with `transport=`, or of `Sandbox.client`, keeps its own
    memory. Entries in ledgers stay.

    Example:
        >>> from loanasync.testing import forget_approvals
        >>> shop = LoanClient(sandbox.base_url, shop_id=sandbox.shop_id, auth_token=sandbox.auth_token)
        >>> run(shop.approve(fiscal_code, request)).approved
        True
        >>> run(shop.aclose())
        >>> forget_approvals()
        >>> shop = LoanClient(sandbox.base_url, shop_id=sandbox.shop_id, auth_token=sandbox.auth_token)
        >>> run(shop.known(fiscal_code)).state
        'none'
        >>> run(shop.aclose())
    """
    MEMORIES.forget()
