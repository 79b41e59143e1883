"""The token of a function is sent on every path to the service."""

from typing import Any

import aiohttp
import pytest

from loanasync import AccessDeniedError, Approved
from loanasync.sandbox import Sandbox
from support.builders import FISCAL_CODE, approval_request
from support.memory_clients import SESSIONS


@pytest.mark.parametrize("session", SESSIONS)
async def test_new_token_is_sent_with_the_next_attempt_and_call(session: str) -> None:
    tokens = ["old-token", "sandbox-token", "sandbox-token", "sandbox-token"]

    async def function() -> str:
        return tokens.pop(0)

    async with Sandbox() as sandbox, aiohttp.ClientSession() as users:
        options: dict[str, Any] = {"direct_connections": "through aiohttp" not in session}
        if session.startswith("users"):
            options["session"] = users
        async with sandbox.client(**options).with_options(
            shop_id=sandbox.shop_id, auth_token=function
        ) as client:
            with pytest.raises(AccessDeniedError):
                await client.create_request({"fiscalCode": FISCAL_CODE})
            await client.create_request({"fiscalCode": FISCAL_CODE})
            decision = await client.approve(FISCAL_CODE, approval_request(email="anna+500x1@example.com"))
    assert isinstance(decision, Approved)
    assert decision.meta.attempts == 2
    assert tokens == []
