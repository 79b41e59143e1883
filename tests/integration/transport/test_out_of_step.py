"""Connections whose responses belong to earlier requests, and bodies that are cut off in unusual ways."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import aiohttp
import pytest

from loanasync import (
    Approved,
    LoanError,
    OutcomeUnknownError,
    Refused,
    Timeout,
    UnexpectedResponseError,
    UnexpectedStatusError,
)
from loanasync._protocol.messages import Response
from loanasync._transport import bodies
from loanasync.ledger import MemoryLedger
from loanasync.testing import fiscal_code
from support.builders import FISCAL_CODE, approval_request
from support.canned_server import APPROVAL, REFUSAL, approve, response_bytes, serving
from support.direct_path import client_of, each_direct_session, each_path, each_session, needs_direct_path
from support.faults.connections import OTHER_CUSTOMER
from support.faults.row import http
from support.raw_server import Play, RawServer, authority, running, tls_of, until

REJECTION = response_bytes(400, b'{"errors":{"amount":["This value is not valid."]}}')


def decision_about(code: bytes) -> bytes:
    return response_bytes(201, b'{"approved":true,"fiscalCode":"%s"}' % code)


class ShiftedServer:
    """Writes each response for the next request of the same connection, if the connection is out of step.

    The first connection has a surplus response from the beginning. Any connection has one after an upload,
    which is answered before its body was read: the server takes the body for another request.
    It ignores `Connection: close`.
    """

    def __init__(self, *surplus: bytes) -> None:
        self.evaluated: list[bytes] = []
        self.base_url = ""
        self._surplus = iter(surplus)  # of each new connection

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        responses = [each for each in [next(self._surplus, b"")] if each]
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                await reader.readexactly(length)
                path = head.split()[1]
                if path == b"/upload":
                    responses += [REJECTION, REJECTION]
                else:
                    self.evaluated.append(path.rpartition(b"/")[2])
                    responses.append(decision_about(self.evaluated[-1]))
                writer.write(responses.pop(0))
        writer.close()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with await asyncio.start_server(self.serve, "127.0.0.1", 0) as server:
            host, port = server.sockets[0].getsockname()
            self.base_url = f"http://{host}:{port}"
            yield


@each_session
async def test_connection_out_of_step_loses_one_decision(session: str) -> None:
    server = ShiftedServer(decision_about(OTHER_CUSTOMER))
    outcomes: list[str] = []
    async with server.running(), client_of(server.base_url, session) as client:
        for code in (fiscal_code() for _ in range(12)):
            try:
                outcomes.append(type(await client.approve(code, approval_request())).__name__)
            except LoanError as error:
                outcomes.append(error.outcome)
    assert outcomes == ["unknown"] + 11 * ["Approved"]
    assert len(set(server.evaluated)) == len(server.evaluated) == 12


@each_path
@pytest.mark.parametrize("idle", [1, 3])
async def test_upload_of_the_user_answered_early_loses_no_decision(idle: int, *, is_direct: bool) -> None:
    """The rest of the upload is answered with a 400, which says that a customer was not evaluated."""
    server = ShiftedServer()
    async with server.running(), aiohttp.ClientSession() as session:
        uploads = [session.post(server.base_url + "/upload", data=b"{}") for _ in range(idle)]
        for response in await asyncio.gather(*uploads):
            assert response.status == 400
            await response.read()
        async with client_of(server.base_url, session, direct_connections=is_direct) as client:
            assert isinstance(await approve(client), Approved)
    assert server.evaluated == [FISCAL_CODE.encode()]


@each_direct_session
async def test_connection_of_a_response_that_is_not_understood_is_closed(session: str) -> None:
    async with serving(response_bytes(404), REFUSAL) as server, client_of(server.base_url, session) as client:
        with pytest.raises(UnexpectedStatusError):
            await approve(client)
        first = set(server.open)
        assert isinstance(await approve(client), Refused)
        assert server.open - first  # the second call took another connection


STRAY = response_bytes(201, b'{"approved":true}')


@each_direct_session
async def test_stray_201_without_a_code_is_no_decision(session: str) -> None:
    """The service sends a surplus response after the next request was written, before the right one."""
    late = [APPROVAL, STRAY + REFUSAL, REFUSAL]
    async with serving(*late) as server, client_of(server.base_url, session) as client:
        assert isinstance(await approve(client), Approved)
        with pytest.raises(UnexpectedResponseError) as caught:
            await approve(client)
        assert caught.value.reasons == ("fiscalCode: missing on a used connection",)
        assert caught.value.response is not None
        for connections in (2, 3):  # from now on, each approval has a new connection
            assert isinstance(await approve(client), Refused)
            assert server.connections == connections


@each_direct_session
@pytest.mark.parametrize(
    "echo", [b"", b',"fiscalCode":"%s"' % OTHER_CUSTOMER], ids=["no code", "another code"]
)
@pytest.mark.parametrize("status", [201, 404, 500])
async def test_redirect_of_a_stray_response_is_not_for_the_next_customer(
    session: str, status: int, echo: bytes
) -> None:
    """The next customer's decision is lost, and a person states it later."""
    stray = response_bytes(
        status, b'{"approved":true,"redirectUrl":"https://pay.example.com/#other"%s}' % echo
    )
    ledger, code = MemoryLedger(), fiscal_code()
    async with (
        serving(APPROVAL, stray) as server,
        client_of(server.base_url, session, ledger=ledger) as client,
    ):
        assert isinstance(await approve(client), Approved)
        with pytest.raises(LoanError) as caught:
            await client.approve(code, approval_request())
        assert caught.value.response.is_stray  # type: ignore[attr-defined]
        await client.resolve(code, "approved", source="back office")
        decision = await client.approve(code, approval_request())
        assert isinstance(decision, Approved)
        assert decision.redirect_url is None


