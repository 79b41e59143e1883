"""The example shop on Django."""

from contextlib import AsyncExitStack

from asgiref.typing import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, Scope
from checkout import ROUTES, Shop
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.views.decorators.http import require_http_methods

from loanasync import LoanError

settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["127.0.0.1", "localhost"])


def app(shop: Shop | None = None) -> ASGI3Application:
    """Return the application, by default configured by environment variables."""
    shop = shop or Shop()
    django = get_asgi_application()

    async def application(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        if scope["type"] != "lifespan":
            await django({**scope, "shop": shop}, receive, send)
            return
        await receive()  # lifespan.startup; Django does not handle lifespan events
        async with AsyncExitStack() as stack:  # closes the client at shutdown
            try:
                await stack.enter_async_context(shop.client.lifespan())
            except LoanError as error:  # for example of a wrong ledger: the server must not start
                await send({"type": "lifespan.startup.failed", "message": str(error)})
                return
            await send({"type": "lifespan.startup.complete"})
            await receive()  # lifespan.shutdown
        await send({"type": "lifespan.shutdown.complete"})

    return application


async def respond(request: HttpRequest) -> HttpResponse:
    """Return the page of a route."""
    shop = request.scope["shop"]
    page = await shop.respond(request.path, request.COOKIES.get("order"), request.POST.dict())
    return HttpResponse(page.html, status=page.status, headers=page.headers)


urlpatterns = [path(route[1:], require_http_methods([method])(respond)) for method, route in ROUTES]
