"""A client without a ledger over a script, and real servers that hold their responses."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from loanasync import ClientClosedError, Decision, LoanClient, LoanError
from loanasync.testing import ScriptedResponse, ScriptedTransport
from support.builders import FISCAL_CODE, approval_request
from support.canned_server import Canned, serving
from support.direct_path import client_of

T = TypeVar("T")


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


async def started(call: Coroutine[Any, Any, T], event: asyncio.Event) -> "asyncio.Task[T]":
    """Start a call, and wait until it has set an event."""
    task = asyncio.create_task(call)
    await event.wait()
    return task


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
    async with (
        serving(*(responses or (None,))) as server,
        client_of(server.base_url, session, separate=False, **options) as client,
    ):
        yield server, client
