"""The direct path: when it is used, its fallback to `ClientSession.request`, and errors of aiohttp in it."""

import asyncio
import subprocess
import sys
from asyncio import selector_events
from collections.abc import Iterator
from traceback import walk_tb
from typing import Any
from unittest import mock

import aiohttp
import pytest
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ConnectionKey
from aiohttp.connector import Connection
from aioresponses import aioresponses

from loanasync import Approved, ConnectError, ConnectionLostError, Refused, TransportError
from loanasync._telemetry import log as package_log
from loanasync._transport import aiohttp_internals
from loanasync._transport.aiohttp_internals import is_direct_possible
from loanasync.testing import repaired_aioresponses
from support.builders import FISCAL_CODE, approval_request
from support.canned_server import APPROVAL, REFUSAL, approve, response_bytes, serving
from support.direct_path import client_of, each_session, is_direct, needs_direct_path
from support.raw_server import PATIENCE, Play, RawServer, running


async def sent(session: str, *, copied: bool = False, **options: Any) -> bytes:
    """Return the request of an approval. aiohttp's requests of approvals close their connection."""
    async with (
        running(RawServer((Play.READ, REFUSAL))) as server,
        client_of(server.base_url, session, **options) as client,
    ):
        assert isinstance(await approve(client.with_options() if copied else client), Refused)
        return server.requests[0]


def is_written_directly(request: bytes) -> bool:
    return b"connection: close" not in request.lower()


@pytest.mark.parametrize("copied", [False, True], ids=["client", "copy"])
@each_session
async def test_setting_and_session_choose_the_path(session: str, *, copied: bool) -> None:
    assert is_written_directly(await sent(session, copied=copied)) is is_direct(session)


@needs_direct_path
@pytest.mark.parametrize("session", ["own", "users"])
async def test_both_paths_send_the_same_request(session: str) -> None:
    # The client's own headers replace those of the session, in any case.
    headers = [("X-Proxy", "a"), ("X-Proxy", "b"), ("user-agent", "shop"), ("X-City", "Forlì")]
    headers += [("Connection", "upgrade"), ("Accept", "x")]
    paths = (session, f"{session}, through aiohttp")
    requests = [await sent(path, users={"headers": headers}) for path in paths]
    (head, _, body), (other_head, _, other_body) = (each.partition(b"\r\n\r\n") for each in requests)
    lines, other_lines = ({*each.lower().split(b"\r\n")} for each in (head, other_head))
    assert body == other_body
    differences = {each for each in lines ^ other_lines if not each.startswith(b"host:")}  # other ports
    assert differences == {b"connection: close"}
    assert (b"x-proxy: a" in lines, b"x-proxy: b" in lines) == (session == "users",) * 2
    assert b"user-agent: shop" not in lines


@needs_direct_path
@pytest.mark.parametrize("splitting", ["a\r\nX-Other: b", "a\nb", "a\rb", "a\0b"])
async def test_header_value_with_a_line_break_is_not_sent(splitting: str) -> None:
    async with serving(APPROVAL) as server, aiohttp.ClientSession(headers={"X-A": splitting}) as session:
        with pytest.raises(ConnectError) as caught:
            await approve(server.client(session=session))
        assert (caught.value.outcome, caught.value.cause_type) == ("not_sent", "program: ValueError")
        assert server.requests == 0


SOCKET: Any = selector_events._SelectorSocketTransport  # type: ignore[attr-defined]  # a private name


@needs_direct_path
@pytest.mark.parametrize(
    ("owner", "name", "expected"),
    [(aiohttp.TCPConnector, "_create_connection", ConnectError), (SOCKET, "write", ConnectionLostError)],
)
async def test_write_error_has_no_frame_with_the_request(
    owner: type, name: str, expected: type[Exception]
) -> None:
    async with serving(None) as server, server.client() as client:
        with (
            mock.patch.object(owner, name, side_effect=RuntimeError("Executor shutdown has been called")),
            pytest.raises(expected) as caught,
        ):
            await approve(client)
    frames = [frame for frame, _ in walk_tb(caught.value.__traceback__)]
    frames = [frame for frame in frames if str(frame.f_globals["__name__"]).startswith("loanasync.")]
    assert len(frames) > 1
    variables = repr([dict(frame.f_locals) for frame in frames])
    assert "secret-token" not in variables
    assert FISCAL_CODE not in variables


WRITE = SOCKET.write
ANY_REFUSAL = response_bytes(422, b'{"approved":false}')  # of any customer
CODES = ("TSTXYZ00A00A000B", "TSTXYZ00A00A000C", "TSTXYZ00A00A000D")  # the first call is not queued


@needs_direct_path
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_error_in_the_write_of_a_queued_request_repeats_none(error: type[BaseException]) -> None:
    errors = [error]

    def write(self: object, data: bytes) -> None:
        WRITE(self, data)
        if CODES[1].encode() in data and errors:
            raise errors.pop()

    async def calls() -> tuple[int, list[type]]:
        async with serving(ANY_REFUSAL) as server, server.client() as client:
            with mock.patch.object(SOCKET, "write", write):
                made = (client.approve(code, approval_request()) for code in CODES)
                results = await asyncio.gather(*made, return_exceptions=True)
            return server.requests, [type(each) for each in results]

    with asyncio.Runner() as runner:
        task = runner.get_loop().create_task(calls())
        if error is not RuntimeError:
            with pytest.raises(error):
                runner.get_loop().run_until_complete(task)
        requests, results = runner.get_loop().run_until_complete(task)
    assert requests == 3
    assert results == [Refused, ConnectionLostError if error is RuntimeError else Refused, Refused]


