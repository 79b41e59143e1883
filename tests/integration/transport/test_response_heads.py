"""A received status is kept; a connection with stray bytes is not used again."""

import asyncio
import gzip
import zlib

import pytest

from loanasync import Approved, Refused, UnexpectedResponseError, UnexpectedStatusError
from support.builders import FISCAL_CODE, user_data
from support.canned_server import APPROVAL, REFUSAL, approve, response_bytes, serving
from support.direct_path import client_of, each_direct_session, each_session, is_direct
from support.raw_server import PATIENCE
from support.virtual_time import turns

STRAY = b"<!-- a proxy -->"


async def result_of(session: str, response: bytes) -> object:
    """Return the result of an approval that gets a response."""
    async with serving(response) as server, client_of(server.base_url, session) as client:
        [result] = await asyncio.gather(approve(client), return_exceptions=True)
        return result


MANY = [f"X-Header-{each}: {'x' * 100}" for each in range(900)]


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        *((b'{"approved":false}', MANY[:number]) for number in (129, 900)),
        *((b"", [f"Content-Encoding: {encoding}"]) for encoding in ("br", "gzip")),
    ],
    ids=["129 headers", "900 headers", "empty, br", "empty, gzip"],
)
@each_session
async def test_refusal_with_odd_headers_is_read(session: str, body: bytes, headers: list[str]) -> None:
    assert isinstance(await result_of(session, response_bytes(422, body, *headers)), Refused)


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
        client_of(server.base_url, session) as client,
    ):
        for _ in range(2):
            decision = await approve(client)
            assert (decision.amount, decision.meta.unread) == (45000, ())
        assert server.most_open == 1 or not is_direct(session)


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "rot13", "gzip", "deflate"])
@each_session
async def test_refusal_that_cannot_be_decoded_keeps_its_status(session: str, encoding: str) -> None:
    response = response_bytes(422, b'{"approved":false}', f"Content-Encoding: {encoding}")
    error = await result_of(session, response)
    assert isinstance(error, UnexpectedResponseError)
    assert (error.status, error.outcome, error.reasons) == (422, "unknown", ("body: undecodable",))
    assert error.response is not None
    assert error.response.body == b'{"approved":false}'


@pytest.mark.parametrize("label", ["utf-8", "none", "identity, identity"])
@each_session
async def test_label_that_names_no_compression_is_ignored(session: str, label: str) -> None:
    body = b'\n\xef\xbb\xbf{"profession":"baker"}'
    response = response_bytes(200, body, f"Content-Encoding: {label}")
    async with serving(response) as server, client_of(server.base_url, session) as client:
        assert await client.create_request({}) == {"profession": "baker"}
        assert (await client.complete(FISCAL_CODE, user_data())).profession == "baker"


DECISION = REFUSAL.partition(b"\r\n\r\n")[2]
CHUNKED = b"HTTP/1.1 422 No\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n" % len(DECISION)
CHUNKED += DECISION + b"\r\n0\r\n\r\n"


@each_direct_session
async def test_interim_head_with_bad_headers_may_arrive_in_parts(session: str) -> None:
    """It is dropped, as one that arrives whole."""
    head = b"HTTP/1.1 103 Early Hints\r\n" + b"X-Hint: x\r\n" * 1_500
    async with serving(None) as server, client_of(server.base_url, session) as client:
        call = asyncio.create_task(approve(client))
        await server.wait_for_requests(1)
        server.respond_to_all(head)
        await asyncio.sleep(0.05)
        server.respond_to_all(b"\r\n" + APPROVAL)
        assert isinstance(await call, Approved)


MORE = [b"H", b"HTTP/1.1 408 Late\r\n", b"HTTP/1.1 103 Early Hints\r\n\r\n", REFUSAL]


@pytest.mark.parametrize("more", MORE, ids=["byte", "line", "hints", "response"])
@pytest.mark.parametrize("whole", [REFUSAL, CHUNKED], ids=["length", "chunked"])
@each_direct_session
async def test_connection_with_more_than_a_response_is_not_used_again(
    session: str, whole: bytes, more: bytes
) -> None:
    async with serving(whole + more, APPROVAL) as server, client_of(server.base_url, session) as client:
        assert isinstance(await approve(client), Refused)
        first = set(server.open)
        assert isinstance(await approve(client), Approved)
        assert server.open - first  # the second call took another connection


