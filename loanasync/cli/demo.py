"""A demo: complete loan requests against a sandbox, their spans, and an export to a collector."""

import logging
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

import requests
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricsData
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import StatusCode, format_trace_id
from rich.console import Console
from rich.markup import escape
from rich.tree import Tree
from yarl import URL

from loanasync import (
    ApprovalRequest,
    Approved,
    Citizenship,
    Decision,
    DocumentType,
    LoanClient,
    RetryPolicy,
    Telemetry,
    UserData,
)
from loanasync.sandbox import Sandbox


class Recording:
    """Recorded spans and metrics of the service ``loanasync-demo``."""

    service = "loanasync-demo"

    def __init__(self) -> None:
        resource = Resource.create({SERVICE_NAME: self.service})
        self._exporter = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        self.tracer_provider: TracerProvider = TracerProvider(ALWAYS_ON, resource)
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.meter_provider: MeterProvider = MeterProvider([self._reader], resource=resource)

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        """The spans that have ended."""
        return self._exporter.get_finished_spans()

    @property
    def metrics(self) -> MetricsData:
        """The metrics so far."""
        return self._reader.get_metrics_data() or MetricsData([])


_LABELS = {
    "http.response.status_code": "status",
    "http.request.resend_count": "resend",
    "loanasync.approved": "approved",
    "loanasync.attempts": "attempts",
}


def span_tree(spans: Sequence[ReadableSpan]) -> Tree:
    """Return a tree of calls, with the attempts of each call below it, in the order of their starts."""
    root = Tree("[bold]spans[/]" if spans else "[bold]spans[/]: none, OTEL_SDK_DISABLED is set")
    branches: dict[int, Tree] = {}
    for span in sorted(spans, key=lambda each: each.start_time or 0):
        parent = root if span.parent is None else branches[span.parent.span_id]
        branches[span.context.span_id] = parent.add(_span_label(span))
    return root


def _span_label(span: ReadableSpan) -> str:
    milliseconds = ((span.end_time or 0) - (span.start_time or 0)) / 1e6
    attributes = span.attributes or {}
    shown = " ".join(f"{label}={attributes[name]!r}" for name, label in _LABELS.items() if name in attributes)
    colour = "red" if span.status.status_code is StatusCode.ERROR else "green"
    return f"[{colour}]{escape(span.name)}[/] {milliseconds:.1f} ms [dim]{escape(shown)}[/]"


_ANNA = "TSTNNA00A00A000A"  # made up, like all data of the demo
_BRUNO = "TSTBRN00A00A000B"


def _request(first_name: str, tag: str, amount: int) -> ApprovalRequest:
    return ApprovalRequest(
        amount=amount,
        instalments=12,
        email=f"{first_name.lower()}+{tag}@example.com",
        last_name="Prova",
        first_name=first_name,
        mobile_phone="3330000000",
        city="Roma",
        address="Via Prova",
        province="RM",
        postal_code="00100",
        street_number="12/A",
        citizenship=Citizenship.ITALIAN,
    )


async def run_demo(console: Console) -> Recording:
    """Run the loan requests of two customers against a sandbox, print each step, and return the recording."""
    recording = Recording()
    async with (
        Sandbox() as sandbox,
        sandbox.client(
            retry=RetryPolicy(base=0.05),
            telemetry=Telemetry(
                tracer_provider=recording.tracer_provider, meter_provider=recording.meter_provider
            ),
        ) as client,
    ):
        console.print(f"[bold]loanasync[/] with a sandbox at {sandbox.base_url}\n")
        await _approved_customer(console, client)
        await _refused_customer(console, client)
    console.print(span_tree(recording.spans))
    return recording


async def _approved_customer(console: Console, client: LoanClient) -> None:
    console.rule("an approved customer")
    wrong_amount = _request("Anna", "500x2", 450)
    for problem in client.check(_ANNA, wrong_amount):
        console.print(f"check     invalid, not sent: {escape(str(problem))}")
    created = await client.create_request({"fiscalCode": _ANNA})
    needed = isinstance(created, Mapping) and created.get("additionalDataNeeded")
    console.print(f"create    additional data needed: {needed}")
    decision = await client.approve(_ANNA, _request("Anna", "500x2", 45_000))
    _print_decision(console, decision)
    await client.upload_documents(_ANNA, {"front": "...", "back": "..."})
    console.print("documents uploaded")
    saved = await client.complete(
        _ANNA,
        UserData(
            document_type=DocumentType.IDENTITY_CARD,
            document_code="AA00000AA",
            document_city="Roma",
            document_issue_date=date(2022, 5, 17),
            document_expiration_date=date(2032, 5, 17),
            politically_exposed=False,
            us_person=False,
            marketing=False,
        ),
    )
    console.print(f"complete  saved; the response, masked: {saved}\n")


