"""Bodies that are cut off by a lost connection or a timeout, on each HTTP path."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp
import pytest

from loanasync import Approved, LoanClient, LoanError, RawResponse, Refused, Timeout, UnexpectedResponseError
from loanasync._protocol.messages import Response
from loanasync._transport import failures
from support.builders import FISCAL_CODE, approval_request
from support.direct_path import needs_direct_path
from support.raw_server import Exchange, Play, RawServer, running, until

PATHS = ("direct", "own session", "direct, user's session", "user's session")
# Not a reset: the system may drop data that was received before it.
ENDS = {"closed": Play.FIN, "silent": Play.SILENCE}
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
REFUSED_PART = b'{"approved":false,"email":"an'


@pytest.mark.parametrize("end", ["closed", "silent"])
async def test_cut_off_201_with_approved_true_is_approved(path: str, end: str) -> None:
    decision = await outcome(path, head("201 Created") + APPROVED_PART, ENDS[end])
    assert isinstance(decision, Approved), decision
    assert (decision.redirect_url, decision.meta.unread, decision.meta.status) == (None, ("body",), 201)


@pytest.mark.parametrize("end", ["closed", "silent"])
async def test_cut_off_422_with_approved_false_is_refused(path: str, end: str) -> None:
    decision = await outcome(path, head("422 No") + REFUSED_PART, ENDS[end])
    assert isinstance(decision, Refused), decision
    assert (decision.meta.unread, decision.meta.status) == (("body",), 422)


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


async def test_cut_off_chunked_201_is_approved(path: str) -> None:
    start = head("201 Created", "Transfer-Encoding: chunked")
    decision = await outcome(path, start + chunk(APPROVED_PART[:20]), chunk(APPROVED_PART[20:]), Play.FIN)
    assert isinstance(decision, Approved), decision
    assert decision.redirect_url is None


@pytest.mark.parametrize(
    "part",
    [
        b"",
        b'{"approved"',
        b'{"approved":tr',
        b'{"data":{"approved":true}',
        b'{"approved":true,"approved":true',
    ],
)
async def test_cut_off_201_without_one_true_is_unknown_and_kept(path: str, part: bytes) -> None:
    error = await outcome(path, head("201 Created") + part, Play.FIN)
    assert isinstance(error, UnexpectedResponseError), error
    assert (error.outcome, error.reasons) == ("unknown", ("body: truncated",))
    assert error.response == RawResponse(201, part)


async def test_cut_off_422_without_approved_is_unknown_and_kept(path: str) -> None:
    part = b'{"errors":{"email":["bla'
    error = await outcome(path, head("422 No") + part, Play.FIN)
    assert isinstance(error, UnexpectedResponseError), error
    assert (error.outcome, error.response) == ("unknown", RawResponse(422, part))


async def test_too_large_201_with_approved_true_is_approved(path: str) -> None:
    body = b'{"approved":true,"note":"' + b"x" * (MAX_BODY_SIZE + 10) + b'"}'
    decision = await outcome(path, head("201 Created", f"Content-Length: {len(body)}") + body)
    assert isinstance(decision, Approved), decision
    assert decision.meta.unread == ("body",)


async def test_too_large_201_without_approved_is_unknown_and_kept(path: str) -> None:
    body = b'{"note":"' + b"x" * (MAX_BODY_SIZE + 10) + b'"}'
    error = await outcome(path, head("201 Created", f"Content-Length: {len(body)}") + body)
    assert isinstance(error, UnexpectedResponseError), error
    assert error.reasons == ("body: too large",)
    assert error.response is not None
    assert body.startswith(error.response.body)
    assert 0 < len(error.response.body) <= MAX_BODY_SIZE
