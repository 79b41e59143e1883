"""The sandbox's pages over plain HTTP, as a form of theirs or another program asks for them."""

from typing import Any
from urllib.parse import urlsplit

from support.raw_shop import Raw

INSPECTOR = "/_sandbox/"


async def get(raw: Raw, path: str) -> tuple[int, str]:
    async with raw.session.get(raw.sandbox.base_url + path) as answer:
        return answer.status, await answer.text()


async def post(raw: Raw, path: str, headers: dict[str, str] | None = None, **fields: str) -> tuple[int, str]:
    """Post a form as a browser does, and follow where it leads."""
    sent = {"Accept": "text/html", **(headers or {})}
    async with raw.session.post(raw.sandbox.base_url + path, data=fields, headers=sent) as answer:
        return answer.status, await answer.text()


async def approved(raw: Raw, **changes: Any) -> str:
    """Path of the page of a customer whose loan is approved."""
    await raw.create()
    status, answer = await raw.approve(**changes)
    assert status == 201
    return str(urlsplit(answer["redirectUrl"]).path)


def section(page: str, name: str) -> str:
    return page.partition(f'<section id="{name}"')[2].partition("</section>")[0]
