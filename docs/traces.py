"""Draw the picture of four traces from the spans of real calls (`nox -s pictures`).

A scripted transport also provides the clock of client and spans, so the picture changes only with the spans.
"""

import asyncio
import contextlib
from pathlib import Path
from unittest import mock

from attrs import frozen
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode

from loanasync import LoanError, Timeout
from loanasync.testing import (
    ScriptedResponse,
    ScriptedTransport,
    SentRequest,
    TelemetryRecorder,
    approval_request,
    approved,
    computed,
    fiscal_code,
    refused,
    system_error,
    timed_out,
)

HERE = Path(__file__).parent
PICTURE = HERE / "_static" / "traces.svg"
SECONDS = 4  # length of the axis, and deadline of the last call
LEFT, RIGHT, TOP = 8, 712, 8
ROW, HEADING, GAP = 34, 26, 16
# Attributes that differ between the spans, in the order in which they are shown.
SHOWN = {
    "http.response.status_code": "{}",
    "http.request.resend_count": "resend {}",
    "loanasync.outcome": "{}",
    "error.type": "{}",
    "loanasync.attempts": "attempts {}",
    "loanasync.stopped_by": "stopped by {}",
}


@frozen
class Trace:
    """The spans of a call, the outer one first, and a heading."""

    heading: str
    spans: tuple[ReadableSpan, ...]


def main() -> None:
    """Write the picture."""
    PICTURE.write_text(picture(asyncio.run(traces())), encoding="utf-8")


async def traces() -> list[Trace]:
    """Return the traces of four approvals, with the durations of the script."""
    return [
        await trace("Approved at once", (0.9, approved())),
        await trace(
            "Approved after two system errors, each with Retry-After: 1",
            (0.4, system_error(retry_after=1)),
            (0.3, system_error(retry_after=1)),
            (0.8, approved()),
        ),
        await trace("Refused: a regular result, so the call is not an error", (0.7, refused())),
        await trace(
            "Ended by the deadline: the decision of the service is unknown",
            (0.6, system_error(retry_after=1)),
            (SECONDS, timed_out()),
        ),
    ]


async def trace(heading: str, *script: tuple[float, ScriptedResponse]) -> Trace:
    """Make a call whose responses arrive after these seconds, and return its trace."""
    recorder = TelemetryRecorder()
    transport = ScriptedTransport()

    def after(seconds: float, step: ScriptedResponse) -> ScriptedResponse:
        def respond(sent: SentRequest) -> ScriptedResponse:
            transport.clock.time += min(seconds, sent.within)
            return step

        return computed(respond)

    def now() -> int:
        return round(transport.clock.time * 1e9)

    transport.add(*(after(*each) for each in script))
    client = transport.client(telemetry=recorder.telemetry)
    limits = Timeout(total=SECONDS, attempt=3, connect=1)
    with mock.patch("opentelemetry.sdk.trace.time_ns", now), contextlib.suppress(LoanError):
        await client.approve(fiscal_code(), approval_request(), timeout=limits)
    return Trace(heading, tuple(sorted(recorder.spans(), key=lambda span: span.parent is not None)))


def picture(drawn: list[Trace]) -> str:
    """Return the picture as SVG, with text and lines in the colour of the surrounding page."""
    groups, top = [], TOP
    for each in drawn:
        rows = [_row(span, each.spans[0], top + HEADING + ROW * at) for at, span in enumerate(each.spans)]
        groups.append({"heading": each.heading, "top": top, "rows": rows})
        top += HEADING + ROW * len(each.spans) + GAP
    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    ticks = [(second, _x(second)) for second in range(SECONDS + 1)]
    return environment.get_template("traces.svg.jinja").render(groups=groups, ticks=ticks, bottom=top)


def _row(span: ReadableSpan, call: ReadableSpan, top: int) -> dict[str, object]:
    """Return a span and its position in the picture."""
    attributes = span.attributes or {}
    labels = (form.format(attributes[name]) for name, form in SHOWN.items() if name in attributes)
    error = " error" if span.status.status_code is StatusCode.ERROR else ""
    return {
        "name": span.name,
        "label": ", ".join(dict.fromkeys(labels)),  # the error type of a response is its status
        "kind": span.kind.name.lower() + error,
        "indent": LEFT if span.parent is None else 2 * LEFT,
        "left": _x(_seconds(call.start_time, span.start_time)),
        "width": round((RIGHT - LEFT) * _seconds(span.start_time, span.end_time) / SECONDS, 1),
        "top": top,
    }


def _seconds(begin: int | None, end: int | None) -> float:
    return ((end or 0) - (begin or 0)) / 1e9


def _x(seconds: float) -> float:
    return round(LEFT + (RIGHT - LEFT) * seconds / SECONDS, 1)


if __name__ == "__main__":
    main()
