"""Our client, under every kind of telemetry."""

from itertools import count
from typing import Any

import aiohttp
from byhand import Providers
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from order import CODE, FIELDS, SHOP, TOKEN, Answer, AsyncIterator, Call, asynccontextmanager

from loanasync import ApprovalRequest, LoanClient, Timeout

__all__ = ["ours", "recorded", "sampled_out", "through_session", "through_users_session"]

PATIENT = Timeout(total=300, attempt=299, connect=298)  # as aiohttp itself, for ten thousand calls at once


@asynccontextmanager
async def ours(base_url: str, places: int = 100, **options: Any) -> AsyncIterator[Call]:
    """The whole call: model built, rules checked, sent, answer read; so many at once, our own default."""
    made = LoanClient(
        base_url,
        shop_id=SHOP,
        auth_token=TOKEN,
        max_concurrency=places,
        timeout=PATIENT,
        **options,
    )
    orders = count()  # each call is for another one: the client sends no approval twice
    async with made as client:

        async def call() -> Answer:
            decision = await client.approve(CODE, ApprovalRequest(**FIELDS), scope=str(next(orders)))
            return decision.meta.status, decision.approved

        yield call


@asynccontextmanager
async def through_session(base_url: str) -> AsyncIterator[Call]:
    """The same through `ClientSession.request` of the client's own session."""
    async with ours(base_url, direct_connections=False) as call:
        yield call


@asynccontextmanager
async def through_users_session(base_url: str) -> AsyncIterator[Call]:
    """The same through a session of the user's, made as for plain aiohttp."""
    async with aiohttp.ClientSession() as session, ours(base_url, session=session) as call:
        yield call


@asynccontextmanager
async def sampled_out(base_url: str) -> AsyncIterator[Call]:
    """With an SDK whose sampler takes no call."""
    async with ours(base_url, tracer_provider=TracerProvider(sampler=ALWAYS_OFF)) as call:
        yield call


@asynccontextmanager
async def recorded(base_url: str, providers: Providers) -> AsyncIterator[Call]:
    """With an SDK that records every call."""
    tracing, metering = providers
    async with ours(base_url, tracer_provider=tracing, meter_provider=metering) as call:
        yield call
