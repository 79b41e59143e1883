"""The example shop on Quart."""

from checkout import ROUTES, Shop
from quart import Quart, Response, request


def app(shop: Shop | None = None) -> Quart:
    """Return the application, by default configured by environment variables."""
    shop = shop or Shop()
    app = Quart(__name__)
    app.after_serving(shop.client.aclose)  # no startup hook: the client opens its session on first use

    async def respond() -> Response:
        page = await shop.respond(request.path, request.cookies.get("order"), await request.form)
        return Response(page.html, page.status, page.headers)

    for method, path in ROUTES:
        app.add_url_rule(path, path, respond, methods=[method])
    return app
