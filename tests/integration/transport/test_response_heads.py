"""A received status is kept; a connection with stray bytes is not used again."""

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from loanasync import Approved, LoanClient, Refused, UnexpectedResponseError, UnexpectedStatusError
from support.canned_server import APPROVAL, REFUSAL, Canned, approve, response_bytes, serving
from support.direct_path import each_direct_session, is_direct
from support.faults.row import SESSIONS
from support.raw_server import PATIENCE

each_session = pytest.mark.parametrize("session", SESSIONS)

STRAY = b"<!-- a proxy -->"


@asynccontextmanager
async def client_of(server: Canned, session: str) -> AsyncIterator[LoanClient]:
    is_direct = "through aiohttp" not in session
    if session.startswith("users"):
        async with aiohttp.ClientSession() as users:
            yield server.client(session=users, direct_connections=is_direct)
    else:
        async with server.client(direct_connections=is_direct) as client:
            yield client


@pytest.mark.parametrize("number", [129, 900])
@each_session
async def test_refusal_with_many_headers_is_read(session: str, number: int) -> None:
    headers = [f"X-Header-{each}: {'x' * 100}" for each in range(number)]
    async with (
        serving(response_bytes(422, b'{"approved":false}', *headers)) as server,
        client_of(server, session) as client,
    ):
        assert isinstance(await approve(client), Refused)


BODY = b'{"approved":true,"redirectUrl":"https://example.com/#t","amount":45000}'
RAW = zlib.compressobj(wbits=-zlib.MAX_WBITS)


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", gzip.compress(BODY)),
        ("X-GZIP", gzip.compress(BODY)),
        ("deflate", zlib.compress(BODY)),
        ("deflate", RAW.compress(BODY) + RAW.flush()),
        ("identity", BODY),
    ],
    ids=["gzip", "x-gzip", "deflate", "raw deflate", "identity"],
)
@each_session
async def test_encoded_approval_is_decoded(session: str, encoding: str, body: bytes) -> None:
    async with (
        serving(response_bytes(201, body, f"Content-Encoding: {encoding}")) as server,
        client_of(server, session) as client,
    ):
        for _ in range(2):
            decision = await approve(client)
            assert (decision.amount, decision.meta.unread) == (45000, ())
        assert server.most_open == 1 or not is_direct(session)


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "rot13", "gzip", "deflate"])
@each_session
async def test_refusal_that_cannot_be_decoded_keeps_its_status(session: str, encoding: str) -> None:
    async with (
        serving(response_bytes(422, b'{"approved":false}', f"Content-Encoding: {encoding}")) as server,
        client_of(server, session) as client,
    ):
        with pytest.raises(UnexpectedResponseError) as caught:
            await approve(client)
    error = caught.value
    assert (error.status, error.outcome, error.reasons) == (422, "unknown", ("body: undecodable",))
    assert error.response is not None
    assert error.response.body == b'{"approved":false}'


@pytest.mark.parametrize("encoding", ["br", "gzip"])
@each_session
async def test_empty_refusal_with_an_encoding_is_read(session: str, encoding: str) -> None:
    async with (
        serving(response_bytes(422, b"", f"Content-Encoding: {encoding}")) as server,
        client_of(server, session) as client,
    ):
        assert isinstance(await approve(client), Refused)


CHUNKED = b"HTTP/1.1 422 No\r\nTransfer-Encoding: chunked\r\n\r\n12\r\n" + b'{"approved":false}\r\n0\r\n\r\n'


@pytest.mark.parametrize("more", [b"H", b"HTTP/1.1 408 Late\r\n"], ids=["byte", "line"])
@pytest.mark.parametrize("whole", [REFUSAL, CHUNKED], ids=["length", "chunked"])
@each_direct_session
async def test_connection_with_half_a_second_head_is_not_used_again(
    session: str, whole: bytes, more: bytes
) -> None:
    async with serving(whole + more, APPROVAL) as server, client_of(server, session) as client:
        assert isinstance(await approve(client), Refused)
        first = set(server.open)
        assert isinstance(await approve(client), Approved)
        assert server.open - first  # the second call took another connection


@pytest.mark.parametrize("whole", [REFUSAL, CHUNKED], ids=["length", "chunked"])
@each_session
async def test_connection_with_nothing_else_is_used_again(session: str, whole: bytes) -> None:
    async with serving(whole) as server, client_of(server, session) as client:
        for _ in range(3):
            assert isinstance(await approve(client), Refused)
        assert server.most_open == 1 or not is_direct(session)


@pytest.mark.parametrize("status", [204, 304])
@each_direct_session
async def test_bytes_after_a_status_without_a_body_are_not_its_body(session: str, status: int) -> None:
    """Content-Length does not count for these statuses (RFC 9110 §8.6)."""
    async with (
        serving(response_bytes(status, b'{"approved":false}'), REFUSAL) as server,
        client_of(server, session) as client,
    ):
        with pytest.raises(UnexpectedStatusError) as caught:
            await approve(client)
        assert caught.value.response is not None
        assert (caught.value.status, caught.value.response.body) == (status, b"")
        first = set(server.open)
        assert isinstance(await approve(client), Refused)
        assert server.open - first  # the second call took another connection


HEAD = REFUSAL.index(b"\r\n\r\n") + 4  # bytes


@pytest.mark.parametrize("at", range(HEAD - 5, HEAD + 3))
@each_direct_session
async def test_refusal_with_stray_bytes_is_read_at_any_packet_boundary(session: str, at: int) -> None:
    """The response arrives in two packets, split at any byte."""
    async with serving(None) as server, client_of(server, session) as client:
        call = asyncio.create_task(approve(client))
        await server.wait_for_requests(1)
        server.respond_to_all((REFUSAL + STRAY)[:at])
        for _ in range(10):  # until the client has read this
            await asyncio.sleep(0)
        server.respond_to_all((REFUSAL + STRAY)[at:])
        async with asyncio.timeout(PATIENCE):
            assert isinstance(await call, Refused)


@each_session
async def test_later_packet_of_the_bodys_length_is_not_the_body(session: str) -> None:
    at = HEAD + len(STRAY)
    async with serving(None) as server, client_of(server, session) as client:
        call = asyncio.create_task(approve(client))
        await server.wait_for_requests(1)
        server.respond_to_all(REFUSAL[:at])
        for _ in range(10):  # until the client has read this
            await asyncio.sleep(0)
        server.respond_to_all(REFUSAL[at:] + STRAY)
        async with asyncio.timeout(PATIENCE):
            assert isinstance(await call, Refused)


@each_direct_session
async def test_error_in_a_later_packet_ends_the_call_at_once(session: str) -> None:
    """aiohttp closes the connection, and lets the reader of the body wait."""
    async with serving(None) as server, client_of(server, session) as client:
        call = asyncio.create_task(approve(client))
        await server.wait_for_requests(1)
        server.respond_to_all(CHUNKED[: CHUNKED.index(b"12")])
        for _ in range(10):
            await asyncio.sleep(0)
        server.respond_to_all(b"XY\r\n")
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(UnexpectedResponseError, match="body: truncated") as caught:
                await call
        assert caught.value.status == 422
