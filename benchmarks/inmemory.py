"""A service in memory, and clients that ask it, where nothing but the client is measured."""

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
    return LoanClient(
        "https://loans.example.com",
        shop_id="shop",
        auth_token="secret",  # noqa: S106  (made up)
        remember=remember,
        transport=lambda: sender,
    )
