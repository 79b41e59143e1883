"""A transport that approves every request in memory, so that only the client is measured."""

from loanasync import LoanClient
from loanasync._protocol.messages import NoResponse, Request, Response

BODY = b'{"approved":true,"redirectUrl":"https://example.com/#t","amount":45000,"netAmount":44000}'


class InMemoryService:
    """A transport that approves every request at once."""

    async def send(self, request: Request, *, connect: float, within: float) -> Response | NoResponse:
        """Return an approval."""
        del request, connect, within
        return Response(status=201, headers={}, body=BODY)

    def check(self) -> None:
        """Accept every call."""

    async def aclose(self) -> None:
        """Do nothing: there is nothing to close."""


def client_with(transport: InMemoryService) -> LoanClient:
    """Return a client that uses this transport."""
    return LoanClient(
        "https://loans.example.com",
        shop_id="shop",
        auth_token="secret",  # noqa: S106  (made up)
        transport=lambda: transport,
    )
