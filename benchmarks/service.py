"""A service that knows one answer, in a process and on a core of its own: only its clients are measured.

Run as a script it serves; whoever measures starts it with `serving` and talks to it in lines over pipes.
It can hold its answers back, so that many calls are in flight at once for as long as one likes.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from cores import pin

__all__ = ["DECISION", "Service", "more_files", "serving"]

# A decision as the service writes it, about a thousand bytes; the customer is made up.
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
    "amount": 45_000,
    "netAmount": 43_875,
    "instalments": 12,
    "zeroInterestRate": False,
    "orderToken": "order-2025-0000001",
    "paymentDayOfMonth": 15,
    "approvalMessageApiHeader": "La tua richiesta è stata approvata",
    "approvalMessageApiBody": "Prosegui per completare i tuoi dati e firmare il contratto.",
}

# A payment in the shape of mollie's, whose client reads no other.
_PAYMENT: dict[str, object] = {
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


def _answer(content: dict[str, object], kind: str) -> bytes:
    body = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
    head = (
        "HTTP/1.1 201 Created",
        "Date: Mon, 06 Jan 2025 10:00:00 GMT",
        f"Content-Type: {kind}; charset=utf-8",
        f"Content-Length: {len(body)}",
        "X-Request-Id: 0f8fad5b-d9cb-469f-a165-70867728950e",
        "Server: nginx",
    )
    return "\r\n".join(head).encode() + _END_OF_HEAD + body


class Service:
    """The service as those see it who measure its clients."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.base_url = self._line()
        self._busy, self._since = float(self._ask("busy")), time.perf_counter()

    def hold(self) -> None:
        """Answer nobody until `answer`."""
        self._ask("hold")

    def held(self) -> int:
        """How many requests wait for their answer."""
        return int(self._ask("held"))

    def answer(self) -> None:
        """Answer all that wait, and from now on at once."""
        self._ask("answer")

    def answer_late(self) -> None:
        """Answer after a millisecond, when the client has long come to rest: each call goes the same way."""
        self._ask("late")

    def busy(self) -> float:
        """The share of the time since it was last asked in which it worked; near 1, others wait for it."""
        busy, now = float(self._ask("busy")), time.perf_counter()
        share = (busy - self._busy) / (now - self._since)
        self._busy, self._since = busy, now
        return share

    def _ask(self, what: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()
        return self._line()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@contextmanager
def serving() -> Iterator[Service]:
    """A service on the second core, for the time of a block that works on the first."""
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


def more_files() -> int:
    """Let this process open as many files as the system allows, and tell how many these are."""
    import resource  # noqa: PLC0415  (Windows has none)

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most


class _State:
    """What all connections share."""

    def __init__(self) -> None:
        self.decision = _answer(DECISION, "application/json")
        self.payment = _answer(_PAYMENT, "application/hal+json")
        self.holds = False
        self.late = False
        self.held: list[asyncio.Transport] = []

    def release(self) -> int:
        self.holds = False
        for transport in self.held:
            transport.write(self.decision)
        count = len(self.held)
        self.held.clear()
        return count


class _Talk(asyncio.Protocol):
    """One connection: whatever is asked there, it is approved."""

    def __init__(self, state: _State) -> None:
        self._state = state
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are of a family of their own

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(_END_OF_HEAD)) >= 0:
            length = _LENGTH.search(self._received, 0, end)
            whole = end + len(_END_OF_HEAD) + (int(length[1]) if length else 0)
            if len(self._received) < whole:
                return
            is_payment = self._received.startswith(b"POST /v2/payments")
            self._received = self._received[whole:]
            answer = self._state.payment if is_payment else self._state.decision
            if self._state.holds:
                self._state.held.append(self._transport)
            elif self._state.late:
                asyncio.get_running_loop().call_later(0.001, self._transport.write, answer)
            else:
                self._transport.write(answer)


class _Commands(asyncio.Protocol):
    """Lines from those who measure; each is answered with a line."""

    def __init__(self, state: _State) -> None:
        self._state = state

    def data_received(self, data: bytes) -> None:
        for command in data.decode().split():
            print(self._done(command), flush=True)

    def _done(self, command: str) -> object:
        match command:
            case "hold":
                self._state.holds = True
                return "yes"
            case "late":
                self._state.late = True
                return "yes"
            case "held":
                return len(self._state.held)
            case "answer":
                return self._state.release()
            case _:
                return time.process_time()


async def _serve() -> None:
    more_files()
    loop, state = asyncio.get_running_loop(), _State()
    await loop.connect_read_pipe(lambda: _Commands(state), sys.stdin)
    server = await loop.create_server(lambda: _Talk(state), "127.0.0.1", 0, backlog=4096)
    host, port = server.sockets[0].getsockname()
    print(f"http://{host}:{port}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    try:
        import uvloop
    except ImportError:  # Windows has none
        asyncio.run(_serve())
    else:
        uvloop.run(_serve())
