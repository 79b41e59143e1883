"""The shop on aiohttp.web."""

from aiohttp import web
from checkout import Answer, Checkout

from loanasync import LoanClient
from loanasync.ledger import SqliteLedger


def app(argv: list[str]) -> web.Application:
    """The application over the client that the environment names."""
    del argv
    return make_app(LoanClient.from_env(ledger=SqliteLedger("decisions.db")))


def make_app(client: LoanClient) -> web.Application:
    """The application, which closes the client when it ends."""
    checkout = Checkout(client)
    app = web.Application()
    app.cleanup_ctx.append(client.cleanup_ctx)

    async def cart(request: web.Request) -> web.Response:
        return answered(checkout.cart(request.cookies.get("order")))

    async def pay(request: web.Request) -> web.Response:
        return answered(await checkout.pay(request.cookies.get("order"), await form(request)))

    async def back(request: web.Request) -> web.Response:
        return answered(checkout.back(request.cookies.get("order")))

    async def complete(request: web.Request) -> web.Response:
        return answered(await checkout.complete(request.cookies.get("order"), await form(request)))

    app.router.add_get("/", cart)
    app.router.add_post("/pay", pay)
    app.router.add_get("/back", back)
    app.router.add_post("/complete", complete)
    return app


async def form(request: web.Request) -> dict[str, str]:
    """What was typed."""
    return {name: value for name, value in (await request.post()).items() if isinstance(value, str)}


def answered(answer: Answer) -> web.Response:
    """The answer as a response."""
    return web.Response(text=answer.html, status=answer.status, headers=answer.headers)
