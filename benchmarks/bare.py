"""A minimal aiohttp server: it reads the body and responds with a constant number of bytes."""

import asyncio
import sys

from aiohttp import web


async def serve(body: bytes) -> None:
    """Serve on a free port until the process is ended."""

    async def approve(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=body, status=201, content_type="application/json")

    app = web.Application()
    app.router.add_post("/api/shops/{shopId}/requests/{fiscalCode}", approve)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    print(f"http://{host}:{port}", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(b"x" * int(sys.argv[1])))
