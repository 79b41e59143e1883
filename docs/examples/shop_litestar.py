"""The example shop on Litestar."""

from typing import Any

from checkout import Checkout, PageResponse, open_client, open_orders
from litestar import Litestar, Request, Response, get, post
from shop_orders import Orders

from loanasync import LoanClient


def app() -> Litestar:
    """Return the application, configured by environment variables."""
    return make_app(open_client(), open_orders())


def make_app(client: LoanClient, orders: Orders) -> Litestar:
    """Return the application, which closes the client at shutdown."""
    checkout = Checkout(client, orders)

    @get("/")
    async def cart(request: Request[Any, Any, Any]) -> Response[str]:
        return to_response(checkout.cart(request.cookies.get("order")))

    @post("/pay")
    async def pay(request: Request[Any, Any, Any]) -> Response[str]:
        return to_response(await checkout.pay(request.cookies.get("order"), await form_fields(request)))

    @get("/order")
    async def order_status(request: Request[Any, Any, Any]) -> Response[str]:
        return to_response(checkout.order_status(request.cookies.get("order")))

    @post("/complete")
    async def complete(request: Request[Any, Any, Any]) -> Response[str]:
        return to_response(await checkout.complete(request.cookies.get("order"), await form_fields(request)))

    # logging_config=None: do not reconfigure logging for the whole process
    return Litestar([cart, pay, order_status, complete], lifespan=[client.lifespan], logging_config=None)


async def form_fields(request: Request[Any, Any, Any]) -> dict[str, str]:
    """Return the text fields of the submitted form."""
    return {name: value for name, value in (await request.form()).items() if isinstance(value, str)}


def to_response(page: PageResponse) -> Response[str]:
    """Convert a page to a response of this framework."""
    return Response(page.html, status_code=page.status, headers=page.headers, media_type="text/html")
