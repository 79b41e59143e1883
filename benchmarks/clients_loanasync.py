"""loanasync, with and without telemetry, over connections and sessions."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import aiohttp
from byhand import Providers
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from order import SHOP, TOKEN, Call, Result, Scenario

from loanasync import LoanClient, Telemetry, Timeout

ORDERS = count()  # a new one for each call: the clients of a process send no approval twice
PATIENT = Timeout(total=300, attempt=299, connect=298)  # the total of aiohttp, for 10,000 calls in flight


@asynccontextmanager
async def with_loanasync(scenario: Scenario, limit: int = 100, **options: Any) -> AsyncIterator[Call]:
    """Build the model, check it, send it and read the response; `limit` has the default of the client."""
    opened = LoanClient(
        scenario.base_url,
        shop_id=SHOP,
        auth_token=TOKEN,
        max_concurrency=limit,
        timeout=PATIENT,
        ssl=None if scenario.trust is True or "session" in options else scenario.trust,
        **options,
    )
    codes, request = scenario.codes, scenario.order.request
    async with opened as client:

        async def call() -> Result:
            decision = await client.approve(next(codes), request(), order_id=str(next(ORDERS)))
            return decision.meta.status, decision.approved

        yield call


@asynccontextmanager
async def through_session(scenario: Scenario) -> AsyncIterator[Call]:
    """Send through `ClientSession.request` of the client's own session."""
    async with with_loanasync(scenario, direct_connections=False) as call:
        yield call


@asynccontextmanager
async def through_users_session(scenario: Scenario, limit: int = 100, **options: Any) -> AsyncIterator[Call]:
    """Send through a session of the user, created as for plain aiohttp."""
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=limit, ssl=scenario.trust)) as session,
        with_loanasync(scenario, limit, session=session, **options) as call,
    ):
        yield call


@asynccontextmanager
async def sampled_out(scenario: Scenario) -> AsyncIterator[Call]:
    """Use an SDK whose sampler drops all calls."""
    async with with_loanasync(
        scenario, telemetry=Telemetry(tracer_provider=TracerProvider(sampler=ALWAYS_OFF))
    ) as call:
        yield call


@asynccontextmanager
async def recorded(
    scenario: Scenario, providers: Providers, *, users_session: bool = False
) -> AsyncIterator[Call]:
    """Use an SDK that records all calls."""
    tracing, metering = providers
    client = through_users_session if users_session else with_loanasync
    telemetry = Telemetry(tracer_provider=tracing, meter_provider=metering)
    async with client(scenario, telemetry=telemetry) as call:
        yield call
