"""A tree of finished spans, as a person reads it."""

from collections.abc import Sequence

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode
from rich.markup import escape
from rich.tree import Tree

_SHOWN = {
    "http.response.status_code": "status",
    "http.request.resend_count": "resend",
    "loanasync.approved": "approved",
    "loanasync.attempts": "attempts",
}


def tree_of(spans: Sequence[ReadableSpan]) -> Tree:
    """Calls with their attempts below them, in the order in which they began."""
    root = Tree("[bold]spans[/]" if spans else "[bold]spans[/]: none, OTEL_SDK_DISABLED is set")
    branches: dict[int, Tree] = {}
    for span in sorted(spans, key=lambda each: each.start_time or 0):
        above = root if span.parent is None else branches[span.parent.span_id]
        branches[span.context.span_id] = above.add(_line(span))
    return root


def _line(span: ReadableSpan) -> str:
    milliseconds = ((span.end_time or 0) - (span.start_time or 0)) / 1e6
    attributes = span.attributes or {}
    said = " ".join(f"{label}={attributes[name]!r}" for name, label in _SHOWN.items() if name in attributes)
    colour = "red" if span.status.status_code is StatusCode.ERROR else "green"
    return f"[{colour}]{escape(span.name)}[/] {milliseconds:.1f} ms [dim]{escape(said)}[/]"
