"""Bodies that are cut off by a lost connection or a timeout, on each HTTP path."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp
import pytest

from loanasync import Approved, LoanClient, LoanError, Timeout
from loanasync._protocol.messages import Response
from loanasync._transport import failures
from support.builders import FISCAL_CODE, approval_request
from support.direct_path import needs_direct_path
from support.raw_server import Exchange, Play, RawServer, running, until

PATHS = ("direct", "own session", "direct, user's session", "user's session")
MAX_BODY_SIZE = 1 << 20
SOON = Timeout(total=20, attempt=0.6, connect=0.5)


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest) -> str:
    """Run the test on each HTTP path."""
    name: str = request.param
    return name


@asynccontextmanager
async def client_of(server: RawServer, path: str) -> AsyncIterator[LoanClient]:
    async with aiohttp.ClientSession() as users:
        session = users if "user" in path else None
        async with LoanClient(
            server.base_url,
            shop_id="s",
            auth_token="t",
            session=session,
            timeout=SOON,
            direct_connections="direct" in path,
        ) as client:
            yield client


async def outcome(path: str, *exchange: bytes | Play) -> object:
    """Return the result of an approval with this response."""
    steps: Exchange = (Play.READ, *exchange)
    async with running(RawServer(steps)) as server, client_of(server, path) as client:
        try:
            return await client.approve(FISCAL_CODE, approval_request())
        except LoanError as error:
            return error


def head(status: str, *headers: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", *(headers or ("Content-Length: 5000",)), "", ""]).encode()


def chunk(part: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(part), part)


APPROVED_PART = b'{"approved":true,"redirectUrl":"https://x.exam'


@needs_direct_path
async def test_chunked_201_that_breaks_at_once_is_approved_on_the_direct_path() -> None:
    """With a plain aiohttp session, the response is lost if its head and the fault arrive together."""
    start = head("201 Created", "Transfer-Encoding: chunked")
    decision = await outcome("direct", start + chunk(APPROVED_PART) + b"no chunk\r\n", Play.FIN)
    assert isinstance(decision, Approved), decision
    assert (decision.redirect_url, decision.meta.unread) == (None, ("body",))


async def test_cut_off_201_that_failed_before_it_was_read_is_approved(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed StreamReader of aiohttp still holds the data received before."""
    read = failures.read

    async def read_late(
        status: int, headers: Mapping[str, str], content: aiohttp.StreamReader, body: bytearray
    ) -> Response:
        await until(lambda: content.exception() is not None)
        return await read(status, headers, content, body)

    monkeypatch.setattr(failures, "read", read_late)
    decision = await outcome(path, head("201 Created") + APPROVED_PART, Play.FIN)
    assert isinstance(decision, Approved), decision
    assert decision.meta.unread == ("body",)


async def test_cut_off_201_in_several_pieces_is_approved(path: str) -> None:
    pieces = [APPROVED_PART[at : at + 9] for at in range(0, len(APPROVED_PART), 9)]
    decision = await outcome(path, head("201 Created"), *pieces, Play.FIN)
    assert isinstance(decision, Approved), decision


async def test_too_large_201_with_approved_true_is_approved(path: str) -> None:
    body = b'{"approved":true,"note":"' + b"x" * (MAX_BODY_SIZE + 10) + b'"}'
    decision = await outcome(path, head("201 Created", f"Content-Length: {len(body)}") + body)
    assert isinstance(decision, Approved), decision
    assert decision.meta.unread == ("body",)
