"""Rows for the tests of `loanasync.bulk`, and calls that finish only when a test finishes them."""

import asyncio
from collections.abc import Iterator
from typing import Any, cast

from loanasync import Approved, Decision, Meta
from loanasync.bulk import Approvals, Row
from loanasync.bulk.options import BulkOptions
from loanasync.bulk.turns import Turns
from loanasync.testing import fiscal_code
from support.builders import approval_request

DECISION = Approved(amount=45_000, net_amount=43_650, meta=Meta(status=201, attempts=1, elapsed=0.2))


def rows(number: int) -> Iterator[Row]:
    """Return rows of different customers with equal requests and the ids 0, 1, 2 and so on."""
    request = approval_request()
    return (Row(fiscal_code(), request, id=each) for each in range(number))


def tagged_rows(*words: str) -> list[Row]:
    """Return rows of different customers, each with a tag for the sandbox."""
    return [Row(fiscal_code(), approval_request(email=f"anna+{word}@example.com"), id=word) for word in words]


class HeldCalls:
    """Calls of `approve` that stay in progress until the test finishes them, in any order."""

    def __init__(self) -> None:
        self.started = 0
        self.in_progress: dict[int, asyncio.Future[Decision]] = {}
        self.max_in_progress = 0

    async def approve(self, *_: object, **__: object) -> Decision:
        number = self.started
        self.started += 1
        call = self.in_progress[number] = asyncio.get_running_loop().create_future()
        self.max_in_progress = max(self.max_in_progress, len(self.in_progress))
        try:
            return cast("Decision", await call)
        finally:
            del self.in_progress[number]

    def finish(self, number: int, outcome: Decision | Exception = DECISION) -> None:
        call = self.in_progress[number]
        if isinstance(outcome, Exception):
            call.set_exception(outcome)
        else:
            call.set_result(outcome)

    def finish_all(self) -> None:
        for number in list(self.in_progress):
            self.finish(number)

    async def keep_finishing(self) -> None:
        """Finish every call as soon as it has started, until this is cancelled."""
        while True:
            self.finish_all()
            await asyncio.sleep(0)


def approvals_of(
    approve: Any, rows: Any, *, open_circuit: Any = lambda: None, sleep: Any = asyncio.sleep, **options: Any
) -> Approvals:
    settings = BulkOptions(**{"concurrency": 3, **options})
    return Approvals(approve, rows, settings, Turns(open_circuit, sleep))


async def approve_at_once(*_: object, **__: object) -> Decision:
    return DECISION


async def let_tasks_run() -> None:
    """Give all other tasks the time to run until they wait."""
    for _ in range(20):
        await asyncio.sleep(0)
