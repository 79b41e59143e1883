"""The example shop on FastAPI."""

from checkout import ROUTES, Checkout, open_client, open_orders
from fastapi import FastAPI, Request, Response
from shop_orders import Orders

from loanasync import LoanClient


def app() -> FastAPI:
    """Return the application, configured by environment variables."""
    return make_app(open_client(), open_orders())


def make_app(client: LoanClient, orders: Orders) -> FastAPI:
    """Return the application, which closes the client at shutdown."""
    checkout = Checkout(client, orders)
    app = FastAPI(lifespan=client.lifespan)

    async def respond(request: Request) -> Response:
        page = await checkout.respond(request.url.path, request.cookies.get("order"), await request.form())
        return Response(page.html, page.status, page.headers)

    for method, path in ROUTES:
        app.add_api_route(path, respond, methods=[method], response_class=Response)
    return app
