"""Rows for the tests of bulk, and a client whose calls are answered when a test says so."""

import asyncio
from collections.abc import Iterator
from typing import Any, cast

from loanasync import Approved, Decision, Meta
from loanasync.bulk import Approvals, Row
from loanasync.testing import fiscal_code
from support.builders import approval_request

DECISION = Approved(amount=45_000, net_amount=43_650, meta=Meta(status=201, attempts=1, elapsed=0.2))


def rows(number: int) -> Iterator[Row]:
    """Rows of different customers with equal requests and the ids 0, 1, 2 and so on."""
    request = approval_request()
    return (Row(fiscal_code(), request, id=each) for each in range(number))


def tags(*words: str) -> list[Row]:
    """Rows of different customers, with a tag for the sandbox each."""
    return [Row(fiscal_code(), approval_request(email=f"anna+{word}@example.com"), id=word) for word in words]


class Desk:
    """Stands in for the client: holds every call until it is let go, in any order."""

    def __init__(self) -> None:
        self.asked = 0
        self.under_way: dict[int, asyncio.Future[Decision]] = {}
        self.most = 0

    async def approve(self, *_: object, **__: object) -> Decision:
        number = self.asked
        self.asked += 1
        answer = self.under_way[number] = asyncio.get_running_loop().create_future()
        self.most = max(self.most, len(self.under_way))
        try:
            return cast("Decision", await answer)
        finally:
            del self.under_way[number]

    def answer(self, number: int, answer: Decision | Exception = DECISION) -> None:
        held = self.under_way[number]
        if isinstance(answer, Exception):
            held.set_exception(answer)
        else:
            held.set_result(answer)

    def answer_all(self) -> None:
        for number in list(self.under_way):
            self.answer(number)

    async def answer_on(self) -> None:
        """Answer whatever is asked, for as long as this runs."""
        while True:
            self.answer_all()
            await asyncio.sleep(0)


def bulk(approve: Any, given: Any, **options: Any) -> Approvals:
    settings: dict[str, Any] = {
        "concurrency": 3,
        "rate": None,
        "ordered": False,
        "progress": None,
        "timeout": None,
        "retry": None,
    }
    return Approvals(approve, given, **(settings | options))


async def at_once(*_: object, **__: object) -> Decision:
    return DECISION


async def settled() -> None:
    """Let everybody go as far as they can."""
    for _ in range(20):
        await asyncio.sleep(0)
