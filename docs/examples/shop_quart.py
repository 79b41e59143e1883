"""The shop on Quart."""

from checkout import Answer, Checkout
from quart import Quart, Response, request

from loanasync import LoanClient
from loanasync.ledger import SqliteLedger


def app() -> Quart:
    """The application over the client that the environment names."""
    return make_app(LoanClient.from_env(ledger=SqliteLedger("decisions.db")))


def make_app(client: LoanClient) -> Quart:
    """The application, which closes the client when it ends."""
    checkout = Checkout(client)
    app = Quart(__name__)
    app.after_serving(client.aclose)  # nothing to open before: sessions are, with the first call

    @app.get("/")
    async def cart() -> Response:
        return answered(checkout.cart(request.cookies.get("order")))

    @app.post("/pay")
    async def pay() -> Response:
        return answered(await checkout.pay(request.cookies.get("order"), await request.form))

    @app.get("/back")
    async def back() -> Response:
        return answered(checkout.back(request.cookies.get("order")))

    @app.post("/complete")
    async def complete() -> Response:
        return answered(await checkout.complete(request.cookies.get("order"), await request.form))

    return app


def answered(answer: Answer) -> Response:
    """The answer as a response."""
    return Response(answer.html, answer.status, answer.headers)
