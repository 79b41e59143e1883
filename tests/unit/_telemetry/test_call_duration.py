"""The metric `loanasync.call.duration` records each call once, however it ends."""

import pytest

from loanasync.testing import TelemetryRecorder
from support.call_ends import ENDS

NAMES = ("loanasync.operation", "loanasync.outcome", "error.type", "loanasync.attempts")


@pytest.mark.parametrize("name", ENDS)
async def test_each_call_is_recorded_once_with_its_end(name: str) -> None:
    play, expected = ENDS[name]
    recorder = TelemetryRecorder()
    await play(recorder.telemetry)
    recorded = [
        tuple(point.attributes.get(each) for each in NAMES)
        for point in recorder._metrics()["loanasync.call.duration"]
        for _ in range(point.count)
    ]
    assert sorted(recorded, key=str) == sorted(expected, key=str)
    assert recorder.metric("loanasync.inflight").sum == 0
