"""Failing parts of a user's telemetry, and calls that are made with them."""

import re
from collections.abc import Callable
from typing import Any, NoReturn
from unittest import mock

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import Sampler
from opentelemetry.trace import Tracer

from loanasync import LoanClient, LoanError
from loanasync.testing import approved, connection_lost, fiscal_code, refused, scripted_client, system_error
from support.builders import approval_request

NO_CONTEXT = trace.INVALID_SPAN_CONTEXT
SECRET = "zzq-secret"  # the text of each failure; it must not be logged


def fail(*_: object, **__: object) -> NoReturn:
    raise RuntimeError(SECRET)


class FailingSampler(Sampler):
    should_sample: Any = fail

    def get_description(self) -> str:
        return "fails"


class FailingStart(SpanProcessor):
    on_start = fail


class FailingEnd(SpanProcessor):
    on_end = fail


class FailingExporter(SpanExporter):
    export = fail


def provider_of(span: object) -> trace.TracerProvider:
    """Return a provider whose tracers start this span. If it is an exception, they raise it."""
    provider = mock.create_autospec(trace.TracerProvider, instance=True)
    provider.get_tracer.return_value = mock.create_autospec(Tracer, instance=True)
    provider.get_tracer.return_value.start_span.side_effect = lambda *_, **__: span
    if isinstance(span, BaseException):
        provider.get_tracer.return_value.start_span.side_effect = span
    return provider  # type: ignore[no-any-return]


class UnknownRecording(trace.NonRecordingSpan):
    is_recording = fail


class SpanWithoutContext(trace.NonRecordingSpan):
    get_span_context = fail


class FailingSpan(trace.NonRecordingSpan):
    set_attributes = fail

    def is_recording(self) -> bool:
        return True


def with_processor(processor: SpanProcessor, sampler: Sampler | None = None) -> TracerProvider:
    provider = TracerProvider(sampler=sampler)
    provider.add_span_processor(processor)
    return provider


PROVIDERS: dict[str, Callable[[], trace.TracerProvider]] = {
    "sampler": lambda: TracerProvider(sampler=FailingSampler()),
    "processor at a start": lambda: with_processor(FailingStart()),
    "processor at an end": lambda: with_processor(FailingEnd()),
    "exporter": lambda: with_processor(SimpleSpanProcessor(FailingExporter())),
    "tracer": lambda: provider_of(RuntimeError(SECRET)),
    "span": lambda: provider_of(FailingSpan(NO_CONTEXT)),
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
