"""Output contains no personal data in any row of the fault matrix."""

import asyncio
from contextlib import nullcontext

import pytest

from faults_page import ROWS
from loanasync import ApprovalRequest, UserData
from support.cancellation import Moment, cancelled_at
from support.faults.player import Customer, cases, ready, succeeded
from support.faults.row import Row
from support.privacy.plants import CODE, ECHO, LIMITS, SAVED, TOKEN, planted
from support.privacy.scanner import capturing, leaks

CUSTOMER = Customer(
    fiscal_code=CODE, request=planted(ApprovalRequest), data=planted(UserData), echo=ECHO, saved=SAVED
)


@pytest.mark.parametrize(("row", "scheme", "operation", "session"), list(cases()))
async def test_fault_shows_no_personal_data(row: Row, scheme: str, operation: str, session: str) -> None:
    asyncio.get_running_loop().set_debug(True)
    with capturing() as captured:
        settings = {"auth_token": TOKEN, "limits": LIMITS, **captured.providers}
        async with ready(row, scheme, operation, session, CUSTOMER, **settings) as caller:
            result = await caller()
            captured.add(result)
            captured.values += [caller.client, vars(caller.client)]
            # Redirects are not followed: the other host gets no connection, no token and no personal data.
            assert caller.other.accepted == 0
    is_either = row.expected.alternative or row.expected.is_partial
    assert is_either or succeeded(result) == (row.expected.error is None)
    assert leaks(captured) == []
    assert captured.foreign_frames() == []


TIMEOUTS = [row for row in ROWS if row.name.endswith("silence")]


@pytest.mark.parametrize("moment", ["waiting", "waking"])
@pytest.mark.parametrize("row", TIMEOUTS, ids=lambda row: row.name)
async def test_cancelled_call_shows_no_personal_data_at_any_await(row: Row, moment: Moment) -> None:
    step, was_cancelled = 0, True
    with capturing() as captured:
        settings = {"auth_token": TOKEN, "limits": LIMITS, **captured.providers}
        while was_cancelled:
            step += 1
            async with ready(row, "http", "approve", "own", CUSTOMER, **settings) as caller:
                task, was_cancelled = await cancelled_at(caller(), step, moment)
                with pytest.raises(asyncio.CancelledError) if was_cancelled else nullcontext() as cancelled:
                    await task
                if cancelled is not None:
                    captured.add(cancelled.value)
    assert len(captured.errors) == step - 1 > 2
    assert leaks(captured) == []
    assert captured.foreign_frames() == []
