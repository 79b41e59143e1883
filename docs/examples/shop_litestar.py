"""The example shop on Litestar, which docs/howto/web.md runs with two workers and PostgreSQL."""

from typing import Any

from checkout import ROUTES, Checkout, open_client, open_orders
from litestar import Litestar, Request, Response
from litestar.handlers import get, post
from shop_orders import Orders

from loanasync import LoanClient


def app() -> Litestar:
    """Return the application, configured by environment variables."""
    return make_app(open_client(), open_orders())


def make_app(client: LoanClient, orders: Orders) -> Litestar:
    """Return the application, which closes the client at shutdown."""
    checkout = Checkout(client, orders)

    async def respond(request: Request[Any, Any, Any]) -> Response[str]:
        form = await request.form()
        page = await checkout.respond(request.url.path, request.cookies.get("order"), form)
        return Response(page.html, status_code=page.status, headers=page.headers, media_type="text/html")

    shown = get([path for method, path in ROUTES if method == "GET"])(respond)
    sent = post([path for method, path in ROUTES if method == "POST"])(respond)
    # logging_config=None: do not reconfigure logging for the whole process
    return Litestar([shown, sent], lifespan=[client.lifespan], logging_config=None)
