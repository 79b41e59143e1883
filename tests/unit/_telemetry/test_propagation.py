"""Headers of the user's propagators, and propagators that fail."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import pytest
from opentelemetry import propagate
from opentelemetry.context import Context
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.trace import (
    INVALID_SPAN,
    NonRecordingSpan,
    SpanContext,
    TraceFlags,
    TraceState,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from loanasync import Approved, Telemetry
from loanasync._telemetry import log as package_log
from loanasync._telemetry.spans import injector
from loanasync.testing import ScriptedTransport, approved
from support.builders import FISCAL_CODE, approval_request
from support.failing_telemetry import BROKEN, LOCATION, calls, fail, logged_failures


@pytest.fixture(autouse=True)
def _no_earlier_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package_log, "_warned", set())


class Injecting(TextMapPropagator):
    """A propagator that injects the given headers; None: it fails."""

    fields: ClassVar[set[str]] = set()

    def __init__(self, headers: Mapping[Any, Any] | None) -> None:
        self._headers = headers

    def extract(self, carrier: Any, context: Context | None = None, getter: Any = None) -> Context:
        raise NotImplementedError

    def inject(self, carrier: Any, context: Context | None = None, setter: Any = None) -> None:
        del context, setter
        if self._headers is None:
            fail()
        carrier.update(self._headers)


@pytest.fixture
def propagator(request: pytest.FixtureRequest) -> Iterator[None]:
    before = propagate.get_global_textmap()
    propagate.set_global_textmap(Injecting(request.param))
    yield
    propagate.set_global_textmap(before)


@pytest.mark.parametrize("propagator", [None], indirect=True)
@pytest.mark.usefixtures("propagator")
async def test_failing_propagator_does_not_affect_calls(caplog: pytest.LogCaptureFixture) -> None:
    assert await calls(telemetry=Telemetry(propagate="global")) == await calls()
    assert [LOCATION.sub("", message) for message in logged_failures(caplog)] == [BROKEN]


@pytest.mark.parametrize(
    "propagator",
    [
        {
            "b3": "1",
            "X-Auth-Token": "theirs",
            "x-auth-token": "theirs",
            "content-length": "7",
            "host": "evil.example",
            "two\r\nlines": "1",
            "value": "two\r\nlines",
            "": "1",
            "number": 1,
            2: "two",
            b"bytes": "1",
            "none": None,
        }
    ],
    indirect=True,
)
@pytest.mark.usefixtures("propagator")
async def test_propagator_sends_only_valid_headers_that_are_not_reserved() -> None:
    plain, script = ScriptedTransport(approved()), ScriptedTransport(approved())
    await plain.client().approve(FISCAL_CODE, approval_request())
    assert isinstance(
        await script.client(telemetry=Telemetry(propagate="global")).approve(FISCAL_CODE, approval_request()),
        Approved,
    )
    assert script.sent[0].headers == {**plain.sent[0].headers, "b3": "1"}


# Headers of the request itself: of its body, its connection, its response and its sender.
RESERVED = [
    *("Content-Encoding", "Content-Length", "Content-Type", "Expect", "Trailer", "Transfer-Encoding"),
    *("Connection", "Host", "TE", "Upgrade", "Accept", "Accept-Encoding"),
    *("Cookie", "User-Agent", "X-Auth-Token"),
]


@pytest.mark.parametrize(
    "propagator",
    [{spelled: "theirs" for name in RESERVED for spelled in (name, name.lower(), name.upper())}],
    indirect=True,
)
@pytest.mark.usefixtures("propagator")
def test_propagator_cannot_set_headers_of_the_request() -> None:
    assert injector("global")(INVALID_SPAN, Context()) == {}


@pytest.mark.parametrize("state", [None, TraceState([("vendor", "1"), ("other", "2")])])
@pytest.mark.parametrize("flags", [0x00, 0x01, 0x03])
@pytest.mark.parametrize(("trace_id", "span_id"), [(0xAB, 0xCD), ((1 << 128) - 1, (1 << 64) - 1), (0, 0)])
def test_trace_headers_are_those_of_the_usual_propagator(
    trace_id: int, span_id: int, flags: int, state: TraceState | None
) -> None:
    ids = SpanContext(trace_id, span_id, False, TraceFlags(flags), state)  # noqa: FBT003  (`is_remote`)
    span, usual = NonRecordingSpan(ids), dict[str, str]()
    if trace_id:
        TraceContextTextMapPropagator().inject(usual, set_span_in_context(span))
    assert injector("traceparent")(span, Context()) == usual
    assert injector("off")(span, Context()) == {}
