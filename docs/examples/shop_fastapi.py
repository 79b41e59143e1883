"""The shop on FastAPI."""

from checkout import Answer, Checkout
from fastapi import FastAPI, Request, Response

from loanasync import LoanClient
from loanasync.ledger import SqliteLedger


def app() -> FastAPI:
    """The application over the client that the environment names."""
    return make_app(LoanClient.from_env(ledger=SqliteLedger("decisions.db")))


def make_app(client: LoanClient) -> FastAPI:
    """The application, which closes the client when it ends."""
    checkout = Checkout(client)
    app = FastAPI(lifespan=client.lifespan)

    @app.get("/")
    async def cart(request: Request) -> Response:
        return answered(checkout.cart(request.cookies.get("order")))

    @app.post("/pay")
    async def pay(request: Request) -> Response:
        return answered(await checkout.pay(request.cookies.get("order"), await form(request)))

    @app.get("/back")
    async def back(request: Request) -> Response:
        return answered(checkout.back(request.cookies.get("order")))

    @app.post("/complete")
    async def complete(request: Request) -> Response:
        return answered(await checkout.complete(request.cookies.get("order"), await form(request)))

    return app


async def form(request: Request) -> dict[str, str]:
    """What was typed."""
    return {name: value for name, value in (await request.form()).items() if isinstance(value, str)}


def answered(answer: Answer) -> Response:
    """The answer as a response."""
    return Response(answer.html, answer.status, answer.headers)
