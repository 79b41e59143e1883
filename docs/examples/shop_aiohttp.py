"""The example shop on aiohttp.web."""

from aiohttp import web
from checkout import Checkout, PageResponse, open_client, open_orders
from shop_orders import Orders

from loanasync import LoanClient


def app(argv: list[str]) -> web.Application:
    """Return the application, configured by environment variables."""
    del argv
    return make_app(open_client(), open_orders())


def make_app(client: LoanClient, orders: Orders) -> web.Application:
    """Return the application, which closes the client at shutdown."""
    checkout = Checkout(client, orders)
    app = web.Application()
    app.cleanup_ctx.append(client.cleanup_ctx)

    async def cart(request: web.Request) -> web.Response:
        return to_response(checkout.cart(request.cookies.get("order")))

    async def pay(request: web.Request) -> web.Response:
        return to_response(await checkout.pay(request.cookies.get("order"), await form_fields(request)))

    async def order_status(request: web.Request) -> web.Response:
        return to_response(checkout.order_status(request.cookies.get("order")))

    async def complete(request: web.Request) -> web.Response:
        return to_response(await checkout.complete(request.cookies.get("order"), await form_fields(request)))

    app.router.add_get("/", cart)
    app.router.add_post("/pay", pay)
    app.router.add_get("/order", order_status)
    app.router.add_post("/complete", complete)
    return app


async def form_fields(request: web.Request) -> dict[str, str]:
    """Return the text fields of the submitted form."""
    return {name: value for name, value in (await request.post()).items() if isinstance(value, str)}


def to_response(page: PageResponse) -> web.Response:
    """Convert a page to a response of this framework."""
    return web.Response(text=page.html, status=page.status, headers=page.headers)
