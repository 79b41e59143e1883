"""What the demo recorded goes to a collector, over OTLP/HTTP."""

import logging
from collections.abc import Callable

import requests
from attrs import frozen
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.trace import format_trace_id
from rich.console import Console
from yarl import URL

from loanasync.cli.recorded import Recorded

_PATIENCE = 5  # seconds for each of the two requests, the exporter's own retries included
_OK = range(200, 300)
_PATHS = ("/v1/traces", "/v1/metrics")

# It tells of its retries; what they come to is said in our own sentence.
logging.getLogger("opentelemetry.exporter.otlp").addHandler(logging.NullHandler())


class ExportError(Exception):
    """The collector did not take something; the message is a sentence for a person."""


@frozen
class Collector:
    """A collector by its base address, as in OTEL_EXPORTER_OTLP_ENDPOINT: a path for each signal is appended.

    Headers and certificates come from the environment, where every exporter of OpenTelemetry looks for them.
    """

    base: URL

    @classmethod
    def at(cls, address: str) -> "Collector":
        """Read an address.

        Raises:
            ValueError: It is none.
        """
        base = URL(address)
        if base.scheme not in ("http", "https") or not base.host:
            raise ValueError("must be an address such as http://localhost:4318")
        if base.user is not None or base.password is not None or base.query_string or base.fragment:
            raise ValueError("must be an address alone; credentials go into OTEL_EXPORTER_OTLP_HEADERS")
        if base.path.rstrip("/").endswith(_PATHS):
            raise ValueError("must be the base address: /v1/traces and /v1/metrics are appended to it")
        return cls(base)

    def take(self, recorded: Recorded, console: Console) -> None:
        """Send traces, then metrics, and print where they are to be found.

        Raises:
            ExportError: Either was not taken, or there is nothing.
        """
        if not recorded.spans:
            raise ExportError("nothing was exported: the environment has OTEL_SDK_DISABLED=true")
        traces = self._send(
            "traces",
            lambda to, by: OTLPSpanExporter(to, timeout=_PATIENCE, session=by).export(recorded.spans),
        )
        console.print(f"\ntraces    exported to {traces} as {recorded.service}; look for", soft_wrap=True)
        for span in recorded.calls:
            console.print(f"          {format_trace_id(span.context.trace_id)} {span.name}")
        metrics = self._send(
            "metrics",
            lambda to, by: OTLPMetricExporter(to, timeout=_PATIENCE, session=by).export(recorded.metrics),
        )
        console.print(f"metrics   exported to {metrics}", soft_wrap=True)

    def _send(self, signal: str, export: Callable[[str, requests.Session], object]) -> URL:
        address = self.base / "v1" / signal
        answered: list[int] = []
        with requests.Session() as session:
            session.hooks["response"].append(lambda answer, **_: answered.append(answer.status_code))
            export(str(address), session)
        if not answered:
            silent = f"gave no answer over {address.scheme} in {_PATIENCE} seconds"
            advice = "does a collector listen there, for OTLP over HTTP (as a rule 4318, not gRPC's 4317)?"
            raise ExportError(f"{signal} were not exported: {address} {silent}; {advice}")
        if answered[-1] not in _OK:
            raise ExportError(f"{signal} were not exported: {address} answered {answered[-1]}")
        return address
