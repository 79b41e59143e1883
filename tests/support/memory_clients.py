"""A client without a ledger over a script, and real servers that hold their responses."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp

from loanasync import ClientClosedError, Decision, LoanClient, LoanError
from loanasync.testing import ScriptedResponse, ScriptedTransport
from support.builders import FISCAL_CODE, approval_request
from support.canned_server import Canned, serving

__all__ = ["SESSIONS", "Shop", "cancelled", "checked", "held_server", "request"]

# Connections of the client's own session and of a user's session, and both through aiohttp.
SESSIONS = ("own", "own, through aiohttp", "users", "users, through aiohttp")


async def request(client: LoanClient, code: str = FISCAL_CODE, **options: Any) -> Decision | LoanError:
    """Request an approval; return an error instead of raising it."""
    payload = options.pop("payload", None) or approval_request()
    try:
        return await client.approve(code, payload, **options)
    except LoanError as error:
        return checked(error, client)


def checked(error: LoanError, client: LoanClient) -> LoanError:
    """Return an error of `approve`, whose operation and entry must fit the client."""
    assert error.operation == "approve" or isinstance(error, ClientClosedError)
    assert error.entry is None or client.ledger is not None
    return error


class Shop:
    """A client without a ledger, and its script."""

    def __init__(self, *steps: ScriptedResponse, **options: Any) -> None:
        self.script = ScriptedTransport(*steps)
        self.client = self.script.client(**options)

    @property
    def sent(self) -> int:
        """The number of requests that were sent."""
        return len(self.script.sent)

    async def approve(self, code: str = FISCAL_CODE, **options: Any) -> Decision | LoanError:
        """Request an approval; return an error instead of raising it."""
        return await request(self.client, code, **options)


async def cancelled(call: "asyncio.Task[Any]") -> None:
    """Cancel a call, and wait until it is cancelled."""
    call.cancel()
    await asyncio.wait({call})
    assert call.cancelled()


@asynccontextmanager
async def held_server(
    session: str, *responses: bytes | None, **options: Any
) -> AsyncIterator[tuple[Canned, LoanClient]]:
    """Run a server with the given responses (None: no response), and a client with a memory."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serving(*(responses or (None,))))
        if session.startswith("users"):
            options["session"] = await stack.enter_async_context(aiohttp.ClientSession())
        if "through aiohttp" in session:
            options["direct_connections"] = False
        yield server, await stack.enter_async_context(server.client(separate=False, **options))