async def test_mocked_session_receives_the_request() -> None:
    async with serving(APPROVAL) as server, server.client() as client:
        assert isinstance(await approve(client), Approved)
        with repaired_aioresponses(), aioresponses() as mocked:
            mocked.post(f"{server.base_url}/api/shops/shop/requests/{FISCAL_CODE}", status=422)
            assert isinstance(await approve(client), Refused)
        assert server.requests == 1


@needs_direct_path
async def test_mocked_session_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(package_log, "_warned", set())
    original = aiohttp.ClientSession._request

    async def traced(self: aiohttp.ClientSession, *args: Any, **kwargs: Any) -> aiohttp.ClientResponse:
        return await original(self, *args, **kwargs)

    async with serving(APPROVAL) as server, server.client() as client:
        await approve(client)
        assert not caplog.records
        monkeypatch.setattr(aiohttp.ClientSession, "_request", traced)
        for _ in range(3):
            assert isinstance(await approve(client), Approved)
    assert [(record.name, record.levelname) for record in caplog.records] == [("loanasync", "WARNING")]
    assert "that code sees fiscal codes" in caplog.text


MOCKED_BEFORE_IMPORT = """
from aioresponses import aioresponses
with aioresponses():
    from loanasync._transport.aiohttp_internals import is_replaced
    print(is_replaced())
print(is_replaced())
"""


def test_session_mocked_before_the_import_receives_the_request() -> None:
    command = [sys.executable, "-c", MOCKED_BEFORE_IMPORT]
    done = subprocess.run(command, check=True, capture_output=True, encoding="utf-8")
    assert done.stdout.split() == ["True", "False"]


@pytest.fixture
def _new_check() -> Iterator[None]:
    """Check aiohttp again in the test and after it."""
    is_direct_possible.cache_clear()
    yield
    is_direct_possible.cache_clear()


def changed(*names: str) -> Any:
    """Return a function with these parameters."""
    return eval(f"lambda {', '.join(names)}: None")  # noqa: S307  (names of this file)


@pytest.mark.usefixtures("_new_check")
@pytest.mark.parametrize(
    ("owner", "name", "now"),
    [
        (aiohttp.BaseConnector, "connect", changed("self", "request", "traces", "timeout", "key")),
        (ResponseHandler, "connection_lost", changed("self")),
        (aiohttp.ClientRequest, "__init__", changed("self", "method", "url", "*", "version")),
        (aiohttp.ClientRequest, "connection_key", changed("self")),
        (Connection, "close", changed("self", "how")),
        (Connection, "protocol", changed("self")),
        (ResponseHandler, "should_close", changed("self")),
        (ConnectionKey, "_fields", ("host", "port")),
        (sys.modules, "aiohttp.client_proto", None),
        (sys.modules, "aiohttp.connector", None),
    ],
)
def test_changed_aiohttp_is_used_through_its_documented_api(owner: Any, name: str, now: Any) -> None:
    patch = (
        mock.patch.dict(owner, {name: now}) if owner is sys.modules else mock.patch.object(owner, name, now)
    )
    with patch:
        assert not is_direct_possible()


@pytest.mark.usefixtures("_new_check")
async def test_missing_parser_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(aiohttp_internals, "find_spec", lambda _: None)
    for _ in range(2):
        assert not is_written_directly(await sent("own"))
    [message] = [each for each in caplog.messages if "direct connections" in each]
    assert "without httptools" in message


def test_direct_connections_are_possible_with_the_installed_aiohttp() -> None:
    assert is_direct_possible()


def close_and_fail(self: Connection, *_: object, close: Any = Connection.close) -> None:
    close(self)
    raise RuntimeError("aiohttp")


HALF = response_bytes(201, b'{"approved":true ,"amount":45000}')[:-3]


@needs_direct_path
@pytest.mark.parametrize("response", [b"", HALF], ids=["no head", "half a body"])
@pytest.mark.parametrize(
    ("owner", "name", "breaks"),
    [
        (ResponseHandler, "connection_lost", mock.Mock(side_effect=RuntimeError("aiohttp"))),
        (Connection, "close", close_and_fail),
    ],
    ids=["connection_lost", "close"],
)
async def test_aiohttp_error_on_connection_loss_ends_the_call(
    owner: type, name: str, breaks: Any, response: bytes
) -> None:
    assert is_direct_possible()  # the result is cached before the patch
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    async with serving(response) as server, asyncio.timeout(PATIENCE):
        server.closes_after_response = True
        client = server.client()
        with mock.patch.object(owner, name, breaks):
            try:
                result: object = await approve(client)
            except TransportError as error:
                result = error
        assert isinstance(result, ConnectionLostError if not response else Approved)
        await client.aclose()
