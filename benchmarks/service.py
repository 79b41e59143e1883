"""A service that approves every order, in its own process and on its own core.

Benchmarks start it with `serving`, and send it commands over a pipe. It can hold its responses back, so
that many calls are in flight at the same time. Run as a script, it serves.
"""

import asyncio
import json
import os
import re
import ssl
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, cast

from cores import pin

# A decision as the service writes it, about a thousand bytes; the customer is made up. Servers replace the
# fiscal code by that of the request, since clients compare them.
DECISION: dict[str, object] = {
    "approved": True,
    "redirectUrl": "https://apply.example.com/it/continue#" + "0123456789abcdef" * 24,
    "email": "anna@example.com",
    "lastname": "Prova",
    "firstname": "Anna",
    "fiscalCode": "TSTXYZ00A00A000A",
    "mobilePhone": "3330000000",
    "city": "Roma",
    "address": "Via Prova",
    "province": "RM",
    "postalCode": "00100",
    "streetNumber": "12/A",
    "citizenship": "italian",
    "iban": "IT60X0542811101000000123456",
    "amount": 45_000,
    "netAmount": 43_875,
    "instalments": 12,
    "zeroInterestRate": False,
    "orderToken": "order-2025-0000001",
    "paymentDayOfMonth": 15,
    "approvalMessageApiFull": "La tua richiesta è stata approvata. Prosegui per firmare il contratto.",
    "approvalMessageApiSemiFull": "approved",
}

# A payment in the format of Mollie, whose client accepts no other response.
PAYMENT: dict[str, object] = {
    "resource": "payment",
    "id": "tr_5B8cwPMGnU6qLbRvo7qEZo",
    "mode": "test",
    "description": "order-2025-0000001",
    "amount": {"value": "450.00", "currency": "EUR"},
    "sequenceType": "oneoff",
    "profileId": "pfl_QkEhN94Ba",
    "status": "authorized",
    "createdAt": "2025-01-06T10:00:00+00:00",
    "redirectUrl": "https://shop.example.com/orders/1",
    "metadata": {"padding": "0123456789abcdef" * 24},
    "_links": {
        "self": {"href": "https://api.example.com/v2/payments/tr_5B8c", "type": "application/hal+json"},
        "checkout": {"href": "https://pay.example.com/checkout/tr_5B8c", "type": "text/html"},
        "dashboard": {"href": "https://www.example.com/dashboard/tr_5B8c", "type": "text/html"},
    },
}

_END_OF_HEAD = b"\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)", re.IGNORECASE)
_CODE = re.compile(rb"POST /api/shops/[^/]+/requests/([A-Z0-9]{16}) ")


def as_json(content: dict[str, object]) -> str:
    """Write the body of a response, without spaces."""
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"))


def _response(content: dict[str, object], kind: str) -> bytes:
    body = as_json(content).encode()
    head = (
        "HTTP/1.1 201 Created",
        "Date: Mon, 06 Jan 2025 10:00:00 GMT",
        f"Content-Type: {kind}; charset=utf-8",
        f"Content-Length: {len(body)}",
        "X-Request-Id: 0f8fad5b-d9cb-469f-a165-70867728950e",
        "Server: nginx",
    )
    return "\r\n".join(head).encode() + _END_OF_HEAD + body


class Server(ABC):
    """A handle on a running server.

    Args:
        base_url: Its URL.

    Attributes:
        trust: The TLS context of its clients; True without TLS.
    """

    trust: ssl.SSLContext | Literal[True] = True

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url
        self._cpu, self._since = self.cpu(), time.perf_counter()

    @abstractmethod
    def cpu(self) -> float:
        """Return the CPU time of its process, in seconds."""

    def busy(self) -> float:
        """Return the share of CPU time since the last call; near 1, clients wait for the server."""
        cpu, now = self.cpu(), time.perf_counter()
        share = (cpu - self._cpu) / (now - self._since)
        self._cpu, self._since = cpu, now
        return share


class Service(Server):
    """A handle on the running service, for benchmarks."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        super().__init__(self._line())

    def cpu(self) -> float:
        """Return the CPU time of its process, in seconds."""
        return float(self._command("cpu"))

    def hold(self) -> None:
        """Hold all responses until `release`."""
        self._command("hold")

    def held(self) -> int:
        """Return the number of requests that wait for a response."""
        return int(self._command("held"))

    def release(self) -> None:
        """Send the responses that were held, and respond at once from now on."""
        self._command("release")

    def respond_late(self) -> None:
        """Respond after a millisecond, so that the client is idle and all calls take the same path."""
        self._command("late")

    def _command(self, command: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return self._line()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@contextmanager
def serving() -> Iterator[Service]:
    """Run the service on the last core and this process on the first, until the end of the block."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, str(Path(__file__))], stdin=pipe, stdout=pipe, text=True
    ) as process:
        pin(process.pid, -1)
        pin(os.getpid(), 0)
        try:
            yield Service(process)
        finally:
            process.terminate()


def raise_file_limit() -> int:
    """Raise the limit of open files as far as the system allows, and return it."""
    import resource  # noqa: PLC0415  (not available on Windows)

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most


class _State:
    """State shared by all connections."""

    def __init__(self) -> None:
        self._decision = _response(DECISION, "application/json")
        self._code = str(DECISION["fiscalCode"]).encode()
        self._payment = _response(PAYMENT, "application/hal+json")
        self.holds = False
        self.late = False
        self.held: list[tuple[asyncio.Transport, bytes]] = []

    def response(self, request: bytes) -> bytes:
        if request.startswith(b"POST /v2/payments"):
            return self._payment
        found = _CODE.match(request)
        return self._decision.replace(self._code, found[1]) if found else self._decision

    def release(self) -> int:
        self.holds = False
        for transport, response in self.held:
            transport.write(response)
        count = len(self.held)
        self.held.clear()
        return count


class _ServerConnection(asyncio.Protocol):
    """A connection on which every request is approved."""

    def __init__(self, state: _State) -> None:
        self._state = state
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop has its own classes

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(_END_OF_HEAD)) >= 0:
            length = _LENGTH.search(self._received, 0, end)
            whole = end + len(_END_OF_HEAD) + (int(length[1]) if length else 0)
            if len(self._received) < whole:
                return
            response = self._state.response(self._received)
            self._received = self._received[whole:]
            if self._state.holds:
                self._state.held.append((self._transport, response))
            elif self._state.late:
                asyncio.get_running_loop().call_later(0.001, self._transport.write, response)
            else:
                self._transport.write(response)


class _Commands(asyncio.Protocol):
    """Commands of benchmarks, one per line; each gets a line as result."""

    def __init__(self, state: _State) -> None:
        self._state = state

    def data_received(self, data: bytes) -> None:
        for command in data.decode().split():
            print(self._run(command), flush=True)

    def _run(self, command: str) -> object:
        match command:
            case "hold":
                self._state.holds = True
                return "yes"
            case "late":
                self._state.late = True
                return "yes"
            case "held":
                return len(self._state.held)
            case "release":
                return self._state.release()
            case _:
                return time.process_time()


async def _serve() -> None:
    raise_file_limit()
    loop, state = asyncio.get_running_loop(), _State()
    await loop.connect_read_pipe(lambda: _Commands(state), sys.stdin)
    server = await loop.create_server(lambda: _ServerConnection(state), "127.0.0.1", 0, backlog=4096)
    host, port = server.sockets[0].getsockname()
    print(f"http://{host}:{port}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    try:
        import uvloop
    except ImportError:  # not available on Windows
        asyncio.run(_serve())
    else:
        uvloop.run(_serve())
