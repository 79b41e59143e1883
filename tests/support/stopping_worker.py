"""A worker process that requests one approval and blocks at a named point, where a test kills it."""

import asyncio
import time
from pathlib import Path
from typing import Any

from loanasync import LoanClient, RetryPolicy, Timeout
from loanasync.ledger import Entry, LedgerPolicy, SqliteLedger
from loanasync.testing import approval_request
from support.builders import FISCAL_CODE

POINTS = ("before claim", "after claim", "before commit", "after commit")
TIMEOUT = Timeout(total=2, attempt=1.9, connect=1.5)  # short leases, but longer than a stall of the machine
POLICY = LedgerPolicy(key=b"0123456789abcdef", patience=1)


def stop(point: str) -> None:
    """Print the point, and block the event loop."""
    print(point, flush=True)  # noqa: T201  (the test waits for it)
    time.sleep(3600)


class StoppingMixin:
    """Mixin for ledgers that stops before or after a claim or a settlement ("commit")."""

    point = ""

    def stop_at(self, point: str) -> None:
        if point == self.point:
            stop(point)

    async def claim(self, key: str, **options: Any) -> Entry:
        self.stop_at("before claim")
        entry: Entry = await super().claim(key, **options)  # type: ignore[misc]  # of the ledger's class
        self.stop_at("after claim")
        return entry

    async def settle(self, key: str, **options: Any) -> Entry:
        self.stop_at("before commit")
        entry: Entry = await super().settle(key, **options)  # type: ignore[misc]  # see `claim`
        self.stop_at("after commit")
        return entry


class StoppingLedger(StoppingMixin, SqliteLedger):
    """An SQLite ledger that stops at a point."""


async def _request_approval(file: Path, point: str, service: tuple[str, str, str], email: str) -> None:
    base_url, shop_id, auth_token = service
    ledger = StoppingLedger(file)
    ledger.point = point
    async with LoanClient(
        base_url,
        shop_id=shop_id,
        auth_token=auth_token,
        retry=RetryPolicy(attempts=1),
        timeout=Timeout(total=4, attempt=3.9, connect=3) if point == "after send" else TIMEOUT,
        ledger=ledger,
        ledger_policy=POLICY,
    ) as client:
        await client.approve(FISCAL_CODE, approval_request(email=email))


def request_approval(file: Path, point: str, service: tuple[str, str, str], email: str) -> None:
    """Request an approval from a service (address, shop, token), and stop at the point."""
    asyncio.run(_request_approval(file, point, service, email))
