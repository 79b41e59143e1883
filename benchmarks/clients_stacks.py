"""Stacks that users assemble from libraries; each library is imported where it is used."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any

import aiohttp
from byhand import Providers
from order import TOKEN, Call, Result, Scenario


@asynccontextmanager
async def with_orjson(scenario: Scenario) -> AsyncIterator[Call]:
    """The baseline with orjson for request and response."""
    import orjson

    connector = aiohttp.TCPConnector(ssl=scenario.trust)
    async with aiohttp.ClientSession(connector=connector) as session:
        headers = {"X-Auth-Token": TOKEN, "Content-Type": "application/json"}

        async def call() -> Result:
            body = orjson.dumps({**scenario.order.members})
            async with session.post(scenario.address(), data=body, headers=headers) as response:
                decision = orjson.loads(await response.read())
                return response.status, decision["approved"]

        yield call


@asynccontextmanager
async def with_httpx(scenario: Scenario) -> AsyncIterator[Call]:
    """httpx: send JSON, read JSON."""
    import httpx

    async with httpx.AsyncClient() as client:

        async def call() -> Result:
            response = await client.post(
                scenario.address(), json={**scenario.order.members}, headers={"X-Auth-Token": TOKEN}
            )
            return response.status_code, response.json()["approved"]

        yield call


def models() -> tuple[Callable[..., Any], Any]:
    """Return pydantic models of the order and the decision, with the rules that fields can express."""
    from pydantic import BaseModel, ConfigDict, Field, StringConstraints
    from pydantic.alias_generators import to_camel

    digits = Annotated[str, StringConstraints(pattern="^[0-9]+$")]
    text = Annotated[str, StringConstraints(min_length=1)]

    class Shared(BaseModel):
        model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True)

        email: Annotated[str, StringConstraints(pattern="^[^@ ]+@[^@ ]+$")]
        last_name: Annotated[text, Field(alias="lastname")]
        first_name: Annotated[text, Field(alias="firstname")]
        mobile_phone: digits
        city: text
        address: Annotated[str, StringConstraints(pattern="^[^,]+$")]
        province: Annotated[str, StringConstraints(pattern="^[A-Z]{2}$")]
        postal_code: Annotated[str, StringConstraints(pattern="^[0-9]{5}$")]
        street_number: text
        citizenship: text
        instalments: Annotated[int, Field(ge=3, le=60)]
        zero_interest_rate: bool | None = None
        order_token: str | None = None

    class Order(Shared):
        amount: Annotated[int, Field(ge=5_000, le=1_500_000)]
        loan_finality: text
        country_calling_code: Annotated[str, StringConstraints(pattern="^[+][0-9]+$")] | None = None
        iban: Annotated[str, StringConstraints(pattern="^[A-Z]{2}[0-9]{2}[A-Z0-9]+$")] | None = None
        payment_day_of_month: digits | None = None
        residence: text | None = None
        residence_start_date: Annotated[str, StringConstraints(pattern="^[0-9]{2}/[0-9]{4}$")] | None = None
        educational_qualification: text | None = None
        children: text | None = None
        salary_type: text | None = None
        salary: Annotated[int, Field(ge=0)] | None = None

    class Decision(Shared):
        approved: Annotated[bool, Field(strict=True)]
        redirect_url: str | None = None
        fiscal_code: str | None = None
        amount: int | None = None
        net_amount: int | None = None
        payment_day_of_month: int | None = None

    return Order, Decision


class Fault(Exception):  # noqa: N818  (internal)
    """Status 500."""


@asynccontextmanager
async def assembled(scenario: Scenario, providers: Providers | None = None) -> AsyncIterator[Call]:
    """Use aiohttp with pydantic models, tenacity and the standard instrumentation."""
    from opentelemetry.instrumentation.aiohttp_client import create_trace_config
    from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random_exponential

    order, decision = models()
    tracing, metering = providers or (None, None)
    traced = create_trace_config(tracer_provider=tracing, meter_provider=metering)
    headers = {"X-Auth-Token": TOKEN, "Content-Type": "application/json"}
    async with aiohttp.ClientSession(trace_configs=[traced]) as session:

        @retry(
            retry=retry_if_exception_type(Fault),
            stop=stop_after_attempt(3),
            wait=wait_random_exponential(multiplier=0.2, max=5),
        )
        async def send(body: str) -> tuple[int, Any]:
            async with session.post(scenario.address(), data=body, headers=headers) as response:
                if response.status == 500:  # noqa: PLR2004  (spec §7)
                    raise Fault
                return response.status, decision.model_validate_json(await response.read())

        async def call() -> Result:
            body = order(**scenario.order.fields).model_dump_json(by_alias=True, exclude_none=True)
            status, read = await send(body)
            return status, read.approved

        yield call
