"""A shop that sends HTTP requests without the SDK, for tests of the sandbox."""

import io
import json
from typing import Any

import aiohttp

from loanasync.sandbox import Sandbox

CODE = "TSTXYZ00A00A000A"
TOKEN = "sandbox-token"
BODY: dict[str, Any] = {
    "amount": 45_000,
    "instalments": 12,
    "loanFinality": "ecommerce_shop",
    "email": "anna@example.com",
    "lastname": "Prova",
    "firstname": "Anna",
    "mobilePhone": "3330000000",
    "city": "Roma",
    "address": "Via Prova",
    "province": "RM",
    "postalCode": "00100",
    "streetNumber": "12",
    "citizenship": "italian",
}


def codes(sandbox: Sandbox) -> list[str]:
    """Return the fiscal codes of all created customers, oldest first."""
    return [code for code, _ in sandbox._engine.customers.items()]


class Raw:
    """Sends HTTP requests to a sandbox without the SDK."""

    def __init__(self, sandbox: Sandbox, session: aiohttp.ClientSession) -> None:
        self.sandbox = sandbox
        self.session = session

    async def __call__(
        self,
        method: str,
        path: str,
        body: object,
        token: str | None = TOKEN,
        *,
        decoded: bool = True,
        timeout: float = 60,
    ) -> tuple[int, Any]:
        url = f"{self.sandbox.base_url}/api/shops/sandbox-shop/requests{path}"
        data = io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
        headers = {} if token is None else {"X-Auth-Token": token}
        limit = aiohttp.ClientTimeout(total=timeout)
        sent: dict[str, Any] = {"data": data, "headers": headers, "timeout": limit}
        async with self.session.request(method, url, **sent) as response:
            return response.status, await response.json(
                content_type=None
            ) if decoded else await response.read()

    async def create(self, **more: object) -> tuple[int, Any]:
        return await self("POST", "", {"fiscalCode": CODE, **more})

    def body(self, **changes: object) -> dict[str, Any]:
        """Return the body of an approval; the value "absent" omits a field."""
        return {name: value for name, value in {**BODY, **changes}.items() if value != "absent"}

    async def approve(
        self, *, decoded: bool = True, timeout: float = 60, **changes: object
    ) -> tuple[int, Any]:
        body = self.body(**changes)
        return await self("POST", f"/{CODE}", body, decoded=decoded, timeout=timeout)