@pytest.mark.parametrize(
    "whole",
    [REFUSAL, CHUNKED, b"HTTP/1.1 103 Early Hints\r\n\r\n" + REFUSAL],
    ids=["length", "chunked", "hints"],
)
@each_session
async def test_connection_with_nothing_else_is_used_again(session: str, whole: bytes) -> None:
    async with serving(whole) as server, client_of(server.base_url, session) as client:
        for _ in range(3):
            assert isinstance(await approve(client), Refused)
        assert server.connections == (1 if is_direct(session) else 3)


@pytest.mark.parametrize(
    "closing",
    [
        REFUSAL.replace(b"1.1", b"1.0", 1),
        REFUSAL.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1),
        b"HTTP/1.0 100 Continue\r\n\r\n" + REFUSAL,
        b"HTTP/1.1 103 Early Hints\r\nConnection: close\r\n\r\n" + REFUSAL,
    ],
    ids=["HTTP/1.0", "header", "interim HTTP/1.0", "interim header"],
)
@each_direct_session
async def test_connection_that_the_server_will_close_is_not_used_again(session: str, closing: bytes) -> None:
    async with serving(closing) as server, client_of(server.base_url, session) as client:
        for _ in range(2):
            assert isinstance(await approve(client), Refused)
        assert server.connections == 2


@each_direct_session
async def test_switch_of_protocols_ends_the_call_at_once(session: str) -> None:
    head = b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n"
    error = await result_of_packets(session, head)
    assert isinstance(error, UnexpectedStatusError)
    assert (error.status, error.outcome) == (101, "unknown")


@pytest.mark.parametrize("status", [204, 304])
@each_direct_session
async def test_bytes_after_a_status_without_a_body_are_not_its_body(session: str, status: int) -> None:
    """Content-Length does not count for these statuses (RFC 9110 §8.6)."""
    async with (
        serving(response_bytes(status, b'{"approved":false}'), REFUSAL) as server,
        client_of(server.base_url, session) as client,
    ):
        with pytest.raises(UnexpectedStatusError) as caught:
            await approve(client)
        assert caught.value.response is not None
        assert (caught.value.status, caught.value.response.body) == (status, b"")
        first = set(server.open)
        assert isinstance(await approve(client), Refused)
        assert server.open - first  # the second call took another connection


HEAD = REFUSAL.index(b"\r\n\r\n") + 4  # bytes
BARE = b'HTTP/1.1 422 Refused\nContent-Length: 22\n\n{\r\n\r\n"approved":false}12345'


async def result_of_packets(session: str, *packets: bytes) -> object:
    """Return the result of an approval whose response arrives in several packets."""
    async with serving(None) as server, client_of(server.base_url, session) as client:
        call = asyncio.create_task(approve(client))
        await server.wait_for_requests(1)
        for packet in packets:
            server.respond_to_all(packet)
            await turns(10)  # until the client has read it
        async with asyncio.timeout(PATIENCE):
            [result] = await asyncio.gather(call, return_exceptions=True)
        return result


@pytest.mark.parametrize("at", range(HEAD - 5, HEAD + 3))
@each_direct_session
async def test_refusal_with_stray_bytes_is_read_at_any_packet_boundary(session: str, at: int) -> None:
    response = REFUSAL + STRAY
    assert isinstance(await result_of_packets(session, response[:at], response[at:]), Refused)


@each_session
async def test_later_packet_of_the_bodys_length_is_not_the_body(session: str) -> None:
    at = HEAD + len(STRAY)
    assert isinstance(await result_of_packets(session, REFUSAL[:at], REFUSAL[at:] + STRAY), Refused)


@pytest.mark.parametrize("at", [0, 41], ids=["with the body", "before the body"])
@each_direct_session
async def test_head_with_bare_line_feeds_ends_before_its_body(session: str, at: int) -> None:
    """As many bytes as the body has follow an empty line inside the body."""
    assert isinstance(await result_of_packets(session, BARE[:at], BARE[at:]), Refused)


@pytest.mark.parametrize("at", [0, -1, -3], ids=["head", "head without a byte", "head without 3 bytes"])
@each_direct_session
async def test_error_in_a_later_packet_ends_the_call_at_once(session: str, at: int) -> None:
    """aiohttp closes the connection, and lets the reader of the body wait."""
    head = CHUNKED[: CHUNKED.index(b"\r\n\r\n") + 4]
    at += len(head)
    error = await result_of_packets(session, head[:at], head[at:] + b"XY\r\n")
    assert isinstance(error, UnexpectedResponseError)
    assert (error.status, error.reasons) == (422, ("body: truncated",))
