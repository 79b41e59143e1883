"""A server that answers every request at once with bytes made before, so that only the client is tried."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

from loanasync import Decision, LoanClient
from support.builders import FISCAL_CODE, approval_request


def answer(status: int, body: bytes = b"{}", *headers: str) -> bytes:
    head = [f"HTTP/1.1 {status} Canned", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


APPROVAL = answer(201, b'{"approved":true,"redirectUrl":"https://example.com/#t","amount":45000}')
REFUSAL = answer(422, b'{"approved":false}')
FAULT = answer(500, b'{"errors":{"system":["System error"]}}')


class Canned:
    """Counts requests and connections; `script` says what request number n, from 0, is answered with."""

    def __init__(self, *answers: bytes | None) -> None:
        self.script: Callable[[int], bytes | None] = lambda number: answers[min(number, len(answers) - 1)]
        self.parts = 1  # in so many pieces every answer comes
        self.hangs_up = False  # after each answer
        self.requests = 0
        self.open: set[asyncio.Transport] = set()
        self.most_open = 0
        self.base_url = ""
        self.asked = asyncio.Event()
        self.deserted = asyncio.Event()

    async def asked_times(self, times: int) -> None:
        """Wait until so many requests have come in all."""
        while self.requests < times:
            self.asked.clear()
            await self.asked.wait()

    def answer_all(self, reply: bytes) -> None:
        """Answer whoever is connected."""
        for transport in self.open:
            transport.write(reply)

    def client(self, **options: object) -> LoanClient:
        """Return a client that sends each call: the tests request one approval many times."""
        fixed: dict[str, object] = {"shop_id": "shop", "auth_token": "secret-token", "remember": False}
        settings = {**fixed, **options}
        return LoanClient(self.base_url, **settings)  # type: ignore[arg-type]


class _Talk(asyncio.Protocol):
    def __init__(self, canned: Canned) -> None:
        self._canned = canned
        self._read = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are of a family of their own
        self._canned.open.add(self._transport)
        self._canned.most_open = max(self._canned.most_open, len(self._canned.open))
        self._canned.deserted.clear()

    def connection_lost(self, _: Exception | None) -> None:
        self._canned.open.discard(self._transport)
        if not self._canned.open:
            self._canned.deserted.set()

    def data_received(self, data: bytes) -> None:
        self._read += data
        head, found, body = self._read.partition(b"\r\n\r\n")
        if not found or len(body) < int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]):
            return
        self._read = b""
        number = self._canned.requests
        self._canned.requests += 1
        self._canned.asked.set()
        reply = self._canned.script(number)
        if reply is not None:
            step = -(-len(reply) // self._canned.parts)
            for part in range(self._canned.parts):
                piece = reply[part * step : (part + 1) * step]
                if part == 0:
                    self._transport.write(piece)
                else:
                    asyncio.get_running_loop().call_later(0.002 * part, self._transport.write, piece)
            if self._canned.hangs_up:
                self._transport.close()


@asynccontextmanager
async def serving(*answers: bytes | None) -> AsyncIterator[Canned]:
    canned = Canned(*answers)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Talk(canned), "127.0.0.1", 0, backlog=4096)
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
    """Ask for the approval of the same customer; who answers here does not mind."""
    return await client.approve(FISCAL_CODE, approval_request(), **options)  # type: ignore[arg-type]
