"""The order of the modules that an approval with a ledger calls."""

import sys
from itertools import groupby
from types import FrameType
from typing import Any

from loanasync import LoanClient, NoResponse, Request, Response, Transport
from loanasync.ledger import MemoryLedger
from support.builders import approval_request

CALL_PATH = (
    "loanasync._client",
    "loanasync._runtime.flights",
    "loanasync.ledger.guard",
    "loanasync._runtime.run",
    "loanasync._runtime.pipeline",
    "loanasync.ledger.access",
    "loanasync.ledger.ledger",
    "loanasync.ledger.memory",
    __name__,  # the transport
)


class Approving(Transport):
    """A transport that approves each request."""

    def check(self) -> None:
        """Accept each call."""

    async def send(self, request: Request, *, connect: float, within: float) -> Response | NoResponse:
        del request, connect, within
        return Response(status=201, headers={}, body=b'{"approved": true}')

    async def aclose(self) -> None:
        """Do nothing: there is nothing to close."""


async def test_approval_with_a_ledger_goes_down_and_never_up() -> None:
    """A module calls only modules below it, and no other module calls back into one of them."""
    stacks: set[tuple[str, ...]] = set()

    def record(frame: FrameType | None, event: str, _: Any) -> None:
        names = []
        while event == "call" and frame is not None and frame.f_code is not here:
            names.append(str(frame.f_globals.get("__name__")))
            frame = frame.f_back
        path = [name for name in reversed(names) if name.startswith("loanasync") or name == __name__]
        stacks.add(tuple(name for name, _ in groupby(path)))

    here = sys._getframe().f_code
    async with LoanClient(
        "https://loans.example.com",
        shop_id="shop",
        auth_token="token",
        ledger=MemoryLedger(),
        transport=Approving,
    ) as client:
        await client.approve("TSTXYZ00A00A000A", approval_request())  # opens the transport
        request = approval_request()
        sys.setprofile(record)
        try:
            await client.approve("TSTXYZ00A00A000B", request)
        finally:
            sys.setprofile(None)

    assert {name for stack in stacks for name in stack} > set(CALL_PATH)
    for stack in stacks:
        ranks = [CALL_PATH.index(name) if name in CALL_PATH else len(CALL_PATH) for name in stack]
        assert ranks == sorted(ranks), stack
        assert len(set(stack) & set(CALL_PATH)) == sum(name in CALL_PATH for name in stack), stack
