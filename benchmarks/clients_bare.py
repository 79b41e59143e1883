"""The lower bound: an asyncio protocol for this one call, without anything else."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast
from urllib.parse import urlsplit

from order import TOKEN, Call, Result, Scenario

_END_OF_HEAD = b"\r\n\r\n"
_LENGTH = re.compile(rb"content-length: *([0-9]+)", re.IGNORECASE)


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


@asynccontextmanager
async def bare(scenario: Scenario) -> AsyncIterator[Call]:
    """Write bytes to a kept connection, and parse status and JSON; no timeouts, no TLS, no errors."""
    head = (
        f"HTTP/1.1\r\nHost: {scenario.base_url.removeprefix('http://')}\r\nX-Auth-Token: {TOKEN}\r\n"
        "Content-Type: application/json\r\nContent-Length:"
    )
    idle: list[Connection] = []

    async def call() -> Result:
        connection = idle.pop() if idle else await connect(scenario.base_url)
        body = json.dumps(scenario.order.members)
        request = f"POST {scenario.path()} {head} {len(body)}\r\n\r\n{body}"
        status, response = await connection.send(request.encode())
        idle.append(connection)
        return status, json.loads(response)["approved"]

    yield call
    for connection in idle:
        connection.close()
