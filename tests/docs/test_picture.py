"""The picture of traces is up to date, and shows the spans of real calls."""

import importlib.util
import re
from html import unescape
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from opentelemetry.trace import SpanKind, StatusCode

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("traces", DOCS / "traces.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
async def drawn(script: ModuleType) -> list[Any]:
    traces: list[Any] = await script.traces()
    return traces


def test_traces_picture_is_up_to_date(script: ModuleType, drawn: list[Any]) -> None:
    assert script.PICTURE.read_text(encoding="utf-8") == script.picture(drawn), "update it: nox -s pictures"


def test_traces_are_of_four_different_calls(drawn: list[Any]) -> None:
    calls = [each.spans[0] for each in drawn]
    assert [call.kind for call in calls] == [SpanKind.INTERNAL] * 4
    assert [call.attributes["loanasync.outcome"] for call in calls] == [
        *("approved", "approved", "refused"),
        "unknown",
    ]
    assert [call.attributes["loanasync.attempts"] for call in calls] == [1, 3, 1, 2]
    assert calls[-1].attributes["error.type"] == "ReadTimeoutError"
    for each in drawn:
        call, *attempts = each.spans
        assert all(attempt.parent.span_id == call.context.span_id for attempt in attempts)


def test_span_is_drawn_with_name_and_duration(script: ModuleType, drawn: list[Any]) -> None:
    picture = script.picture(drawn)
    spans = [span for each in drawn for span in each.spans]
    names = [unescape(name) for name in re.findall(r"<text [^>]+>([^<]+)<tspan", picture)]
    assert names == [span.name for span in spans]
    bars = re.findall(r'<rect class="([^"]+)" x="[\d.]+" y="\d+" width="([\d.]+)"', picture)
    kinds = {SpanKind.INTERNAL: "internal", SpanKind.CLIENT: "client"}
    for span, (classes, width) in zip(spans, bars, strict=True):
        failed = span.status.status_code is StatusCode.ERROR
        assert classes.split() == [kinds[span.kind], *(["error"] if failed else [])]
        share = (span.end_time - span.start_time) / 1e9 / script.SECONDS
        assert float(width) == pytest.approx(share * (script.RIGHT - script.LEFT), abs=0.1)


def test_picture_contains_no_ids_and_no_times(script: ModuleType, drawn: list[Any]) -> None:
    picture = script.picture(drawn)
    for each in drawn:
        for span in each.spans:
            for identifier in (f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}"):
                assert identifier not in picture
    assert "REDACTED" not in picture, "only names, kinds, durations and outcomes are drawn"
