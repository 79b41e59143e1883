"""The example shop on Litestar, which docs/howto/web.md runs with two workers and PostgreSQL."""

from typing import Any

from checkout import ROUTES, Shop
from litestar import Litestar, Request, Response
from litestar.handlers import get, post


def app(shop: Shop | None = None) -> Litestar:
    """Return the application, by default configured by environment variables."""
    shop = shop or Shop()

    async def respond(request: Request[Any, Any, Any]) -> Response[str]:
        page = await shop.respond(request.url.path, request.cookies.get("order"), await request.form())
        return Response(page.html, status_code=page.status, headers=page.headers, media_type="text/html")

    shown = get([path for method, path in ROUTES if method == "GET"])(respond)
    sent = post([path for method, path in ROUTES if method == "POST"])(respond)
    # logging_config=None: do not reconfigure logging for the whole process
    return Litestar([shown, sent], lifespan=[shop.client.lifespan], logging_config=None)
