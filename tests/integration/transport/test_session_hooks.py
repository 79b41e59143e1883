"""Hooks of the user's session (`aiohttp.TraceConfig`) do not affect responses and connections."""

import asyncio
from typing import Any

import aiohttp
import pytest

from loanasync import Approved, Timeout
from support.canned_server import APPROVAL, approve, serving


async def fail(*_: object) -> None:
    raise RuntimeError


async def wait(*_: object) -> None:
    await asyncio.Event().wait()


async def read(_: object, __: object, end: aiohttp.TraceRequestEndParams) -> None:
    await end.response.read()


def tracing(**hooks: Any) -> list[aiohttp.TraceConfig]:
    config = aiohttp.TraceConfig()
    for name, hook in hooks.items():
        getattr(config, name).append(hook)
    return [config]


@pytest.mark.parametrize("hook", [fail, wait, read])
async def test_response_is_read_even_if_the_last_hook_fails_or_waits(hook: Any) -> None:
    async with (
        serving(APPROVAL) as server,
        aiohttp.ClientSession(trace_configs=tracing(on_request_end=hook)) as session,
    ):
        client = server.client(session=session, timeout=Timeout(total=9, attempt=1, connect=0.5))
        decision = await approve(client)
    assert isinstance(decision, Approved)
    assert (decision.redirect_url, decision.meta.unread) == ("https://example.com/#t", ())


async def test_request_of_the_user_on_a_released_connection_goes_through() -> None:
    """A hook waits after the response, when aiohttp has already returned the connection to its pool."""
    at_end, go_on = asyncio.Event(), asyncio.Event()

    async def hold(*_: object) -> None:
        at_end.set()
        await go_on.wait()

    async with (
        serving(APPROVAL, None) as server,
        aiohttp.ClientSession(trace_configs=tracing(on_request_end=hold)) as session,
    ):
        call = asyncio.create_task(approve(server.client(session=session)))
        await at_end.wait()
        theirs = asyncio.create_task(session.post(server.base_url, data=b"{}"))
        await server.wait_for_requests(2)
        server.respond_to_all(APPROVAL[:-10])
        for _ in range(10):
            await asyncio.sleep(0)
        go_on.set()
        assert isinstance(await call, Approved)
        server.respond_to_all(APPROVAL[-10:])
        assert (await (await theirs).json(content_type=None))["approved"] is True
        assert server.most_open == 1
