"""A call of the journal as what makes it again: a curl command, and a program in Python."""

import json
import shlex
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from attrs import frozen

from loanasync.sandbox.journal import Entry
from loanasync.sandbox.masking import MASK, masked


@frozen
class Replay:
    """The same call twice, for a terminal and for Python; both read the token from ``TOKEN``."""

    curl: str
    python: str


def path_of(entry: Entry, shop_id: str, *, shown: bool) -> str:
    """The path that was called, as a URL has it."""
    code = quote(entry.fiscal_code, safe="") if shown else MASK
    return entry.route.replace("{shopId}", quote(shop_id, safe="")).replace("{fiscalCode}", code)


def replay(entry: Entry, base_url: str, shop_id: str, *, shown: bool) -> Replay | None:
    """What makes the call again; None for an address that is not kept."""
    if not entry.route.startswith("/"):
        return None
    url = base_url + path_of(entry, shop_id, shown=shown)
    body = entry.request if shown else masked(entry.request)
    return Replay(_curl(entry.method, url, body), _python(entry.method, url, body))


# The token is left to whoever makes the call again: it is not kept.
def _curl(method: str, url: str, body: Mapping[str, Any] | None) -> str:
    lines = [
        shlex.join(["curl", "-i", "-X", method, url]),
        shlex.join(["-H", "Content-Type: application/json"]),
        '-H "X-Auth-Token: $TOKEN"',
    ]
    if body is not None:
        lines.append(shlex.join(["-d", json.dumps(body, indent=2, ensure_ascii=False)]))
    return " \\\n  ".join(lines)


def _python(method: str, url: str, body: Mapping[str, Any] | None) -> str:
    fields = "".join(f"    {name!r}: {value!r},\n" for name, value in (body or {}).items())
    sent = "None" if body is None else f"{{\n{fields}}}"
    return f"""\
import asyncio
import os

import aiohttp

URL = {url!r}
BODY = {sent}


async def main():
    headers = {{"X-Auth-Token": os.environ["TOKEN"]}}
    async with aiohttp.ClientSession(headers=headers) as session:
        async with session.request({method!r}, URL, json=BODY) as answer:
            print(answer.status, await answer.text())


asyncio.run(main())
"""
