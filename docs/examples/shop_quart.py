"""The example shop on Quart."""

from checkout import Checkout, PageResponse, open_client, open_orders
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

    @app.get("/")
    async def cart() -> Response:
        return to_response(checkout.cart(request.cookies.get("order")))

    @app.post("/pay")
    async def pay() -> Response:
        return to_response(await checkout.pay(request.cookies.get("order"), await request.form))

    @app.get("/order")
    async def order_status() -> Response:
        return to_response(checkout.order_status(request.cookies.get("order")))

    @app.post("/complete")
    async def complete() -> Response:
        return to_response(await checkout.complete(request.cookies.get("order"), await request.form))

    return app


def to_response(page: PageResponse) -> Response:
    """Convert a page to a response of this framework."""
    return Response(page.html, page.status, page.headers)
