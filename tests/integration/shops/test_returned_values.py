"""A route that returns a decision, a result or an error sends no personal data."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import orjson
import pydantic_core
import pytest
from fastapi import FastAPI

from loanasync import (
    ApprovalRequest,
    Approved,
    Decision,
    DecisionNotRecordedError,
    Meta,
    RawResponse,
    Refused,
    UnexpectedResponseError,
    UserData,
)
from loanasync._protocol.codec import read_decision
from loanasync.bulk import Row, RowResult
from support.privacy.plants import CODE, ECHO, found_in, planted

META = Meta(status=201, attempts=1, elapsed=0.5)
DECISION = read_decision(Approved, ECHO, META)
ROW = Row(CODE, planted(ApprovalRequest), id=CODE)
RETURNED: dict[str, Any] = {
    "approved": DECISION,
    "refused": read_decision(Refused, ECHO, META),
    "list": [DECISION],
    "member": {"decision": DECISION},
    "row result": RowResult(0, ROW, "approved", DECISION),
    "error with a decision": DecisionNotRecordedError(
        "approve", "key", "approved", DECISION, None, "OSError"
    ),
    "error with a response": UnexpectedResponseError(
        "approve", ("approved: expected a boolean",), "unknown", META, (), RawResponse(201, CODE.encode())
    ),
}


async def body_of(route: Callable[[], Any]) -> str:
    application = FastAPI()
    application.get("/")(route)
    transport = httpx.ASGITransport(application)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as browser:
        body: str = (await browser.get("/")).text
    return body


@pytest.mark.parametrize("name", RETURNED)
async def test_route_without_annotation_sends_the_masked_form(name: str) -> None:
    assert found_in(repr(ECHO))  # otherwise the search finds nothing at all

    def route():  # type: ignore[no-untyped-def]  # noqa: ANN202
        return RETURNED[name]

    body = await body_of(route)
    assert "***" in body
    assert not found_in(body)


@pytest.mark.parametrize("encode", [json.dumps, orjson.dumps, msgspec.json.encode, pydantic_core.to_json])
@pytest.mark.parametrize("name", ["approved", "refused", "list", "member", "row result"])
def test_encoder_of_another_framework_refuses_a_decision(encode: Callable[[Any], Any], name: str) -> None:
    """Litestar encodes with msgspec, which knows attrs classes, but not the body in a decision."""
    with pytest.raises((TypeError, pydantic_core.PydanticSerializationError)) as caught:
        encode(RETURNED[name])
    assert not found_in(str(caught.value))


@pytest.mark.parametrize("returned", [planted(ApprovalRequest), planted(UserData), ROW])
async def test_route_without_annotation_refuses_a_request_model(returned: Any) -> None:
    with pytest.raises(ValueError, match="object is not iterable") as caught:
        await body_of(lambda: returned)
    assert not found_in(str(caught.value))


@pytest.mark.parametrize("annotation", [Approved, Decision, list[Decision], RowResult, dict[str, Refused]])
def test_route_with_an_annotation_is_refused_at_its_definition(annotation: Any) -> None:
    def route() -> Any: ...

    route.__annotations__["return"] = annotation
    with pytest.raises(TypeError, match="contains personal data, so it cannot be a response type"):
        FastAPI().get("/")(route)
