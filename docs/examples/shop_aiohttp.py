"""The example shop on aiohttp.web, with a pool of 20 connections, through the proxy of the environment."""

from aiohttp import web
from checkout import ROUTES, Shop, open_client


def app(argv: list[str], shop: Shop | None = None) -> web.Application:
    """Return the application, by default configured by environment variables."""
    del argv
    shop = shop or Shop(open_client(max_concurrency=20, proxy="env"))
    app = web.Application()
    app.cleanup_ctx.append(shop.client.cleanup_ctx)  # closes the client at shutdown

    async def respond(request: web.Request) -> web.Response:
        page = await shop.respond(request.path, request.cookies.get("order"), await request.post())
        return web.Response(text=page.html, status=page.status, headers=page.headers)

    for method, path in ROUTES:
        app.router.add_route(method, path, respond)
    return app
