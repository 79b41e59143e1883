"""Each status with each kind of body: the state of an approval, by the readings R1 to R5 alone."""

import logging
from contextlib import suppress
from itertools import islice

import pytest

from loanasync import Approved, Decision, LoanError, RawResponse, Response, RetryPolicy
from loanasync.ledger import MemoryLedger
from loanasync.testing import ScriptedTransport, approval_request, system_error
from support.readings import Row, rows

REQUEST = approval_request()
RELEASED, DECIDED = "released", {"approved", "refused"}


@pytest.fixture(autouse=True)
def _no_logs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "loanasync")  # otherwise pytest formats thousands of log records


class Shop:
    """A client that gets one row after another, each for another customer."""

    def __init__(self, ledger: MemoryLedger | None = None) -> None:
        self.ledger = ledger
        self.script = ScriptedTransport()
        self.client = self.script.client(ledger=ledger, retry=RetryPolicy(quota=100_000), breaker=None)
        self._number = 0

    async def approve(self, row: Row, *, is_again: bool = False) -> Decision | LoanError:
        self._number += not is_again
        attempts = 1 if row.is_first else 2
        try:
            return await self.client.approve(
                f"TSTXYZ{self._number:010}", REQUEST, retry=RetryPolicy(attempts=attempts)
            )
        except LoanError as error:
            return error

    async def first(self, row: Row) -> Decision | LoanError:
        response = Response(status=row.status, headers={}, body=row.body, fault=row.fault)
        self.script.add(*(() if row.is_first else (system_error(),)), response)
        return await self.approve(row)


def outcome(found: Decision | LoanError) -> str:
    if isinstance(found, LoanError):
        return found.outcome
    return "approved" if isinstance(found, Approved) else "refused"


def expected_outcome(row: Row) -> str:
    return row.state if row.state in DECIDED else "not_evaluated" if row.state == RELEASED else "unknown"


def check(wrong: list[str]) -> None:
    if wrong:
        pytest.fail("\n".join([f"{len(wrong)} rows are wrong", *wrong[:20]]), pytrace=False)


async def test_states_in_the_ledger_follow_the_readings() -> None:
    wrong = []
    shop = Shop(ledger := MemoryLedger())
    for row in rows():
        found = await shop.first(row)
        entry = await ledger.get((found.entry if isinstance(found, LoanError) else found.meta.entry) or "")
        got = entry and entry.state.value, outcome(found)
        if got != (row.state, expected_outcome(row)):
            wrong.append(f"{row.name}, not {got}")
        response = getattr(found, "response", None)
        if row.has_decision and row.state not in DECIDED and response != RawResponse(row.status, row.body):
            wrong.append(f"{row.name}: the error lacks the response")
    check(wrong)


async def test_states_without_a_ledger_send_again_only_what_was_released() -> None:
    wrong = []
    shop = Shop()
    for row in islice(rows(), 0, None, 5):
        first = outcome(await shop.first(row))
        sent = len(shop.script.sent)
        with suppress(AssertionError):  # the script has no other response
            await shop.approve(row, is_again=True)
        is_sent_again = len(shop.script.sent) > sent
        if (first, is_sent_again) != (expected_outcome(row), row.state == RELEASED):
            wrong.append(f"{row.name}, not {first}, sent again: {is_sent_again}")
    check(wrong)