@each_direct_session
async def test_memory_keeps_no_stray_response(session: str) -> None:
    async with (
        serving(APPROVAL, STRAY) as server,
        client_of(server.base_url, session, separate=False) as client,
    ):
        code = fiscal_code()
        assert isinstance(await approve(client), Approved)
        with pytest.raises(UnexpectedResponseError):
            await client.approve(code, approval_request())
        with pytest.raises(OutcomeUnknownError) as caught:
            await client.approve(code, approval_request())
        assert caught.value.response is None


@each_direct_session
async def test_approval_reuses_only_a_connection_of_a_decision(session: str) -> None:
    created = response_bytes(201, b"{}")
    async with (
        serving(created, created, APPROVAL, APPROVAL, created, APPROVAL) as server,
        client_of(server.base_url, session) as client,
    ):
        counts = []
        for approves in (False, False, True, True, False, True):
            await (approve(client) if approves else client.create_request({}))
            counts.append(server.connections)
    # The fifth call uses the connection of a creation, and leaves that of the decisions to the sixth one.
    assert counts == [1, 1, 2, 2, 2, 2]


@needs_direct_path
async def test_idle_connection_that_no_approval_may_use_gives_back_its_slot() -> None:
    limits = Timeout(total=5, attempt=5)
    async with (
        serving(response_bytes(201, b"{}"), APPROVAL, STRAY, APPROVAL) as server,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as session,
        client_of(server.base_url, session) as client,
    ):
        await client.create_request({})
        assert isinstance(await approve(client, timeout=limits), Approved)
        with pytest.raises(UnexpectedResponseError, match="used connection"):
            await approve(client, timeout=limits)
        for _ in range(3):
            assert isinstance(await approve(client, timeout=limits), Approved)


@needs_direct_path
async def test_server_that_ignores_the_end_of_tls_does_not_keep_a_slot() -> None:
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
        cast("asyncio.Transport", writer.transport).pause_reading()
        writer.write(APPROVAL)

    trust = ssl.create_default_context()
    authority().configure_trust(trust)
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls_of("https"))
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1, ssl=trust)) as session,
            client_of(url, session) as client,
        ):
            await client.create_request({})
            assert isinstance(await approve(client, timeout=Timeout(connect=2)), Approved)
            for each in writers:
                each.transport.abort()
    finally:
        server.close()


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
    read = bodies.read

    async def read_late(response: aiohttp.ClientResponse, body: bytearray) -> Response:
        await until(lambda: response.content.exception() is not None)
        return await read(response, body)

    monkeypatch.setattr(bodies, "read", read_late)
    await assert_approved(session, HEAD + PART, Play.FIN)


@each_session
async def test_cut_off_201_in_several_pieces_is_approved(session: str) -> None:
    pieces = [PART[at : at + 9] for at in range(0, len(PART), 9)]
    await assert_approved(session, HEAD, *pieces, Play.FIN)
