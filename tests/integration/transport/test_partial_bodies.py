"""Bodies that are cut off, with packets and errors in an order that the fault matrix does not have."""

from collections.abc import Mapping

import aiohttp
import pytest

from loanasync import Approved
from loanasync._protocol.messages import Response
from loanasync._transport import failures
from support.canned_server import approve
from support.direct_path import client_of, each_session, needs_direct_path
from support.faults.row import http
from support.raw_server import Play, RawServer, running, until

PART = b'{"approved":true,"redirectUrl":"https://x.exam'
HEAD = http("201 Created", b"", "Content-Length: 5000")


async def assert_approved(session: str, *exchange: bytes | Play) -> None:
    async with (
        running(RawServer((Play.READ, *exchange))) as server,
        client_of(server.base_url, session) as client,
    ):
        decision = await approve(client)
    assert isinstance(decision, Approved)
    assert (decision.redirect_url, decision.meta.unread) == (None, ("body",))


@needs_direct_path
async def test_chunked_201_that_breaks_at_once_is_approved_on_the_direct_path() -> None:
    """With a plain aiohttp session, the response is lost if its head and the fault arrive together."""
    chunks = b"%x\r\n%s\r\nno chunk\r\n" % (len(PART), PART)
    await assert_approved("own", http("201 Created", chunks, "Transfer-Encoding: chunked"), Play.FIN)


@each_session
async def test_cut_off_201_that_failed_before_it_was_read_is_approved(
    session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed StreamReader of aiohttp still holds the data received before."""
    read = failures.read

    async def read_late(
        status: int, headers: Mapping[str, str], content: aiohttp.StreamReader, body: bytearray
    ) -> Response:
        await until(lambda: content.exception() is not None)
        return await read(status, headers, content, body)

    monkeypatch.setattr(failures, "read", read_late)
    await assert_approved(session, HEAD + PART, Play.FIN)


@each_session
async def test_cut_off_201_in_several_pieces_is_approved(session: str) -> None:
    pieces = [PART[at : at + 9] for at in range(0, len(PART), 9)]
    await assert_approved(session, HEAD, *pieces, Play.FIN)
