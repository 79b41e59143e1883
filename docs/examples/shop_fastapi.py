"""The example shop on FastAPI."""

from checkout import Checkout, PageResponse, open_client, open_orders
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

    @app.get("/")
    async def cart(request: Request) -> Response:
        return to_response(checkout.cart(request.cookies.get("order")))

    @app.post("/pay")
    async def pay(request: Request) -> Response:
        return to_response(await checkout.pay(request.cookies.get("order"), await form_fields(request)))

    @app.get("/order")
    async def order_status(request: Request) -> Response:
        return to_response(checkout.order_status(request.cookies.get("order")))

    @app.post("/complete")
    async def complete(request: Request) -> Response:
        return to_response(await checkout.complete(request.cookies.get("order"), await form_fields(request)))

    return app


async def form_fields(request: Request) -> dict[str, str]:
    """Return the text fields of the submitted form."""
    return {name: value for name, value in (await request.form()).items() if isinstance(value, str)}


def to_response(page: PageResponse) -> Response:
    """Convert a page to a response of this framework."""
    return Response(page.html, page.status, page.headers)
