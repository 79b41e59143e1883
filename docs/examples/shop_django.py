"""The example shop on Django."""

from asgiref.typing import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, Scope
from checkout import Checkout, PageResponse, open_client, open_orders
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.views.decorators.http import require_GET, require_POST
from shop_orders import Orders

from loanasync import LoanClient

settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["127.0.0.1", "localhost"])


def app() -> ASGI3Application:
    """Return the application, configured by environment variables."""
    return make_app(open_client(), open_orders())


def make_app(client: LoanClient, orders: Orders) -> ASGI3Application:
    """Return the application, which closes the client at shutdown."""
    checkout = Checkout(client, orders)
    django = get_asgi_application()

    async def application(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        if scope["type"] != "lifespan":
            await django({**scope, "checkout": checkout}, receive, send)
            return
        await receive()  # lifespan.startup; Django does not handle lifespan events
        async with client.lifespan():
            await send({"type": "lifespan.startup.complete"})
            await receive()  # lifespan.shutdown
        await send({"type": "lifespan.shutdown.complete"})

    return application


@require_GET
async def cart(request: HttpRequest) -> HttpResponse:
    """Show the cart."""
    return to_response(request.scope["checkout"].cart(request.COOKIES.get("order")))


@require_POST
async def pay(request: HttpRequest) -> HttpResponse:
    """Request approval."""
    checkout = request.scope["checkout"]
    return to_response(await checkout.pay(request.COOKIES.get("order"), request.POST.dict()))


@require_GET
async def order_status(request: HttpRequest) -> HttpResponse:
    """Show the state of the order."""
    return to_response(request.scope["checkout"].order_status(request.COOKIES.get("order")))


@require_POST
async def complete(request: HttpRequest) -> HttpResponse:
    """Complete the shopper's data."""
    checkout = request.scope["checkout"]
    return to_response(await checkout.complete(request.COOKIES.get("order"), request.POST.dict()))


def to_response(page: PageResponse) -> HttpResponse:
    """Convert a page to a response of this framework."""
    return HttpResponse(page.html, status=page.status, headers=page.headers)


urlpatterns = [path("", cart), path("pay", pay), path("order", order_status), path("complete", complete)]
