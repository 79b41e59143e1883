"""A server that responds to every request at once with prepared bytes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

from loanasync import Decision, LoanClient
from support.builders import FISCAL_CODE, approval_request
from support.separate import SeparateClient


def response_bytes(status: int, body: bytes = b"{}", *headers: str) -> bytes:
    head = [f"HTTP/1.1 {status} Canned", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


# A connection is reused only after a response that names the customer.
APPROVAL = response_bytes(
    201,
    b'{"approved":true,"fiscalCode":"TSTXYZ00A00A000A","redirectUrl":"https://example.com/#t","amount":45000}',
)
ANY_APPROVAL = response_bytes(201, b'{"approved":true}')  # of any customer
REFUSAL = response_bytes(422, b'{"approved":false,"fiscalCode":"TSTXYZ00A00A000A"}')
FAULT = response_bytes(500, b'{"errors":{"system":["System error"]}}')


class Canned:
    """The server's script and its counters.

    `script` returns the response to request number n, counted from 0; None for no response. The last of
    `responses` is repeated.
    """

    def __init__(self, *responses: bytes | None) -> None:
        self.script: Callable[[int], bytes | None] = lambda number: responses[min(number, len(responses) - 1)]
        self.closes_after_response = False
        self.requests = 0
        self.open: set[asyncio.Transport] = set()
        self.most_open = 0
        self.connections = 0
        self.base_url = ""
        self.arrived = asyncio.Event()
        self.all_closed = asyncio.Event()

    async def wait_for_requests(self, count: int) -> None:
        """Wait until `count` requests have arrived in total."""
        while self.requests < count:
            self.arrived.clear()
            await self.arrived.wait()

    def respond_to_all(self, response: bytes) -> None:
        """Write a response to every open connection."""
        for transport in self.open:
            transport.write(response)

    def client(self, *, separate: bool = True, **options: object) -> LoanClient:
        """Return a client. By default it sends each call: the tests request one approval many times."""
        kind = SeparateClient if separate else LoanClient
        settings = {"shop_id": "shop", "auth_token": "secret-token", **options}
        return kind(self.base_url, **settings)  # type: ignore[arg-type]


class _ServerProtocol(asyncio.Protocol):
    def __init__(self, canned: Canned) -> None:
        self._canned = canned
        self._read = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are not subclasses of asyncio's
        self._canned.open.add(self._transport)
        self._canned.connections += 1
        self._canned.most_open = max(self._canned.most_open, len(self._canned.open))
        self._canned.all_closed.clear()

    def connection_lost(self, _: Exception | None) -> None:
        self._canned.open.discard(self._transport)
        if not self._canned.open:
            self._canned.all_closed.set()

    def data_received(self, data: bytes) -> None:
        self._read += data
        head, found, body = self._read.partition(b"\r\n\r\n")
        if not found or len(body) < int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]):
            return
        self._read = b""
        number = self._canned.requests
        self._canned.requests += 1
        self._canned.arrived.set()
        response = self._canned.script(number)
        if response is not None:
            self._transport.write(response)
            if self._canned.closes_after_response:
                self._transport.close()


@asynccontextmanager
async def serving(*responses: bytes | None) -> AsyncIterator[Canned]:
    canned = Canned(*responses)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _ServerProtocol(canned), "127.0.0.1", 0, backlog=4096)
    host, port = server.sockets[0].getsockname()
    canned.base_url = f"http://{host}:{port}"
    try:
        yield canned
    finally:
        server.close()
        for transport in tuple(canned.open):
            transport.abort()
        await asyncio.sleep(0)


async def approve(client: LoanClient, **options: object) -> Decision:
    """Request the approval of always the same customer."""
    return await client.approve(FISCAL_CODE, approval_request(), **options)  # type: ignore[arg-type]
