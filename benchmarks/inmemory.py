"""A service in memory, and clients that ask it, where nothing but the client is measured."""

import asyncio
import time

from loanasync import LoanClient
from loanasync._protocol.messages import NoResponse, Request, Response

__all__ = ["Memory", "client_over"]

BODY = b'{"approved":true,"redirectUrl":"https://example.com/#t","amount":45000,"netAmount":44000}'


class Memory:
    """A service in memory: every request is approved at once."""

    async def send(self, request: Request, *, connect: float, within: float) -> Response | NoResponse:
        """Answer."""
        del request, connect, within
        return Response(status=201, headers={}, body=BODY)

    def check(self) -> None:
        """Let any call begin."""

    async def aclose(self) -> None:
        """Nothing is open."""


def client_over(sender: Memory, *, remember: bool = True) -> LoanClient:
    """A client whose pipeline asks the sender."""
    client = LoanClient("https://loans.example.com", shop_id="shop", auth_token="secret", remember=remember)  # noqa: S106  (made up)
    client._pipeline = client._pipeline.over(lambda: sender, now=time.monotonic, sleep=asyncio.sleep)  # noqa: SLF001  (the seam)
    if client._memory is not None:  # noqa: SLF001  (as above)
        client._memory._pipeline = client._pipeline  # noqa: SLF001  (as above)
    return client
