"""Whatever breaks between a shop and the service, nobody is shown: all rows of the fault matrix, searched."""

import asyncio
from contextlib import nullcontext

import pytest

from faults_page import ROWS
from loanasync import ApprovalRequest, UserData
from support.cancellation import Moment, cancelled_at
from support.faults.player import Customer, cases, ready, succeeded
from support.faults.row import Row
from support.privacy.plants import CODE, ECHO, LIMITS, SAVED, TOKEN, planted
from support.privacy.scanner import leaks, watching

CUSTOMER = Customer(
    fiscal_code=CODE, request=planted(ApprovalRequest), data=planted(UserData), echo=ECHO, saved=SAVED
)


@pytest.mark.parametrize(("row", "scheme", "operation", "session"), list(cases()))
async def test_a_fault_shows_no_one(row: Row, scheme: str, operation: str, session: str) -> None:
    asyncio.get_running_loop().set_debug(True)
    with watching() as seen:
        settings = {"auth_token": TOKEN, "limits": LIMITS, **seen.providers}
        async with ready(row, scheme, operation, session, CUSTOMER, **settings) as caller:
            result = await caller()
            seen.add(result)
            seen.values += [caller.client, vars(caller.client)]
            # A redirect leads elsewhere, and neither token nor customer go there: nobody even knocks.
            assert caller.other.accepted == 0
    is_either = row.expected.alternative or row.expected.is_partial
    assert is_either or succeeded(result) == (row.expected.error is None)
    assert leaks(seen) == []
    assert seen.foreign_frames() == []


SILENCES = [row for row in ROWS if row.name.endswith("silence")]


@pytest.mark.parametrize("moment", ["waiting", "waking"])
@pytest.mark.parametrize("row", SILENCES, ids=lambda row: row.name)
async def test_a_call_that_is_given_up_shows_no_one_at_any_of_its_awaits(row: Row, moment: Moment) -> None:
    at, gone_so_far = 0, True
    with watching() as seen:
        settings = {"auth_token": TOKEN, "limits": LIMITS, **seen.providers}
        while gone_so_far:
            at += 1
            async with ready(row, "http", "approve", "own", CUSTOMER, **settings) as caller:
                task, gone_so_far = await cancelled_at(caller(), at, moment)
                with pytest.raises(asyncio.CancelledError) if gone_so_far else nullcontext() as given_up:
                    await task
                if given_up is not None:
                    seen.add(given_up.value)
    assert len(seen.errors) == at - 1 > 2
    assert leaks(seen) == []
    assert seen.foreign_frames() == []
