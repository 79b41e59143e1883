"""Many concurrent calls: slots, queue time, full pools, and closing."""

import asyncio
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from loanasync import ConnectError, LoanClient, PoolTimeoutError, Refused, Timeout
from support.canned_server import REFUSAL, approve, serving
from support.direct_path import each_path

PATIENT = Timeout(total=300, attempt=200, connect=100)  # seconds; 10,000 calls take a while to start
IN_A_MOMENT = Timeout(total=60, attempt=30, connect=0.1)


@pytest.fixture
def many_files() -> Iterator[None]:
    """Raise the limit of open files for 2,000 connections and their server side."""
    resource = pytest.importorskip("resource", reason="a limit of open files is POSIX")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 5000:
        pytest.skip(f"this machine allows only {hard} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 5000), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
async def test_two_thousand_calls_are_in_flight_with_that_concurrency() -> None:
    async with serving(None) as server, server.client(max_concurrency=2000, timeout=PATIENT) as client:
        calls = [asyncio.create_task(approve(client)) for _ in range(2000)]
        await server.wait_for_requests(2000)
        assert server.most_open == 2000
        server.respond_to_all(REFUSAL)
        assert {type(decision) for decision in await asyncio.gather(*calls)} == {Refused}


class EarlyTimeout(asyncio.Timeout):  # type: ignore[misc]
    """A timeout as in the first releases of Python 3.11: its error has no cause."""

    async def __aexit__(self, *raised: Any) -> None:  # noqa: PYI036  (only passed on)
        try:
            await super().__aexit__(*raised)
        except TimeoutError as error:
            error.__cause__ = None
            raise


@each_path
@pytest.mark.parametrize("limit", ["limit", "limit_per_host"])
@pytest.mark.parametrize("timeout", [asyncio.Timeout, EarlyTimeout])
async def test_full_pool_of_user_session_is_pool_timeout(
    limit: str, timeout: type, monkeypatch: pytest.MonkeyPatch, *, is_direct: bool
) -> None:
    monkeypatch.setattr("asyncio.timeouts.Timeout", timeout)
    connector = aiohttp.TCPConnector(**{limit: 2})  # type: ignore[arg-type]
    async with serving(None) as server, aiohttp.ClientSession(connector=connector) as session:
        client = server.client(session=session, direct_connections=is_direct)
        held = [asyncio.create_task(approve(client)) for _ in range(2)]
        await server.wait_for_requests(2)
        errors = await asyncio.gather(
            *(approve(client, timeout=IN_A_MOMENT) for _ in range(5)), return_exceptions=True
        )
        for error in errors:
            assert isinstance(error, PoolTimeoutError), error
            assert (error.outcome, error.cause_type) == ("not_sent", "ConnectionTimeoutError")
        assert server.requests == 2
        server.respond_to_all(REFUSAL)
        assert {type(decision) for decision in await asyncio.gather(*held)} == {Refused}


async def test_slow_connection_is_connect_error_not_pool_timeout() -> None:
    class Never(aiohttp.TCPConnector):
        async def _create_connection(self, *_: object) -> aiohttp.client_proto.ResponseHandler:
            await asyncio.Event().wait()
            raise AssertionError

    async with aiohttp.ClientSession(connector=Never(limit=1)) as session:
        client = LoanClient("http://127.0.0.1:9", shop_id="s", auth_token="t", session=session)
        both = (approve(client, timeout=IN_A_MOMENT) for _ in range(2))
        errors = await asyncio.gather(*both, return_exceptions=True)
    assert {type(error) for error in errors} <= {ConnectError, PoolTimeoutError}
    assert isinstance(errors[0], ConnectError)
