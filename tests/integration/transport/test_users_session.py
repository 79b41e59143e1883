"""A user's session provides its connector and default headers. It is neither changed nor used otherwise."""

import asyncio
import gc
import warnings
from collections.abc import Callable
from typing import Any
from unittest import mock

import aiohttp
import pytest
from aiohttp.client_proto import ResponseHandler
from yarl import URL

from loanasync import ConfigurationError, LoanClient, Refused, Timeout, TransportError
from support.canned_server import REFUSAL, Canned, approve, serving
from support.direct_path import each_path, needs_direct_path
from support.raw_server import PATIENCE, Play, RawServer, running, until
from support.separate import SeparateClient

COOKIE = REFUSAL.replace(b"\r\n\r\n", b"\r\nSet-Cookie: name=theirs; Path=/\r\n\r\n", 1)


def pool_of(session: aiohttp.ClientSession) -> tuple[set[ResponseHandler], list[ResponseHandler]]:
    """Return the protocols of connections in use, and of idle connections."""
    connector: Any = session.connector
    idle = [handler for pool in connector._conns.values() for handler, _ in pool]
    return set(connector._acquired), idle


async def post(session: aiohttp.ClientSession, server: Canned) -> int:
    """Send a request of the user."""
    async with session.post(server.base_url, data=b"{}") as response:
        await response.read()
        return response.status


@needs_direct_path
async def test_connections_of_the_user_and_the_client_are_separate() -> None:
    async with serving(REFUSAL) as server, aiohttp.ClientSession() as session:
        client = server.client(session=session)
        assert await post(session, server) == 422
        [users] = pool_of(session)[1]
        for _ in range(2):
            assert isinstance(await approve(client), Refused)
            assert await post(session, server) == 422
            in_use, idle = pool_of(session)
            assert (len(in_use), idle) == (1, [users])
        assert (server.requests, server.most_open) == (5, 2)


@needs_direct_path
async def test_rest_of_an_early_response_to_the_user_reaches_no_approval() -> None:
    """The server responds to an upload of the user before it has read it, and then responds again."""
    async with serving(REFUSAL) as server, aiohttp.ClientSession() as session:
        client = server.client(session=session)
        assert await post(session, server) == 422
        server.respond_to_all(REFUSAL.replace(b"false", b"true "))
        await until(lambda: bool(pool_of(session)[1][0].should_close))
        assert isinstance(await approve(client), Refused)


@needs_direct_path
async def test_idle_connection_of_the_client_is_closed_after_a_second() -> None:
    connector = aiohttp.TCPConnector(limit=1)
    async with serving(REFUSAL) as server, aiohttp.ClientSession(connector=connector) as session:
        client = server.client(session=session)
        assert isinstance(await approve(client), Refused)
        before = asyncio.get_running_loop().time()
        assert await post(session, server) == 422, "gets the slot when the connection was closed"
        assert 0.5 < asyncio.get_running_loop().time() - before < PATIENCE
        assert server.most_open == 1


@needs_direct_path
@pytest.mark.parametrize("limits", [{"limit": 1}, {"limit": 0, "limit_per_host": 1}], ids=str)
async def test_waiting_call_uses_the_connection_of_the_one_before(limits: dict[str, int]) -> None:
    """Otherwise it would wait a second, until the idle connection is closed, and open another one."""
    connector = aiohttp.TCPConnector(**limits)  # type: ignore[arg-type]
    async with serving(REFUSAL) as server, aiohttp.ClientSession(connector=connector) as session:
        client = server.client(session=session)
        limit = Timeout(total=PATIENCE, attempt=PATIENCE, connect=PATIENCE)
        results = await asyncio.gather(*(approve(client, timeout=limit) for _ in range(6)))
        assert {type(each) for each in results} == {Refused}
        assert server.connections == 1


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
async def test_waiting_call_gets_the_connection_that_another_call_released() -> None:
    connector: Any = aiohttp.TCPConnector(limit=1)
    async with serving(None, REFUSAL) as server, aiohttp.ClientSession(connector=connector) as session:
        client = server.client(session=session)
        first = asyncio.create_task(approve(client))
        await server.wait_for_requests(1)
        second = asyncio.create_task(approve(client))
        await until(lambda: bool(connector._waiters))
        server.respond_to_all(REFUSAL)
        assert isinstance(await first, Refused)
        assert isinstance(await second, Refused)
        assert (server.requests, server.connections, len(server.open)) == (2, 1, 1)


