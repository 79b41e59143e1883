"""Hooks of the user's session (`aiohttp.TraceConfig`) cost neither a response nor a connection."""

import asyncio
from typing import Any

import aiohttp
import pytest
from canned import APPROVAL, approve, serving

from loanasync import Approved, Timeout


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
async def test_response_is_read_whatever_the_last_hook_does(hook: Any) -> None:
    async with (
        serving(APPROVAL) as server,
        aiohttp.ClientSession(trace_configs=tracing(on_request_end=hook)) as session,
    ):
        client = server.client(session=session, timeout=Timeout(total=1, attempt=1, connect=0.5))
        decision = await approve(client)
    assert isinstance(decision, Approved)
    assert (decision.redirect_url, decision.meta.unread) == ("https://example.com/#t", ())
