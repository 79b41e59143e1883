"""The example shop on Quart."""

from checkout import Checkout, PageResponse, open_client
from quart import Quart, Response, request

from loanasync import LoanClient


def app() -> Quart:
    """Return the application, with a client configured by environment variables."""
    return make_app(open_client())


def make_app(client: LoanClient) -> Quart:
    """Return the application, which closes the client at shutdown."""
    checkout = Checkout(client)
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
