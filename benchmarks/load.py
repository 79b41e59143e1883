"""A load generator: prepared requests, sent over kept connections as fast as one core can."""

import asyncio
import itertools
import json
import re
import string
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import cast
from urllib.parse import urlsplit

__all__ = ["LOST", "Connection", "Connections", "Shop", "connect", "connected", "fiscal_codes"]

LOST = 0  # counted instead of a status if the connection ended before the response

_END_OF_HEAD = b"\r\n\r\n"
_LENGTH = re.compile(rb"content-length: *([0-9]+)", re.IGNORECASE)

_APPROVAL = {
    "amount": 45_000,
    "instalments": 12,
    "loanFinality": "other",
    "lastname": "Prova",
    "firstname": "Anna",
    "mobilePhone": "3330000000",
    "countryCallingCode": "+39",
    "city": "Roma",
    "address": "Via Prova",
    "province": "RM",
    "postalCode": "00100",
    "streetNumber": "12/A",
    "citizenship": "italian",
    "zeroInterestRate": False,
}


def fiscal_codes() -> Iterator[str]:
    """Yield made-up fiscal codes, without repetition."""
    for letters in itertools.product(string.ascii_uppercase, repeat=3):
        yield from (f"TST{''.join(letters)}00A00{number:04}A" for number in range(10_000))


class Shop:
    """Requests of a shop, as bytes.

    Args:
        base_url: URL of the service.
        shop_id: The shop's name.
        auth_token: The shop's token.
    """

    def __init__(self, base_url: str, shop_id: str, auth_token: str) -> None:
        self._path = f"/api/shops/{shop_id}/requests"
        self._headers = f"Host: {urlsplit(base_url).netloc}\r\nX-Auth-Token: {auth_token}\r\n"

    def creation(self, code: str) -> bytes:
        """Return the request that creates an application (spec §4.3)."""
        return self._post("", {"fiscalCode": code, "privacy": True})

    def approval(self, code: str, tag: str = "") -> bytes:
        """Return the approval request (spec §4.1); a tag selects a fault of the sandbox."""
        return self._post(f"/{code}", {**_APPROVAL, "email": f"anna{tag}@example.com"})

    def _post(self, path: str, fields: dict[str, object]) -> bytes:
        body = json.dumps(fields).encode()
        head = f"POST {self._path}{path} HTTP/1.1\r\n{self._headers}Content-Type: application/json\r\n"
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


class Connection(asyncio.Protocol):
    """A kept connection with at most one request in flight."""

    def __init__(self) -> None:
        self._received = b""
        self._response: asyncio.Future[tuple[int, bytes]] | None = None
        self._transport: asyncio.Transport | None = None

    def send(self, request: bytes) -> "asyncio.Future[tuple[int, bytes]]":
        """Send a request, and return a future for status and body of the response."""
        self._response = asyncio.get_running_loop().create_future()
        if self._transport is None:
            self._response.set_exception(ConnectionError())
        else:
            self._transport.write(request)
        return self._response

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop has its own classes

    def data_received(self, data: bytes) -> None:
        """Collect data until the response is complete."""
        self._received += data
        head, whole, body = self._received.partition(_END_OF_HEAD)
        length = _LENGTH.search(head)
        if whole and length and len(body) >= int(length[1]) and self._response is not None:
            self._received = b""
            self._response.set_result((int(head[9:12]), body))

    def connection_lost(self, _: Exception | None) -> None:
        """Fail the response that is waited for."""
        self._transport = None
        if self._response is not None and not self._response.done():
            self._response.set_exception(ConnectionError())


async def connect(base_url: str) -> Connection:
    """Open a connection."""
    address = urlsplit(base_url)
    _, connection = await asyncio.get_running_loop().create_connection(
        Connection, address.hostname or "", address.port or 80
    )
    return connection


class Connections:
    """Connections that share a list of requests; opened by `connected`.

    Args:
        base_url: URL of the service.
        count: Number of connections.
    """

    def __init__(self, base_url: str, count: int) -> None:
        self._base_url = base_url
        self._connections = [Connection() for _ in range(count)]

    async def send(self, requests: Iterable[bytes]) -> Counter[int]:
        """Send all requests, and count the statuses; `LOST` is counted where no response arrives."""
        statuses: Counter[int] = Counter()
        waiting = iter(requests)
        indexes = range(len(self._connections))
        await asyncio.gather(*(self._work(index, waiting, statuses) for index in indexes))
        return statuses

    async def send_one(self, request: bytes) -> tuple[int, bytes]:
        """Send one request, and return status and body of the response."""
        return await self._connections[0].send(request)

    async def _work(self, index: int, waiting: Iterator[bytes], statuses: Counter[int]) -> None:
        for request in waiting:
            try:
                status, _ = await self._connections[index].send(request)
            except ConnectionError:
                status = LOST
                await self._connect(index)
            statuses[status] += 1

    async def _connect(self, index: int) -> None:
        self._connections[index] = await connect(self._base_url)

    async def open(self) -> None:
        """Open all connections."""
        for index in range(len(self._connections)):
            await self._connect(index)

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections:
            connection.close()


@asynccontextmanager
async def connected(base_url: str, count: int) -> AsyncIterator[Connections]:
    """Open connections, and close them at the end of the block."""
    connections = Connections(base_url, count)
    await connections.open()
    try:
        yield connections
    finally:
        connections.close()
