"""A shop in a hurry: requests made beforehand, sent on kept connections as fast as one core can."""

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

__all__ = ["LOST", "Line", "Shop", "Speaker", "connect", "connected", "fiscal_codes"]

LOST = 0  # instead of a status, when the connection ended before the answer did

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
    """Made-up codes without end, each of them once."""
    for letters in itertools.product(string.ascii_uppercase, repeat=3):
        yield from (f"TST{''.join(letters)}00A00{number:04}A" for number in range(10_000))


class Shop:
    """What a shop sends, as bytes.

    Args:
        base_url: The service's.
        shop_id: The shop's name.
        auth_token: The shop's token.
    """

    def __init__(self, base_url: str, shop_id: str, auth_token: str) -> None:
        self._path = f"/api/shops/{shop_id}/requests"
        self._headers = f"Host: {urlsplit(base_url).netloc}\r\nX-Auth-Token: {auth_token}\r\n"

    def creation(self, code: str) -> bytes:
        """Spec §4.3."""
        return self._post("", {"fiscalCode": code, "privacy": True})

    def approval(self, code: str, tag: str = "") -> bytes:
        """Spec §4.1; a tag asks the sandbox for a fault."""
        return self._post(f"/{code}", {**_APPROVAL, "email": f"anna{tag}@example.com"})

    def _post(self, path: str, fields: dict[str, object]) -> bytes:
        body = json.dumps(fields).encode()
        head = f"POST {self._path}{path} HTTP/1.1\r\n{self._headers}Content-Type: application/json\r\n"
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


class Line(asyncio.Protocol):
    """One kept connection, with one request on its way at a time."""

    def __init__(self) -> None:
        self._received = b""
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._transport: asyncio.Transport | None = None

    def ask(self, request: bytes) -> "asyncio.Future[tuple[int, bytes]]":
        """Send one; the status and body of its answer."""
        self._answer = asyncio.get_running_loop().create_future()
        if self._transport is None:
            self._answer.set_exception(ConnectionError())
        else:
            self._transport.write(request)
        return self._answer

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are of a family of their own

    def data_received(self, data: bytes) -> None:
        """Collect an answer until it is whole."""
        self._received += data
        head, whole, body = self._received.partition(_END_OF_HEAD)
        length = _LENGTH.search(head)
        if whole and length and len(body) >= int(length[1]) and self._answer is not None:
            self._received = b""
            self._answer.set_result((int(head[9:12]), body))

    def connection_lost(self, _: Exception | None) -> None:
        """End, also the wait for an answer."""
        self._transport = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError())


async def connect(base_url: str) -> Line:
    """A new connection."""
    address = urlsplit(base_url)
    _, line = await asyncio.get_running_loop().create_connection(
        Line, address.hostname or "", address.port or 80
    )
    return line


class Speaker:
    """Some connections that share the work; made by `connected`.

    Args:
        base_url: Where the service is.
        count: How many connections.
    """

    def __init__(self, base_url: str, count: int) -> None:
        self._base_url = base_url
        self._lines = [Line() for _ in range(count)]

    async def send(self, requests: Iterable[bytes]) -> Counter[int]:
        """Send them all, and count the statuses of their answers; `LOST` for those without."""
        statuses: Counter[int] = Counter()
        waiting = iter(requests)
        places = range(len(self._lines))
        await asyncio.gather(*(self._work(place, waiting, statuses) for place in places))
        return statuses

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """Send one, and return the status and body of its answer."""
        return await self._lines[0].ask(request)

    async def _work(self, place: int, waiting: Iterator[bytes], statuses: Counter[int]) -> None:
        for request in waiting:
            try:
                status, _ = await self._lines[place].ask(request)
            except ConnectionError:
                status = LOST
                await self._connect(place)
            statuses[status] += 1

    async def _connect(self, place: int) -> None:
        self._lines[place] = await connect(self._base_url)

    async def open(self) -> None:
        """Connect."""
        for place in range(len(self._lines)):
            await self._connect(place)

    def close(self) -> None:
        """Let go of all connections."""
        for line in self._lines:
            line.close()


@asynccontextmanager
async def connected(base_url: str, count: int) -> AsyncIterator[Speaker]:
    """Connections for the time of a block."""
    speaker = Speaker(base_url, count)
    await speaker.open()
    try:
        yield speaker
    finally:
        speaker.close()
