"""A small OTLP collector over HTTP, which records the requests that it receives."""

import gzip
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from attrs import define, field, frozen
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue


@frozen
class Received:
    path: str
    headers: dict[str, str]
    body: bytes


@define
class Collector:
    url: str
    statuses: dict[str, int]
    received: list[Received] = field(factory=list)

    def bodies(self, path: str) -> list[bytes]:
        return [each.body for each in self.received if each.path == path]

    def traces(self, path: str = "/v1/traces") -> ExportTraceServiceRequest:
        [body] = self.bodies(path)
        request = ExportTraceServiceRequest()
        request.ParseFromString(body)
        return request

    def metrics(self, path: str = "/v1/metrics") -> ExportMetricsServiceRequest:
        [body] = self.bodies(path)
        request = ExportMetricsServiceRequest()
        request.ParseFromString(body)
        return request


@contextmanager
def collecting(statuses: dict[str, int] | None = None) -> Iterator[Collector]:
    """Run a collector that responds with 200, or with the status that `statuses` has for the path."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent = self.rfile.read(int(self.headers["Content-Length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            body = gzip.decompress(sent) if headers.get("content-encoding") == "gzip" else sent
            collector.received.append(Received(self.path, headers, body))
            self.send_response(collector.statuses.get(self.path, 200))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector = Collector(f"http://127.0.0.1:{server.server_port}", statuses or {})
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()


def plain(attributes: Iterable[KeyValue]) -> dict[str, Any]:
    """Return attributes as a dict of Python values."""
    return {each.key: getattr(each.value, each.value.WhichOneof("value") or "") for each in attributes}