async def _refused_customer(console: Console, client: LoanClient) -> None:
    console.rule("a refused customer")
    await client.create_request({"fiscalCode": _BRUNO})
    _print_decision(console, await client.approve(_BRUNO, _request("Bruno", "refused", 45_000)))
    console.print()


def _print_decision(console: Console, decision: Decision) -> None:
    attempts = decision.meta.attempts
    attempt = "the first attempt" if attempts == 1 else f"attempt {attempts}, after HTTP 500"
    match decision:
        case Approved(redirect_url=url, net_amount=net):
            console.print(
                f"approve   [green]approved[/] at {attempt}; the shop receives {(net or 0) / 100:.2f} euro"
            )
            console.print(f"          send the customer to {escape(url or '')}", soft_wrap=True)
        case _:
            console.print(f"approve   [red]refused[/] at {attempt}; final: offer another way to pay")


_EXPORT_TIMEOUT = 5  # seconds for each of the two requests, including the exporter's retries
_OK = range(200, 300)
_PATHS = ("/v1/traces", "/v1/metrics")

# The exporter logs its retries. They are not printed, because `ExportError` reports the result.
logging.getLogger("opentelemetry.exporter.otlp").addHandler(logging.NullHandler())


class ExportError(Exception):
    """Traces or metrics could not be exported. The text is shown to the user."""


def collector_at(address: str) -> URL:
    """Return the base URL of a collector, as in OTEL_EXPORTER_OTLP_ENDPOINT.

    Raises:
        ValueError: The text is not a base URL.
    """
    base = URL(address)
    if base.scheme not in ("http", "https") or not base.host:
        raise ValueError("must be a URL such as http://localhost:4318")
    if base.user is not None or base.password is not None or base.query_string or base.fragment:
        raise ValueError(
            "must have no credentials, query or fragment; put credentials into OTEL_EXPORTER_OTLP_HEADERS"
        )
    if base.path.rstrip("/").endswith(_PATHS):
        raise ValueError("must be the base URL: /v1/traces and /v1/metrics are appended to it")
    return base


def export(recording: Recording, base: URL, console: Console) -> None:
    """Send the traces, then the metrics, and print the trace ids.

    Headers and certificates come from the environment, as with every OpenTelemetry exporter.

    Raises:
        ExportError: The collector did not accept the traces or the metrics, or none were recorded.
    """
    if not recording.spans:
        raise ExportError("nothing was exported, because OTEL_SDK_DISABLED=true is set: unset it")
    traces = _send("traces", base, OTLPSpanExporter, recording.spans)
    console.print(
        f"\ntraces    exported to {traces} as {recording.service}; their trace ids:", soft_wrap=True
    )
    for span in recording.spans:
        if span.parent is None:  # the span of a call, above those of its attempts
            console.print(f"          {format_trace_id(span.context.trace_id)} {span.name}")
    metrics = _send("metrics", base, OTLPMetricExporter, recording.metrics)
    console.print(f"metrics   exported to {metrics}", soft_wrap=True)


def _send(signal: str, base: URL, exporter: type[Any], content: object) -> URL:
    address = base / "v1" / signal
    statuses: list[int] = []
    with requests.Session() as session:
        session.hooks["response"].append(lambda response, **_: statuses.append(response.status_code))
        exporter(str(address), timeout=_EXPORT_TIMEOUT, session=session).export(content)
    if not statuses:
        raise ExportError(
            f"{signal} were not exported: no response from {address} within {_EXPORT_TIMEOUT} seconds; "
            "check that a collector accepts OTLP over HTTP there (usually port 4318; 4317 is for gRPC)"
        )
    if statuses[-1] not in _OK:
        raise ExportError(f"{signal} were not exported: {address} returned HTTP {statuses[-1]}")
    return address
