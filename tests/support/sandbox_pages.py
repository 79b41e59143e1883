"""Requests for the sandbox's pages and forms over plain HTTP."""

from typing import Any
from urllib.parse import urlsplit

from support.raw_shop import Raw

INSPECTOR = "/_sandbox/"


async def get(raw: Raw, path: str) -> tuple[int, str]:
    async with raw.session.get(raw.sandbox.base_url + path) as response:
        return response.status, await response.text()


async def post(raw: Raw, path: str, headers: dict[str, str] | None = None, **fields: str) -> tuple[int, str]:
    """Post a form like a browser, and follow redirects."""
    sent = {"Accept": "text/html", **(headers or {})}
    async with raw.session.post(raw.sandbox.base_url + path, data=fields, headers=sent) as response:
        return response.status, await response.text()


async def approved(raw: Raw, **changes: Any) -> str:
    """Approve a request and return the path of the customer's page."""
    await raw.create()
    status, response = await raw.approve(**changes)
    assert status == 201
    return str(urlsplit(response["redirectUrl"]).path)


def section(page: str, name: str) -> str:
    return page.partition(f'<section id="{name}"')[2].partition("</section>")[0]
