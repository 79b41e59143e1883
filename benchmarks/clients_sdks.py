"""SDKs of others as their users call them, pointed at our service; each is imported where it is used.

Where an SDK can send any body to any path, it sends our order and reads our decision into a model of its own
kind. Where it cannot, it makes the call that its users make most. An SDK that shows no status raises an
error for any but a good one.
"""

from typing import Any

import aiohttp
from order import ORDER, TOKEN, Answer, AsyncIterator, Call, address, asynccontextmanager

__all__ = ["with_anthropic", "with_azure", "with_mollie", "with_openai", "with_stripe"]

CREATED = 201


@asynccontextmanager
async def with_azure(base_url: str) -> AsyncIterator[Call]:
    """azure-core's pipeline on aiohttp, with the policies that its generated clients have."""
    from azure.core import AsyncPipelineClient
    from azure.core.pipeline import policies
    from azure.core.pipeline.transport import AioHttpTransport
    from azure.core.rest import HttpRequest

    steps = [
        policies.RequestIdPolicy(),
        policies.HeadersPolicy({"X-Auth-Token": TOKEN}),
        policies.UserAgentPolicy(base_user_agent="shop"),
        policies.ProxyPolicy(),
        policies.ContentDecodePolicy(),
        policies.AsyncRedirectPolicy(),
        policies.AsyncRetryPolicy(),
        policies.CustomHookPolicy(),
        policies.NetworkTraceLoggingPolicy(),
        policies.DistributedTracingPolicy(),
        policies.HttpLoggingPolicy(),
    ]
    async with AsyncPipelineClient(base_url, policies=steps, transport=AioHttpTransport()) as client:

        async def call() -> Answer:
            response = await client.send_request(HttpRequest("POST", address(base_url), json={**ORDER}))
            response.raise_for_status()
            return response.status_code, response.json()["approved"]

        yield call


@asynccontextmanager
async def with_stripe(base_url: str) -> AsyncIterator[Call]:
    """Stripe on its aiohttp client: a payment intent made of our order, in its form encoding."""
    import stripe

    async with aiohttp.ClientSession() as session:
        http = stripe.AIOHTTPClient(session=session)
        client = stripe.StripeClient("sk_test_made_up", http_client=http, base_addresses={"api": base_url})

        async def call() -> Answer:
            intent: Any = await client.v1.payment_intents.create_async({**ORDER, "currency": "eur"})
            return intent.last_response.code, intent["approved"]

        yield call


@asynccontextmanager
async def with_openai(base_url: str) -> AsyncIterator[Call]:
    """Openai on its aiohttp client; `post` is its documented way to paths that it does not know."""
    import openai

    class Decision(openai.BaseModel):
        approved: bool

    http = openai.DefaultAioHttpClient()
    async with openai.AsyncOpenAI(api_key="made-up", base_url=base_url, http_client=http) as client:

        async def call() -> Answer:
            decision = await client.post(
                address(""), body={**ORDER}, cast_to=Decision, options={"headers": {"X-Auth-Token": TOKEN}}
            )
            return CREATED, decision.approved

        yield call


@asynccontextmanager
async def with_anthropic(base_url: str) -> AsyncIterator[Call]:
    """Anthropic on its aiohttp client, as openai."""
    import anthropic

    class Decision(anthropic.BaseModel):
        approved: bool

    http = anthropic.DefaultAioHttpClient()
    async with anthropic.AsyncAnthropic(api_key="made-up", base_url=base_url, http_client=http) as client:

        async def call() -> Answer:
            decision = await client.post(
                address(""), body={**ORDER}, cast_to=Decision, options={"headers": {"X-Auth-Token": TOKEN}}
            )
            return CREATED, decision.approved

        yield call


@asynccontextmanager
async def with_mollie(base_url: str) -> AsyncIterator[Call]:
    """mollie-api-py, whose async calls go over httpx: a payment, answered in mollie's shape."""
    import mollie

    async with mollie.ClientSDK(
        security=mollie.models.Security(api_key="test_made_up"), server_url=base_url
    ) as client:
        order = {
            "description": ORDER["orderToken"],
            "amount": {"currency": "EUR", "value": "450.00"},
            "redirect_url": "https://shop.example.com/orders/1",
        }

        async def call() -> Answer:
            payment = await client.payments.create_async(payment_request={**order})
            return CREATED, payment.status == "authorized"

        yield call
