"""Output of cancelled calls contains no personal data. The fault matrix covers calls that end otherwise."""

import asyncio
from contextlib import nullcontext

import pytest

from faults_page import ROWS
from support.cancellation import Moment, cancelled_at
from support.faults.player import ready
from support.faults.row import Row
from support.privacy.scanner import capturing, leaks

TIMEOUTS = [row for row in ROWS if row.name.endswith("silence")]


@pytest.mark.parametrize("moment", ["waiting", "waking"])
@pytest.mark.parametrize("row", TIMEOUTS, ids=lambda row: row.name)
async def test_cancelled_call_shows_no_personal_data_at_any_await(row: Row, moment: Moment) -> None:
    step, was_cancelled = 0, True
    with capturing() as captured:
        while was_cancelled:
            step += 1
            async with ready(row, "http", "complete", "own", **captured.providers) as caller:
                task, was_cancelled = await cancelled_at(caller(), step, moment)
                with pytest.raises(asyncio.CancelledError) if was_cancelled else nullcontext() as cancelled:
                    await task
                if cancelled is not None:
                    captured.add(cancelled.value)
    assert len(captured.errors) == step - 1 > 2
    assert leaks(captured) == []
    assert captured.foreign_frames() == []
