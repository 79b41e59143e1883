"""The example shop on aiohttp.web, with a pool of 20 connections, through the proxy of the environment."""

from aiohttp import web
from checkout import ROUTES, Checkout, open_client, open_orders
from shop_orders import Orders

from loanasync import LoanClient


def app(argv: list[str]) -> web.Application:
    """Return the application, configured by environment variables."""
    del argv
    return make_app(open_client(max_concurrency=20, proxy="env"), open_orders())


def make_app(client: LoanClient, orders: Orders) -> web.Application:
    """Return the application, which closes the client at shutdown."""
    checkout = Checkout(client, orders)
    app = web.Application()
    app.cleanup_ctx.append(client.cleanup_ctx)

    async def respond(request: web.Request) -> web.Response:
        page = await checkout.respond(request.path, request.cookies.get("order"), await request.post())
        return web.Response(text=page.html, status=page.status, headers=page.headers)

    for method, path in ROUTES:
        app.router.add_route(method, path, respond)
    return app
