"""Other SDKs, as their users call them, against the service of the benchmark.

An SDK that can send any body to any path sends the order and reads the decision into one of its models.
Others make their most common call. SDKs that do not expose the status raise an error unless it is a
success. Each SDK is imported where it is used.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from order import TOKEN, Call, Result, Scenario

CREATED = 201


@asynccontextmanager
async def with_azure(scenario: Scenario) -> AsyncIterator[Call]:
    """The pipeline of azure-core on aiohttp, with the policies of its generated clients."""
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
    async with AsyncPipelineClient(scenario.base_url, policies=steps, transport=AioHttpTransport()) as client:

        async def call() -> Result:
            order = {**scenario.order.members}
            response = await client.send_request(HttpRequest("POST", scenario.address(), json=order))
            response.raise_for_status()
            return response.status_code, response.json()["approved"]

        yield call


@asynccontextmanager
async def with_stripe(scenario: Scenario) -> AsyncIterator[Call]:
    """Stripe on its aiohttp client: a payment intent with the data of the order, form-encoded."""
    import stripe

    async with aiohttp.ClientSession() as session:
        http = stripe.AIOHTTPClient(session=session)
        client = stripe.StripeClient(
            "sk_test_made_up", http_client=http, base_addresses={"api": scenario.base_url}
        )

        async def call() -> Result:
            order: Any = {**scenario.order.members, "currency": "eur"}
            intent: Any = await client.v1.payment_intents.create_async(order)
            return intent.last_response.code, intent["approved"]

        yield call


@asynccontextmanager
async def with_openai(scenario: Scenario) -> AsyncIterator[Call]:
    """OpenAI on its aiohttp client; `post` is its documented method for other paths."""
    import openai

    class Decision(openai.BaseModel):
        approved: bool

    http = openai.DefaultAioHttpClient()
    async with openai.AsyncOpenAI(api_key="made-up", base_url=scenario.base_url, http_client=http) as client:
        yield _posting(client, Decision, scenario)


@asynccontextmanager
async def with_anthropic(scenario: Scenario) -> AsyncIterator[Call]:
    """Anthropic on its aiohttp client, in the same way as OpenAI."""
    import anthropic

    class Decision(anthropic.BaseModel):
        approved: bool

    http = anthropic.DefaultAioHttpClient()
    async with anthropic.AsyncAnthropic(
        api_key="made-up", base_url=scenario.base_url, http_client=http
    ) as client:
        yield _posting(client, Decision, scenario)


def _posting(client: Any, model: type, scenario: Scenario) -> Call:  # noqa: ANN401  (of either SDK)
    async def call() -> Result:
        decision = await client.post(
            scenario.path(),
            body={**scenario.order.members},
            cast_to=model,
            options={"headers": {"X-Auth-Token": TOKEN}},
        )
        return CREATED, decision.approved

    return call


@asynccontextmanager
async def with_mollie(scenario: Scenario) -> AsyncIterator[Call]:
    """mollie-api-py, which uses httpx for async calls: a payment, with a response in its own format."""
    import mollie

    async with mollie.ClientSDK(
        security=mollie.models.Security(api_key="test_made_up"), server_url=scenario.base_url
    ) as client:
        order = {
            "description": scenario.order.members["orderToken"],
            "amount": {"currency": "EUR", "value": "450.00"},
            "redirect_url": "https://shop.example.com/orders/1",
        }

        async def call() -> Result:
            payment = await client.payments.create_async(payment_request={**order})
            return CREATED, payment.status == "authorized"

        yield call
