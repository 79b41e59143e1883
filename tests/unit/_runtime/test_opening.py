"""Copies of a client before its first call, and the transports that a client opens when it is entered."""

from collections.abc import Iterator
from typing import Any, Self
from unittest import mock

import aiohttp
import pytest

from loanasync import Approved, ClientClosedError, LoanClient, Timeout
from loanasync.testing import ScriptedTransport, approval_request, approved, fiscal_code, scripted_client

LONGER = Timeout(total=120, attempt=90)


async def test_copy_made_before_the_first_call_shares_the_memory() -> None:
    transport = ScriptedTransport(approved())
    client = transport.client()
    copied = client.with_options(timeout=LONGER)
    code, request = fiscal_code(), approval_request()
    decision = await copied.approve(code, request)
    assert isinstance(decision, Approved)
    assert isinstance(await client.approve(code, request), Approved)
    assert len(transport.sent) == 1


async def test_copy_of_a_client_that_closes_before_its_first_call_is_closed() -> None:
    client = scripted_client(approved())
    copied = client.with_options(timeout=LONGER)
    await client.aclose()
    with pytest.raises(ClientClosedError):
        await copied.approve(fiscal_code(), approval_request())


async def test_entered_client_opens_no_transport_of_the_user() -> None:
    transport = ScriptedTransport()
    async with transport.client():
        pass
    assert transport.closed == 0


@pytest.fixture
def connectors() -> Iterator[list[aiohttp.TCPConnector]]:
    """Return the connectors that are made."""
    made: list[aiohttp.TCPConnector] = []

    def make(**options: Any) -> aiohttp.TCPConnector:
        made.append(connector(**options))
        return made[-1]

    connector = aiohttp.TCPConnector
    with mock.patch.object(aiohttp, "TCPConnector", make):
        yield made


async def test_entered_client_opens_its_session_once(connectors: list[aiohttp.TCPConnector]) -> None:
    async with LoanClient("https://loans.example.com", shop_id="shop", auth_token="token") as client:
        [opened] = connectors
        async with client.with_options(timeout=LONGER):
            assert not opened.closed
    assert (connectors, opened.closed) == ([opened], True)


async def test_closed_client_cannot_be_entered(connectors: list[aiohttp.TCPConnector]) -> None:
    client = LoanClient("https://loans.example.com", shop_id="shop", auth_token="token")
    await client.aclose()
    with pytest.raises(ClientClosedError):
        await client.__aenter__()
    assert connectors == []


async def test_opening_a_transport_takes_no_time_of_the_call() -> None:
    class SlowToOpen(ScriptedTransport):
        def __call__(self) -> Self:
            self.clock.time += 1000
            return self

    client = SlowToOpen(approved()).client()
    decision = await client.approve(fiscal_code(), approval_request())
    assert isinstance(decision, Approved)
    assert decision.meta.elapsed == 0
