"""The span of an attempt over the client's own connections, which is not made the current one."""

import pytest
from opentelemetry.context import Context, attach

from loanasync._telemetry import spans
from loanasync.testing import TelemetryRecorder
from support.builders import FISCAL_CODE, approval_request
from support.canned_server import APPROVAL, serving

CALL, ATTEMPT = "loanasync.approve", "POST /api/shops/{shopId}/requests/{fiscalCode}"


async def test_only_the_span_of_the_call_is_attached(monkeypatch: pytest.MonkeyPatch) -> None:
    attached: list[Context] = []

    def count(context: Context) -> object:
        attached.append(context)
        return attach(context)

    monkeypatch.setattr(spans, "attach", count)
    recorder = TelemetryRecorder()
    async with serving(APPROVAL) as server, server.client(telemetry=recorder.telemetry) as client:
        await client.approve(FISCAL_CODE, approval_request())
    assert len(attached) == 1


async def test_exemplar_of_each_duration_has_the_id_of_its_span() -> None:
    recorder = TelemetryRecorder()
    async with serving(APPROVAL) as server, server.client(telemetry=recorder.telemetry) as client:
        await client.approve(FISCAL_CODE, approval_request())
    metrics = recorder._metrics()
    for name, metric in ((CALL, "loanasync.call.duration"), (ATTEMPT, "http.client.request.duration")):
        [span], [point] = recorder.spans(name), metrics[metric]
        assert [each.span_id for each in point.exemplars] == [span.context.span_id]
