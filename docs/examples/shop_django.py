"""The shop on Django."""

from asgiref.typing import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, Scope
from checkout import Answer, Checkout
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.views.decorators.http import require_GET, require_POST

from loanasync import LoanClient
from loanasync.ledger import SqliteLedger

settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["127.0.0.1", "localhost"])


def app() -> ASGI3Application:
    """The application over the client that the environment names."""
    return make_app(LoanClient.from_env(ledger=SqliteLedger("decisions.db")))


def make_app(client: LoanClient) -> ASGI3Application:
    """The application, which closes the client when it ends."""
    checkout = Checkout(client)
    django = get_asgi_application()

    async def application(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        if scope["type"] != "lifespan":
            await django({**scope, "checkout": checkout}, receive, send)
            return
        await receive()  # the server starts; Django itself does not hear of it
        async with client.lifespan():
            await send({"type": "lifespan.startup.complete"})
            await receive()  # the server ends
        await send({"type": "lifespan.shutdown.complete"})

    return application


@require_GET
async def cart(request: HttpRequest) -> HttpResponse:
    """What is in the cart."""
    return answered(request.scope["checkout"].cart(request.COOKIES.get("order")))


@require_POST
async def pay(request: HttpRequest) -> HttpResponse:
    """Pay it in instalments."""
    checkout = request.scope["checkout"]
    return answered(await checkout.pay(request.COOKIES.get("order"), request.POST.dict()))


@require_GET
async def back(request: HttpRequest) -> HttpResponse:
    """Back from the web application."""
    return answered(request.scope["checkout"].back(request.COOKIES.get("order")))


@require_POST
async def complete(request: HttpRequest) -> HttpResponse:
    """Complete the data."""
    checkout = request.scope["checkout"]
    return answered(await checkout.complete(request.COOKIES.get("order"), request.POST.dict()))


def answered(answer: Answer) -> HttpResponse:
    """The answer as a response."""
    return HttpResponse(answer.html, status=answer.status, headers=answer.headers)


urlpatterns = [path("", cart), path("pay", pay), path("back", back), path("complete", complete)]
