"""Failing parts of a user's telemetry, and calls that are made with them."""

import re
from collections.abc import Callable
from typing import NoReturn
from unittest import mock

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import Sampler
from opentelemetry.trace import Tracer

from loanasync import LoanClient, LoanError
from loanasync.testing import (
    approved,
    connection_lost,
    fiscal_code,
    refused,
    scripted_client,
    system_error,
)
from support.builders import approval_request

SECRET = "zzq-secret"  # the text of each failure; it must not be logged


def fail(*_: object, **__: object) -> NoReturn:
    raise RuntimeError(SECRET)


class FailingSampler(Sampler):
    should_sample = fail

    def get_description(self) -> str:
        return "fails"


class FailingStart(SpanProcessor):
    on_start = fail


class FailingEnd(SpanProcessor):
    on_end = fail


class FailingExporter(SpanExporter):
    export = fail


class FailingIds(trace.TracerProvider):
    """A provider whose tracers fail to start a span."""

    def get_tracer(self, *_: object, **__: object) -> Tracer:
        tracer = mock.create_autospec(Tracer, instance=True)
        tracer.start_span.side_effect = RuntimeError(SECRET)
        return tracer  # type: ignore[no-any-return]


class NoIds(trace.TracerProvider):
    """A provider that is disabled: its spans have no trace id."""

    def get_tracer(self, *_: object, **__: object) -> Tracer:
        tracer = mock.create_autospec(Tracer, instance=True)
        tracer.start_span.return_value = trace.NonRecordingSpan(trace.INVALID_SPAN_CONTEXT)
        return tracer  # type: ignore[no-any-return]


class NoSpans(trace.TracerProvider):
    """A provider whose tracers return None instead of a span."""

    def get_tracer(self, *_: object, **__: object) -> Tracer:
        tracer = mock.create_autospec(Tracer, instance=True)
        tracer.start_span.return_value = None
        return tracer  # type: ignore[no-any-return]


class UnknownRecording(trace.TracerProvider):
    """A provider whose spans fail to say if they are recorded."""

    def get_tracer(self, *_: object, **__: object) -> Tracer:
        tracer = mock.create_autospec(Tracer, instance=True)
        tracer.start_span.return_value = mock.create_autospec(trace.Span, instance=True)
        tracer.start_span.return_value.is_recording.side_effect = RuntimeError(SECRET)
        tracer.start_span.return_value.get_span_context.return_value = trace.INVALID_SPAN_CONTEXT
        return tracer  # type: ignore[no-any-return]


class FailingSpan(trace.NonRecordingSpan):
    set_attributes = fail

    def is_recording(self) -> bool:
        return True


class FailingSpans(trace.TracerProvider):
    def get_tracer(self, *_: object, **__: object) -> Tracer:
        tracer = mock.create_autospec(Tracer, instance=True)
        tracer.start_span.return_value = FailingSpan(trace.INVALID_SPAN_CONTEXT)
        return tracer  # type: ignore[no-any-return]


def with_processor(processor: SpanProcessor) -> TracerProvider:
    provider = TracerProvider()
    provider.add_span_processor(processor)
    return provider


PROVIDERS: dict[str, Callable[[], trace.TracerProvider]] = {
    "sampler": lambda: TracerProvider(sampler=FailingSampler()),
    "processor at a start": lambda: with_processor(FailingStart()),
    "processor at an end": lambda: with_processor(FailingEnd()),
    "exporter": lambda: with_processor(SimpleSpanProcessor(FailingExporter())),
    "tracer": FailingIds,
    "span": FailingSpans,
}


async def approve_all(client: LoanClient) -> list[object]:
    """Request an approval after a 500, a refusal and a failure; return the types of the results."""
    results: list[object] = []
    for _ in range(3):
        try:
            results.append(type(await client.approve(fiscal_code(), approval_request())))
        except LoanError as error:
            results.append(type(error))
    return results


async def calls(**options: object) -> list[object]:
    script = (system_error(), approved(), refused(), connection_lost())
    return await approve_all(scripted_client(*script, **options))


BROKEN = "telemetry failed with RuntimeError; calls are not affected"
LOCATION = re.compile(r" \([a-z_]+\.py:[0-9]+\)")  # of what failed


def logged_failures(caplog: pytest.LogCaptureFixture) -> list[str]:
    own_records = [record for record in caplog.records if record.name == "loanasync"]
    return [record.getMessage() for record in own_records if "telemetry" in record.msg]
