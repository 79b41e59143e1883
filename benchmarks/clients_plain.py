"""aiohttp as a user writes it: the baseline, and with our telemetry by hand."""

from functools import partial

import aiohttp
from byhand import ByHand, Providers
from order import CODE, ORDER, SHOP, TOKEN, Answer, AsyncIterator, Call, address, asynccontextmanager

__all__ = ["by_hand", "plain"]


@asynccontextmanager
async def plain(base_url: str, places: int = 100) -> AsyncIterator[Call]:
    """The baseline: JSON in, JSON out; so many connections at most, aiohttp's own default."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=places)) as session:

        async def call() -> Answer:
            async with session.post(
                f"{base_url}/api/shops/{SHOP}/requests/{CODE}",
                json={**ORDER},
                headers={"X-Auth-Token": TOKEN},
            ) as response:
                decision = await response.json()
                return response.status, decision["approved"]

        yield call


@asynccontextmanager
async def by_hand(base_url: str, providers: Providers) -> AsyncIterator[Call]:
    """The baseline with the two spans, the duration and the propagation of ours."""
    telemetry = ByHand(providers)
    async with aiohttp.ClientSession() as session:

        async def send(headers: dict[str, str]) -> Answer:
            headers["X-Auth-Token"] = TOKEN
            async with session.post(address(base_url), json={**ORDER}, headers=headers) as response:
                decision = await response.json()
                return response.status, decision["approved"]

        attempt = partial(telemetry.attempt, send)

        async def call() -> Answer:
            return await telemetry.call(attempt, lambda answer: answer[1] is True)

        yield call