@needs_direct_path
async def test_waiting_call_waits_on_if_a_third_call_took_the_connection() -> None:
    connector = aiohttp.TCPConnector(limit=2)
    async with serving(REFUSAL) as server, aiohttp.ClientSession(connector=connector) as session:
        client = server.client(session=session)

        async def calls() -> None:
            for _ in range(20):
                assert isinstance(await approve(client), Refused)

        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
            for _ in range(8):
                group.create_task(calls())
        assert server.requests == 160
        assert server.most_open <= 2


@needs_direct_path
async def test_connector_that_closes_connections_closes_those_of_the_client() -> None:
    connector = aiohttp.TCPConnector(force_close=True)
    async with serving(REFUSAL) as server, aiohttp.ClientSession(connector=connector) as session:
        client = server.client(session=session)
        for _ in range(2):
            assert isinstance(await approve(client), Refused)
            await until(lambda: not server.open)
        assert pool_of(session) == (set(), [])


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
async def test_cookies_stay_in_the_session_and_in_the_response(*, is_direct: bool) -> None:
    jar = aiohttp.CookieJar(unsafe=True)
    jar.update_cookies({"name": "ours"}, URL("http://127.0.0.1/"))
    async with (
        running(RawServer((Play.READ, COOKIE))) as server,
        aiohttp.ClientSession(cookie_jar=jar) as session,
    ):
        client = LoanClient(
            server.base_url, shop_id="s", auth_token="t", session=session, direct_connections=is_direct
        )
        assert isinstance(await approve(client), Refused)
        assert [(each.key, each.value) for each in jar] == [("name", "ours")]
        assert b"cookie" not in server.requests[0].lower()


@each_path
async def test_hooks_and_middlewares_of_the_session_see_nothing(*, is_direct: bool) -> None:
    hooks = aiohttp.TraceConfig()
    for signal in (hooks.on_request_start, hooks.on_connection_create_start, hooks.on_request_end):
        signal.append(mock.AsyncMock(side_effect=AssertionError))
    middleware = mock.AsyncMock(side_effect=AssertionError)
    async with (
        serving(REFUSAL) as server,
        aiohttp.ClientSession(trace_configs=[hooks], middlewares=(middleware,)) as session,
    ):
        client = server.client(session=session, direct_connections=is_direct)
        assert isinstance(await approve(client), Refused)
        assert session.trace_configs == [hooks]


@each_path
async def test_default_headers_of_the_moment_are_sent(*, is_direct: bool) -> None:
    server = RawServer((Play.READ, REFUSAL), (Play.READ, REFUSAL))
    async with running(server), aiohttp.ClientSession() as session:
        client = SeparateClient(
            server.base_url,
            shop_id="s",
            auth_token="t",
            session=session,
            direct_connections=is_direct,
        )
        for name in ("X-First", "X-Second"):
            session.headers.clear()
            session.headers.update({name: "a\tb", "Host": "other", "Content-Length": "1", "accept": "x"})
            assert isinstance(await approve(client), Refused)
    first, second = server.requests
    assert (b"X-First: a\tb" in first, b"X-Second" in first) == (True, False)
    assert (b"X-First" in second, b"X-Second: a\tb" in second) == (False, True)
    for head in (first.partition(b"\r\n\r\n")[0], second.partition(b"\r\n\r\n")[0]):
        assert [
            head.lower().count(each) for each in (b"\r\nhost:", b"\r\ncontent-length:", b"\r\naccept:")
        ] == [1] * 3
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
    async with serving(REFUSAL, None) as server:
        async with aiohttp.ClientSession(connector=Gateway()) as session:
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
    "verification": (
        lambda: aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=False)),
        "must verify certificates",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_session_with_ignored_settings_is_refused(name: str) -> None:
    make, hint = REFUSED[name]
    async with make() as session:
        with pytest.raises(ConfigurationError, match=f"^session: .*{hint}"):
            LoanClient("https://loans.example.com", shop_id="s", auth_token="t", session=session)


async def test_session_changed_after_the_client_was_created_is_refused() -> None:
    async with serving(REFUSAL) as server, aiohttp.ClientSession() as session:
        client = server.client(session=session)
        assert isinstance(await approve(client), Refused)
        with mock.patch.object(session, "_request"), pytest.raises(ConfigurationError, match="transport="):
            await approve(client)
        assert server.requests == 1


async def test_subclass_that_overrides_no_request_is_used() -> None:
    async with serving(REFUSAL) as server, Named() as session:
        assert isinstance(await approve(server.client(session=session)), Refused)


@each_path
async def test_session_closed_before_the_first_call_is_refused(*, is_direct: bool) -> None:
    async with serving(REFUSAL) as server:
        session = aiohttp.ClientSession()
        client = server.client(session=session, direct_connections=is_direct)
        await session.close()
        with pytest.raises(ConfigurationError, match="session: is closed"):
            await approve(client)
        assert server.requests == 0
