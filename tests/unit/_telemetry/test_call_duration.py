"""Each call is recorded once, however it ends: in the metric `loanasync.call.duration`, and in its span."""

from collections import Counter

import pytest

from loanasync.testing import TelemetryRecorder
from support.call_ends import ENDS

NAMES = ("loanasync.operation", "loanasync.outcome", "error.type", "loanasync.attempts")
# The attribute `loanasync.ledger` of each span, in the order in which they end. By default, no span has it.
LEDGER = {
    "ledger down": ["unavailable"],
    "ledger mismatch": ["claimed", "unavailable"],
    "in flight elsewhere": ["blocked", "claimed"],
    "other data": ["joined", None, "blocked"],
    "remembered": [None, "remembered"],
    "replayed by the ledger": ["claimed", "hit"],
    "unknown before": [None, "blocked"],
    "joined": [None, "joined"],
    "joined, and too late": [None, "joined"],
}


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
    every = [recorder.attributes(each) for each in recorder.spans()]
    # Without an outcome, a call joined a request that was not sent: it begins again, with another span.
    spans = [each for each in every if "loanasync.outcome" in each]
    ends = Counter(tuple(span.get(each) for each in NAMES) for span in spans)
    assert ends <= Counter(expected)  # a call that ends before it begins has no span
    assert [span.get("loanasync.ledger") for span in spans] == LEDGER.get(name, [None] * len(spans))
