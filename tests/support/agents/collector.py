"""A local server that keeps all bytes that an agent sends, and a search in the bytes."""

import json
import re
import ssl
import zlib
from base64 import b64decode
from binascii import Error
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import parse_qs, urlsplit

from attrs import define, field

from support.raw_server import Certificate, certificate

_GZIP, _ZSTD = b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd"
_ZLIB = (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")
_BASE64 = re.compile(rb"[A-Za-z0-9+/]{40,}={0,2}")
# The paths that Datadog's agent offers; without them, ddtrace does not send snapshots of exceptions.
_ENDPOINTS = ["/v0.4/traces", "/v0.5/traces", "/debugger/v1/input", "/debugger/v1/diagnostics"]
_ENDPOINTS += ["/debugger/v2/input", "/profiling/v1/input", "/telemetry/proxy/", "/symdb/v1/input"]
_EVENTS = ("analytic_event_data", "custom_event_data", "error_event_data", "log_event_data")


@define
class Collector:
    """The received requests: path, headers and body of each."""

    address: str  # host and port
    received: list[tuple[str, str, bytes]] = field(factory=list)

    def text(self) -> str:
        """Return all that was received, decompressed."""
        parts = (f"{path}\n{headers}\n".encode() + body for path, headers, body in self.received)
        return "\n".join(each.decode("latin-1") for part in parts for each in unpacked(part))


def unpacked(data: bytes) -> Iterator[bytes]:
    """Yield data, and all data compressed in it, also if it is base64 in a text."""
    yield data
    for start in _starts(data, _GZIP):
        with suppress(EOFError, zlib.error):
            yield from unpacked(zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(data[start:]))
    for start in _starts(data, _ZSTD):
        yield from unpacked(_from_zstd(data[start:]))
    for start in (start for mark in _ZLIB for start in _starts(data, mark)):
        with suppress(zlib.error):
            yield from unpacked(zlib.decompressobj().decompress(data[start:]))
    for found in _BASE64.findall(data):
        with suppress(Error):
            decoded = b64decode(found)
            if decoded.startswith((_GZIP, _ZSTD, *_ZLIB)):
                yield from unpacked(decoded)


def _starts(data: bytes, mark: bytes) -> Iterator[int]:
    return (found.start() for found in re.finditer(re.escape(mark), data))


def _from_zstd(data: bytes) -> bytes:
    import zstandard  # noqa: PLC0415  (only `nox -s agents` installs it)

    with suppress(zstandard.ZstdError):
        whole: bytes = zstandard.ZstdDecompressor().decompressobj().decompress(data)
        return whole
    return b""


def _response(path: str, host: str) -> object:
    """Return the JSON response that keeps an agent sending."""
    url = urlsplit(path)
    if url.path == "/info":  # ddtrace
        return {"endpoints": _ENDPOINTS, "client_drop_p0s": False, "version": "7.60.0"}
    if url.path == "/v1/info":  # logfire
        return {"project_name": "shop", "project_url": f"http://{host}"}
    if url.path == "/agent_listener/invoke_raw_method":  # newrelic
        limits = dict.fromkeys(_EVENTS, 10_000)
        values: dict[str, object] = {
            "preconnect": {"redirect_host": host.partition(":")[0]},
            "connect": {
                "agent_run_id": "1",
                "account_id": "1",
                "trusted_account_key": "1",
                "primary_application_id": "1",
                "event_harvest_config": {"report_period_ms": 5_000, "harvest_limits": limits},
                "sampling_target": 1_000,
                "span_event_harvest_config": {"report_period_ms": 5_000, "harvest_limit": 2_000},
            },
            "get_agent_commands": [],
        }
        return {"return_value": values.get(parse_qs(url.query)["method"][0])}
    return {}


@contextmanager
def collecting(*, tls: bool = False) -> Iterator[Collector]:
    """Run a collector."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = b"".join(self._chunks())
            collector.received.append((self.path, str(self.headers), body))
            sent = json.dumps(_response(self.path, collector.address)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        do_GET = do_PUT = do_POST  # noqa: N815  (names of http.server)

        def _chunks(self) -> Iterator[bytes]:
            if self.headers.get("Transfer-Encoding") != "chunked":
                yield self.rfile.read(int(self.headers.get("Content-Length", 0)))
                return
            while size := int(self.rfile.readline(), 16):
                yield self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()

        def log_message(self, *_: object) -> None:
            pass

    with serving(Handler, certificate(Certificate.GOOD) if tls else None) as address:
        collector = Collector(address)
        yield collector


@contextmanager
def serving(
    handler: Callable[..., BaseHTTPRequestHandler], tls: ssl.SSLContext | None = None
) -> Iterator[str]:
    """Run a server in a thread, and yield its host and port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
