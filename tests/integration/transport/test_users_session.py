"""A user's session provides its connector and default headers. It is neither changed nor used otherwise."""

import asyncio
import gc
import warnings
from collections.abc import Callable
from typing import Any
from unittest import mock

import aiohttp
import pytest
from yarl import URL

from loanasync import ConfigurationError, LoanClient, Refused, Timeout, TransportError
from support.canned_server import REFUSAL, Canned, approve, serving
from support.direct_path import client_of, each_path, needs_direct_path
from support.raw_server import PATIENCE, Play, RawServer, running, until


async def post(session: aiohttp.ClientSession, server: Canned) -> int:
    """Send a request of the user."""
    async with session.post(server.base_url, data=b"{}") as response:
        await response.read()
        return response.status


@needs_direct_path
async def test_connections_of_the_user_and_the_client_are_separate() -> None:
    connector: Any = aiohttp.TCPConnector()
    async with serving(REFUSAL) as server, aiohttp.ClientSession(connector=connector) as session:
        client = server.client(session=session)
        assert await post(session, server) == 422
        [[users]] = connector._conns.values()
        for _ in range(2):
            assert isinstance(await approve(client), Refused)
            assert await post(session, server) == 422
            [[idle]] = connector._conns.values()
            assert (len(connector._acquired), idle[0]) == (1, users[0])
        assert (server.requests, server.most_open) == (5, 2)


@needs_direct_path
async def test_idle_connection_of_the_client_gives_back_its_slot() -> None:
    connector = aiohttp.TCPConnector(limit=1)
    async with serving(REFUSAL) as server, aiohttp.ClientSession(connector=connector) as session:
        client = server.client(session=session)
        assert isinstance(await approve(client), Refused)
        async with asyncio.timeout(PATIENCE):
            assert await post(session, server) == 422
        assert server.most_open == 1


@needs_direct_path
@pytest.mark.parametrize("limits", [{"limit": 1}, {"limit": 0, "limit_per_host": 1}], ids=str)
async def test_waiting_call_uses_the_connection_of_the_one_before(limits: dict[str, int]) -> None:
    """Otherwise it would wait a second, until the idle connection is closed, and open another one."""
    ended: list[int] = []
    connector = aiohttp.TCPConnector(**limits)  # type: ignore[arg-type]
    async with serving(REFUSAL) as server, aiohttp.ClientSession(connector=connector) as session:
        client = server.client(session=session)
        limit = Timeout(total=PATIENCE, attempt=PATIENCE, connect=PATIENCE)

        async def call(number: int) -> None:
            assert isinstance(await approve(client, timeout=limit), Refused)
            ended.append(number)

        await asyncio.gather(*map(call, range(6)))
        assert (ended, server.connections) == ([*range(6)], 1)


@each_path
async def test_clients_and_user_share_the_limit_of_a_connector(*, is_direct: bool) -> None:
    connector = aiohttp.TCPConnector(limit=3)
    async with serving(REFUSAL) as server, aiohttp.ClientSession(connector=connector) as session:
        clients = [server.client(session=session, direct_connections=is_direct) for _ in range(2)]
        calls: list[Any] = [approve(client) for client in clients * 15]
        calls += [post(session, server) for _ in range(10)]
        async with asyncio.timeout(PATIENCE):
            results = await asyncio.gather(*calls)
        assert all(each == 422 or isinstance(each, Refused) for each in results)
        assert server.requests == len(calls)


@needs_direct_path
async def test_connector_that_closes_connections_closes_those_of_the_client() -> None:
    connector = aiohttp.TCPConnector(force_close=True)
    async with serving(REFUSAL) as server, aiohttp.ClientSession(connector=connector) as session:
        client = server.client(session=session)
        for _ in range(2):
            assert isinstance(await approve(client), Refused)
        assert server.connections == 2
        await until(lambda: not server.open)


@each_path
async def test_session_and_client_can_be_closed_in_any_order(*, is_direct: bool) -> None:
    with warnings.catch_warnings(action="error"):
        async with serving(REFUSAL) as server:
            async with aiohttp.ClientSession() as session:
                client = server.client(session=session, direct_connections=is_direct)
                await approve(client)
                unclosed = server.client(session=session, direct_connections=is_direct)
                await approve(unclosed)
                await unclosed.aclose()
                assert await post(session, server) == 422
            await until(lambda: not server.open)
            await client.aclose()
        del client, unclosed
        gc.collect()


@each_path
async def test_other_settings_of_the_session_are_not_used(*, is_direct: bool) -> None:
    jar = aiohttp.CookieJar(unsafe=True)
    jar.update_cookies({"name": "ours"}, URL("http://127.0.0.1/"))
    hooks, unused = aiohttp.TraceConfig(), mock.AsyncMock(side_effect=AssertionError)
    for signal in (hooks.on_request_start, hooks.on_connection_create_start, hooks.on_request_end):
        signal.append(unused)
    users: dict[str, Any] = {"cookie_jar": jar, "trace_configs": [hooks], "middlewares": (unused,)}
    users["timeout"] = aiohttp.ClientTimeout(total=1e-9, connect=1e-9, sock_connect=1e-9, sock_read=1e-9)
    cookie = REFUSAL.replace(b"\r\n\r\n", b"\r\nSet-Cookie: name=theirs; Path=/\r\n\r\n", 1)
    async with (
        running(RawServer((Play.READ, cookie))) as server,
        aiohttp.ClientSession(raise_for_status=True, **users) as session,
        client_of(server.base_url, session, direct_connections=is_direct) as client,
    ):
        assert isinstance(await approve(client), Refused)
        assert b"cookie" not in server.requests[0].lower()
        assert [(each.key, each.value) for each in jar] == [("name", "ours")]
        assert session.trace_configs == [hooks]


