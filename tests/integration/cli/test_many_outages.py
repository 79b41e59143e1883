"""``approve-many`` pauses while the circuit breaker is open. The tests control the service."""

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from support.cli import RunningCommand, make_row, read, start, write

APPROVED = b'{"approved": true}'
REFUSED = b'{"approved": false}'
DENIED = b'{"error": "Access denied"}'
PAUSED = "paused because the service responds only with errors or not at all; one row at a time tries again\n"
PAUSED_SHOP = (
    "paused because the service denies this shop; check LOANASYNC_SHOP_ID and LOANASYNC_AUTH_TOKEN; "
    "one row at a time tries again\n"
)


class Service:
    """A service whose response depends on the tag of the customer.

    It approves a customer with the tag ``later`` when `recovers` is set. `arrived` counts the requests.
    """

    def __init__(self, port: int) -> None:
        self.base_url = f"http://127.0.0.1:{port}"
        self.shop_id, self.auth_token = "shop", "token"
        self.recovers = threading.Event()
        self.arrived = 0

    def respond(self, body: dict[str, Any]) -> tuple[int, bytes]:
        """Return status and body of a response."""
        self.arrived += 1
        tag = body["email"].partition("+")[2].partition("@")[0]
        if tag == "later":
            assert self.recovers.wait(60)
        others = {"fails": (503, b""), "denied": (403, DENIED), "refused": (422, REFUSED)}
        return others.get(tag, (201, APPROVED))


@pytest.fixture
def service() -> Iterator[Service]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            status, body = controlled.respond(json.loads(self.rfile.read(length)))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    controlled = Service(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield controlled
    controlled.recovers.set()
    server.shutdown()
    server.server_close()
    thread.join()


@contextmanager
def running(service: Service, folder: Path, tags: list[str], *options: str) -> Iterator[RunningCommand]:
    rows = folder / "rows.jsonl"
    if tags:
        write(rows, [make_row(tag) for tag in tags])
    process = start(service, "approve-many", rows, "-o", folder / "out.jsonl", *options)  # type: ignore[arg-type]
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def read_until(process: RunningCommand, line: str) -> None:
    assert process.stderr is not None
    seen: list[str] = []
    while not seen or seen[-1] != line:
        seen.append(process.stderr.readline())
        assert seen[-1], f"{line!r} is not in {seen}"


def test_command_prints_when_it_pauses_and_continues(tmp_path: Path, service: Service) -> None:
    tags = ["approved", "later", *["fails"] * 5, *["approved"] * 4]
    with running(service, tmp_path, tags, "--concurrency", "2") as process:
        read_until(process, PAUSED)
        assert service.arrived == 7
        service.recovers.set()
        read_until(process, "continuing: the service decides again\n")
        assert process.wait() == 3
    found = [row["status"] for row in read(tmp_path / "out.jsonl")]
    assert sorted(found) == ["approved"] * 6 + ["unknown"] * 5


def test_interrupted_pause_leaves_the_waiting_rows_to_the_next_run(tmp_path: Path, service: Service) -> None:
    tags = ["approved", *["fails"] * 5, *["approved"] * 4]
    report = tmp_path / "report.json"
    with running(service, tmp_path, tags, "--concurrency", "1", "--report", str(report)) as process:
        read_until(process, PAUSED)
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
    members = json.loads(report.read_text(encoding="utf-8"))
    counts = {kind: each["rows"] for kind, each in members["counts"].items() if each["rows"]}
    assert counts == {"approved": 1, "unknown": 5, "to_be_sent": 4}
    assert (len(read(tmp_path / "out.jsonl")), service.arrived) == (6, 6)
    with running(service, tmp_path, []) as again:
        assert again.wait() == 3
    assert (len(read(tmp_path / "out.jsonl")), service.arrived) == (10, 10)


def test_run_of_a_shop_that_is_denied_from_the_beginning_stops(tmp_path: Path, service: Service) -> None:
    with running(service, tmp_path, ["denied"] * 20, "--concurrency", "1") as process:
        _, errors = process.communicate()
    cause = "the service denies this shop; check LOANASYNC_SHOP_ID and LOANASYNC_AUTH_TOKEN"
    assert f"stopped because {cause}; run the same command to resume\n" in errors
    assert (process.returncode, "paused" in errors) == (1, False)
    assert (len(read(tmp_path / "out.jsonl")), service.arrived) == (5, 5)


def test_run_of_a_shop_that_is_denied_later_pauses(tmp_path: Path, service: Service) -> None:
    with running(service, tmp_path, ["refused", *["denied"] * 20], "--concurrency", "1") as process:
        read_until(process, PAUSED_SHOP)
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
