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
    UserData,
)
from loanasync.sandbox import Sandbox


class Recorded:
    """Spans and metrics of a service called ``loanasync-demo``."""

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
    def calls(self) -> Sequence[ReadableSpan]:
        """Those of whole calls: each is the root of its trace."""
        return [span for span in self.spans if span.parent is None]

    @property
    def metrics(self) -> MetricsData:
        """The metrics until now."""
        return self._reader.get_metrics_data() or MetricsData([])


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


_ANNA = "TSTNNA00A00A000A"  # made up, as is all else
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


async def demo(console: Console) -> Recorded:
    """Start a sandbox, walk two customers through it, print what happened, and hand on what was recorded."""
    recorded = Recorded()
    async with (
        Sandbox() as sandbox,
        sandbox.client(
            retry=RetryPolicy(base=0.05),
            tracer_provider=recorded.tracer_provider,
            meter_provider=recorded.meter_provider,
        ) as client,
    ):
        console.print(f"[bold]loanasync[/] against a sandbox at {sandbox.base_url}\n")
        await _approved(console, client)
        await _refused(console, client)
    console.print(tree_of(recorded.spans))
    return recorded


async def _approved(console: Console, client: LoanClient) -> None:
    console.rule("an approved customer")
    typo = _request("Anna", "500x2", 450)
    for problem in client.check(_ANNA, typo):
        console.print(f"check     nothing was sent yet: {escape(str(problem))}")
    created = await client.create_request({"fiscalCode": _ANNA})
    needed = isinstance(created, Mapping) and created.get("additionalDataNeeded")
    console.print(f"create    additional data needed: {needed}")
    decision = await client.approve(_ANNA, _request("Anna", "500x2", 45_000))
    _tell(console, decision)
    await client.upload_documents(_ANNA, {"front": "...", "back": "..."})
    console.print("documents handed in")
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
    console.print(f"complete  saved, printed masked: {saved}\n")


async def _refused(console: Console, client: LoanClient) -> None:
    console.rule("a refused customer")
    await client.create_request({"fiscalCode": _BRUNO})
    _tell(console, await client.approve(_BRUNO, _request("Bruno", "refused", 45_000)))
    console.print()


def _tell(console: Console, decision: Decision) -> None:
    attempts = decision.meta.attempts
    how = (
        "at the first attempt"
        if attempts == 1
        else f"at attempt {attempts}, the others were answered with 500"
    )
    match decision:
        case Approved(redirect_url=url, net_amount=net):
            console.print(
                f"approve   [green]approved[/] {how}; the shop receives {(net or 0) / 100:.2f} euro"
            )
            console.print(f"          send the customer to {escape(url or '')}", soft_wrap=True)
        case _:
            console.print(f"approve   [red]refused[/] {how}; final, offer another way to pay")


_PATIENCE = 5  # seconds for each of the two requests, the exporter's own retries included
_OK = range(200, 300)
_PATHS = ("/v1/traces", "/v1/metrics")

# The exporter logs its retries; `ExportError` reports the result.
logging.getLogger("opentelemetry.exporter.otlp").addHandler(logging.NullHandler())


class ExportError(Exception):
    """The collector did not take something; the message is a sentence for a person."""


def collector_at(address: str) -> URL:
    """Return the base address of a collector, as in OTEL_EXPORTER_OTLP_ENDPOINT.

    Raises:
        ValueError: It is no base address.
    """
    base = URL(address)
    if base.scheme not in ("http", "https") or not base.host:
        raise ValueError("must be an address such as http://localhost:4318")
    if base.user is not None or base.password is not None or base.query_string or base.fragment:
        raise ValueError("must be an address alone; credentials go into OTEL_EXPORTER_OTLP_HEADERS")
    if base.path.rstrip("/").endswith(_PATHS):
        raise ValueError("must be the base address: /v1/traces and /v1/metrics are appended to it")
    return base


def export(recorded: Recorded, base: URL, console: Console) -> None:
    """Send traces, then metrics, and print where they are to be found.

    Headers and certificates come from the environment, where every exporter of OpenTelemetry looks for them.

    Raises:
        ExportError: The collector did not take the traces or the metrics, or none were recorded.
    """
    if not recorded.spans:
        raise ExportError("nothing was exported: the environment has OTEL_SDK_DISABLED=true")
    traces = _send("traces", base, OTLPSpanExporter, recorded.spans)
    console.print(f"\ntraces    exported to {traces} as {recorded.service}; look for", soft_wrap=True)
    for span in recorded.calls:
        console.print(f"          {format_trace_id(span.context.trace_id)} {span.name}")
    metrics = _send("metrics", base, OTLPMetricExporter, recorded.metrics)
    console.print(f"metrics   exported to {metrics}", soft_wrap=True)


def _send(signal: str, base: URL, exporter: type[Any], content: object) -> URL:
    address = base / "v1" / signal
    answered: list[int] = []
    with requests.Session() as session:
        session.hooks["response"].append(lambda answer, **_: answered.append(answer.status_code))
        exporter(str(address), timeout=_PATIENCE, session=session).export(content)
    if not answered:
        silent = f"gave no answer over {address.scheme} in {_PATIENCE} seconds"
        advice = "does a collector listen there, for OTLP over HTTP (as a rule 4318, not gRPC's 4317)?"
        raise ExportError(f"{signal} were not exported: {address} {silent}; {advice}")
    if answered[-1] not in _OK:
        raise ExportError(f"{signal} were not exported: {address} answered {answered[-1]}")
    return address