@each_path
async def test_default_headers_of_the_moment_are_sent(*, is_direct: bool) -> None:
    server = RawServer(*[(Play.READ, REFUSAL)] * 5)
    others = {"Host": "other", "Content-Length": "1", "accept": "x"}
    async with (
        running(server),
        aiohttp.ClientSession() as session,
        client_of(server.base_url, session, direct_connections=is_direct) as client,
    ):
        for defaults in ({}, {"X-First": "a\tb", **others}, {"X-Second": "a\tb", **others}, {}, {}):
            session.headers.clear()
            session.headers.update(defaults)
            assert isinstance(await approve(client), Refused)
    heads = [request.partition(b"\r\n\r\n")[0] for request in server.requests]
    assert [b"X-First: a\tb" in head for head in heads] == [False, True, False, False, False]
    assert [b"X-Second: a\tb" in head for head in heads] == [False, False, True, False, False]
    for head in heads:
        own = (b"\r\nhost:", b"\r\ncontent-length:", b"\r\naccept:")
        assert [head.lower().count(each) for each in own] == [1] * 3
        assert b"other" not in head


class Gateway(aiohttp.BaseConnector):
    """A user's connector that does not call `BaseConnector.connect`, and so no trace hooks."""

    def __init__(self) -> None:
        super().__init__()
        self.wrapped = aiohttp.TCPConnector()

    allowed_protocol_schema_set = frozenset({"http", "https", ""})

    async def connect(self, req: Any, traces: Any, timeout: Any) -> Any:
        del traces
        return await self.wrapped.connect(req, [], timeout)

    async def close(self, **_: Any) -> None:
        await super().close()
        await self.wrapped.close()


@each_path
async def test_request_through_a_connector_without_hooks_counts_as_sent(*, is_direct: bool) -> None:
    async with serving(REFUSAL, None) as server, aiohttp.ClientSession(connector=Gateway()) as session:
        client = server.client(session=session, direct_connections=is_direct)
        assert isinstance(await approve(client), Refused)
        call = asyncio.create_task(approve(client))
        await server.wait_for_requests(2)
        for connection in tuple(server.open):
            connection.abort()
        with pytest.raises(TransportError) as caught:
            await call
    assert caught.value.outcome == "unknown"


with warnings.catch_warnings(action="ignore", category=DeprecationWarning):

    class Retrying(aiohttp.ClientSession):
        """A user's class that overrides requests."""

        async def _request(self, *arguments: Any, **options: Any) -> aiohttp.ClientResponse:
            return await super()._request(*arguments, **options)

    class Named(aiohttp.ClientSession):
        """A user's class that overrides nothing."""


def mocked() -> aiohttp.ClientSession:
    session = aiohttp.ClientSession()
    vars(session)["request"] = mock.AsyncMock()
    return session


def with_credentials() -> aiohttp.ClientSession:
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        return aiohttp.ClientSession(auth=aiohttp.BasicAuth("shop", "x"))


REFUSED: dict[str, tuple[Callable[[], aiohttp.ClientSession], str]] = {
    "proxy": (lambda: aiohttp.ClientSession(proxy="http://127.0.0.1:9"), "pass proxy= to the client"),
    "environment": (lambda: aiohttp.ClientSession(trust_env=True), "pass proxy= to the client"),
    "credentials": (with_credentials, "pass the header Authorization in headers="),
    "class": (Retrying, "pass transport="),
    "mock": (mocked, "pass transport="),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_session_with_ignored_settings_is_refused(name: str) -> None:
    make, hint = REFUSED[name]
    async with make() as session:
        with pytest.raises(ConfigurationError, match=f"^session: .*{hint}"):
            LoanClient("https://loans.example.com", shop_id="s", auth_token="t", session=session)


async def test_session_changed_after_the_client_was_created_is_refused() -> None:
    async with serving(REFUSAL) as server, Named() as session:
        client = server.client(session=session)
        assert isinstance(await approve(client), Refused)
        with mock.patch.object(session, "_request"), pytest.raises(ConfigurationError, match="transport="):
            await approve(client)
        assert server.requests == 1


@each_path
async def test_closed_session_is_refused_before_sending(*, is_direct: bool) -> None:
    async with serving(REFUSAL) as server:
        session = aiohttp.ClientSession()
        client = server.client(session=session, direct_connections=is_direct)
        await session.close()
        with pytest.raises(ConfigurationError, match="session: is closed"):
            await approve(client)
        assert server.requests == 0


def test_session_of_another_event_loop_is_refused_before_sending() -> None:
    async def use(session: aiohttp.ClientSession) -> None:
        async with session, client_of("http://127.0.0.1:9", session) as client:
            with pytest.raises(ConfigurationError, match="belongs to another event loop"):
                await approve(client)

    async def make() -> aiohttp.ClientSession:
        return aiohttp.ClientSession()

    asyncio.run(use(asyncio.run(make())))
