"""Plain aiohttp as users write it: the baseline, also with hand-written telemetry."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import aiohttp
from byhand import ByHand, Providers
from order import TOKEN, Call, Result, Scenario


@asynccontextmanager
async def plain(scenario: Scenario, limit: int = 100) -> AsyncIterator[Call]:
    """The baseline: send JSON, read JSON; `limit` has the default of aiohttp."""
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=limit, ssl=scenario.trust)
    ) as session:

        async def call() -> Result:
            async with session.post(
                scenario.address(),
                json={**scenario.order.members},
                headers={"X-Auth-Token": TOKEN},
            ) as response:
                decision = await response.json()
                return response.status, decision["approved"]

        yield call


@asynccontextmanager
async def by_hand(scenario: Scenario, providers: Providers) -> AsyncIterator[Call]:
    """The baseline with the two spans, the duration metric and the propagation of loanasync."""
    telemetry = ByHand(providers)
    connector = aiohttp.TCPConnector(ssl=scenario.trust)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def send(headers: dict[str, str]) -> Result:
            headers["X-Auth-Token"] = TOKEN
            async with session.post(
                scenario.address(), json={**scenario.order.members}, headers=headers
            ) as response:
                decision = await response.json()
                return response.status, decision["approved"]

        attempt = partial(telemetry.attempt, send)

        async def call() -> Result:
            return await telemetry.call(attempt, lambda result: result[1] is True)

        yield call
