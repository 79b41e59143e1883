"""The shop on Litestar."""

from typing import Any

from checkout import Answer, Checkout
from litestar import Litestar, Request, Response, get, post

from loanasync import LoanClient
from loanasync.ledger import SqliteLedger


def app() -> Litestar:
    """The application over the client that the environment names."""
    return make_app(LoanClient.from_env(ledger=SqliteLedger("decisions.db")))


def make_app(client: LoanClient) -> Litestar:
    """The application, which closes the client when it ends."""
    checkout = Checkout(client)

    @get("/")
    async def cart(request: Request[Any, Any, Any]) -> Response[str]:
        return answered(checkout.cart(request.cookies.get("order")))

    @post("/pay")
    async def pay(request: Request[Any, Any, Any]) -> Response[str]:
        return answered(await checkout.pay(request.cookies.get("order"), await form(request)))

    @get("/back")
    async def back(request: Request[Any, Any, Any]) -> Response[str]:
        return answered(checkout.back(request.cookies.get("order")))

    @post("/complete")
    async def complete(request: Request[Any, Any, Any]) -> Response[str]:
        return answered(await checkout.complete(request.cookies.get("order"), await form(request)))

    # Without logging_config=None it would set up the logging of the whole process.
    return Litestar([cart, pay, back, complete], lifespan=[client.lifespan], logging_config=None)


async def form(request: Request[Any, Any, Any]) -> dict[str, str]:
    """What was typed."""
    return {name: value for name, value in (await request.form()).items() if isinstance(value, str)}


def answered(answer: Answer) -> Response[str]:
    """The answer as a response."""
    return Response(answer.html, status_code=answer.status, headers=answer.headers, media_type="text/html")
