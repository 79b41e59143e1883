"""The example shop on FastAPI."""

from checkout import ROUTES, Shop
from fastapi import FastAPI, Request, Response


def app(shop: Shop | None = None) -> FastAPI:
    """Return the application, by default configured by environment variables."""
    shop = shop or Shop()
    app = FastAPI(lifespan=shop.client.lifespan)  # closes the client at shutdown

    async def respond(request: Request) -> Response:
        page = await shop.respond(request.url.path, request.cookies.get("order"), await request.form())
        return Response(page.html, page.status, page.headers)

    for method, path in ROUTES:
        app.add_api_route(path, respond, methods=[method], response_class=Response)
    return app
