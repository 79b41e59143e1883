"""The sandbox in a process that cannot import Jinja2."""

import json
from collections.abc import Iterator
from urllib.parse import urlencode, urlsplit

import aiohttp
import pytest

from support.processes import sandbox_process
from support.raw_shop import BODY, CODE

WITHOUT_JINJA = (
    "import sys; sys.modules['jinja2'] = None; from loanasync.sandbox.__main__ import main; main()"
)
INSTALL = "pip install '.[sandbox]' in a checkout"
HTML = {"Accept": "text/html"}
REQUESTS = "/api/shops/sandbox-shop/requests"


@pytest.fixture
def base_url() -> Iterator[str]:
    """Start a sandbox without Jinja2 and yield its URL."""
    with sandbox_process("-c", WITHOUT_JINJA) as (_, url):
        yield url


async def test_service_without_jinja_works_and_pages_name_the_extra(base_url: str) -> None:
    async with aiohttp.ClientSession(base_url, headers={"X-Auth-Token": "sandbox-token"}) as session:

        async def send(method: str, path: str, status: int, json: object = None, **form: str) -> str:
            data = urlencode(form) if form else None
            headers = {"Content-Type": "application/x-www-form-urlencoded"} if form else {}
            async with session.request(
                method, path, json=json, data=data, headers=headers | HTML, allow_redirects=False
            ) as response:
                text = await response.text()
                assert (response.status, path) == (status, path)
                if INSTALL in text:
                    assert response.content_type == "text/plain"
                return text

        await send("POST", REQUESTS, 201, {"fiscalCode": CODE})
        decision = json.loads(await send("POST", f"{REQUESTS}/{CODE}", 201, BODY))
        application = urlsplit(decision["redirectUrl"]).path
        await send("POST", application, 303, action="accept")
        await send("GET", "/", 302)
        for page in (application, "/_sandbox/", "/_sandbox/calls/2", "/apply/unknown", "/_sandbox/calls/99"):
            assert INSTALL in await send("GET", page, 501)
        assert json.loads(await send("GET", "/_sandbox/health", 200)) == {"status": "ok"}
        assert len((await send("GET", "/_sandbox/journal.jsonl", 200)).splitlines()) == 2
        for path in ("/_sandbox/findings.json", "/_sandbox/style.css"):
            await send("GET", path, 200)
        await send("POST", "/_sandbox/faults", 303, fault="create_request=500")
        await send("POST", REQUESTS, 500, {"fiscalCode": CODE})
        await send("POST", "/_sandbox/reset", 303)
        await send("POST", REQUESTS, 201, {"fiscalCode": CODE})
