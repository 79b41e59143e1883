"""Marks of tests that need the direct path, or run with it and without it, and clients for both."""

import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import pytest

from loanasync import LoanClient
from loanasync._transport.aiohttp_internals import is_direct_possible
from support.faults.row import SESSIONS
from support.raw_server import authority
from support.separate import SeparateClient

# Not `is_direct_possible()`: with these versions, an unusable direct path is an error.
needs_direct_path = pytest.mark.skipif(
    not is_direct_possible(), reason="this version of aiohttp is used through ClientSession.request"
)


def is_direct(session: str) -> bool:
    """Return True if a client with this session of `support.faults.row` writes to connections directly."""
    return "through aiohttp" not in session and is_direct_possible()


# Of tests with a user's session: the parameter is for `LoanClient(direct_connections=...)`.
each_path = pytest.mark.parametrize(
    "is_direct", [pytest.param(True, marks=needs_direct_path), False], ids=["direct", "through aiohttp"]
)
each_session = pytest.mark.parametrize("session", SESSIONS)
# The sessions in which the client reads the connection itself.
each_direct_session = pytest.mark.parametrize(
    "session", [pytest.param(each, marks=needs_direct_path) for each in ("own", "users")]
)


@asynccontextmanager
async def client_of(
    base_url: str,
    session: str | aiohttp.ClientSession = "own",
    *,
    separate: bool = True,
    users: dict[str, Any] | None = None,
    **options: Any,
) -> AsyncIterator[LoanClient]:
    """Run a client with a session of `support.faults.row` or a given one. By default it sends each call.

    Over https, it trusts the authority of the tests. `users` has the arguments of a user's session.
    """
    trust = None
    if base_url.startswith("https"):
        trust = ssl.create_default_context(cadata=authority().cert_pem.bytes().decode())
    settings = {"shop_id": "shop", "auth_token": "secret-token", **options}
    async with AsyncExitStack() as stack:
        if isinstance(session, str):
            settings["direct_connections"] = "through aiohttp" not in session
            if session.startswith("users"):
                arguments = {"connector": aiohttp.TCPConnector(ssl=trust or True), **(users or {})}
                session = await stack.enter_async_context(aiohttp.ClientSession(**arguments))
        settings |= {"ssl": trust} if isinstance(session, str) else {"session": session}
        kind = SeparateClient if separate else LoanClient
        yield await stack.enter_async_context(kind(base_url, **settings))
