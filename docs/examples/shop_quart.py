"""The example shop on Quart."""

from checkout import ROUTES, Checkout, open_client, open_orders
from quart import Quart, Response, request
from shop_orders import Orders

from loanasync import LoanClient


def app() -> Quart:
    """Return the application, configured by environment variables."""
    return make_app(open_client(), open_orders())


def make_app(client: LoanClient, orders: Orders) -> Quart:
    """Return the application, which closes the client at shutdown."""
    checkout = Checkout(client, orders)
    app = Quart(__name__)
    app.after_serving(client.aclose)  # no startup hook: the client opens its session on first use

    async def respond() -> Response:
        page = await checkout.respond(request.path, request.cookies.get("order"), await request.form)
        return Response(page.html, page.status, page.headers)

    for method, path in ROUTES:
        app.add_url_rule(path, path, respond, methods=[method])
    return app
