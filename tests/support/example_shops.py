"""Start the example shops in process or on real sockets."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import uvicorn
from aiohttp import web
from aiohttp.test_utils import TestServer
from checkout import Shop

from loanasync import LoanClient

HOST = "http://127.0.0.1"
SHOPS = ["aiohttp", "fastapi", "litestar", "quart", "django"]
FORM = {
    "fiscal_code": "tstxyz00a00a000a",  # lower case: the shop normalizes it
    "first_name": "Anna",
    "last_name": "Prova",
    "email": "anna@example.com",
    "mobile_phone": "3330000000",
    "address": "Via Prova",
    "street_number": "12/A",
    "postal_code": "00100",
    "city": "Roma",
    "province": "RM",
    "citizenship": "italian",
    "instalments": "12",
}
CODE = FORM["fiscal_code"].upper()
DATA = {
    "document_type": "identity_card",
    "document_code": "AA00000AA",
    "document_city": "Roma",
    "document_issue_date": "2022-05-17",
    "document_expiration_date": "2032-05-17",
    "marketing": "on",
}


@contextmanager
def opened(name: str, client: LoanClient, folder: Path | None = None) -> Iterator[Any]:
    """Make the application of a shop, with the file of orders in a folder, by default a new one."""
    with TemporaryDirectory() as new:
        shop = Shop(client, (folder or Path(new)) / "orders.db")
        make = import_module(f"shop_{name}").app
        yield make([], shop) if name == "aiohttp" else make(shop)


@asynccontextmanager
async def lifespan(app: Any) -> AsyncIterator[None]:
    """Run an ASGI application's lifespan as a server does."""
    events: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    responses: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": {}}
    running = asyncio.create_task(app(scope, events.get, responses.put))
    await events.put({"type": "lifespan.startup"})
    assert await responses.get() == {"type": "lifespan.startup.complete"}
    try:
        yield
    finally:
        await events.put({"type": "lifespan.shutdown"})
        assert await responses.get() == {"type": "lifespan.shutdown.complete"}
        await running


@asynccontextmanager
async def shopper(name: str, client: LoanClient) -> AsyncIterator[httpx.AsyncClient]:
    """Yield an HTTP client for a shop in this process."""
    with opened(name, client) as app:
        if isinstance(app, web.Application):
            async with (
                TestServer(app) as server,
                httpx.AsyncClient(base_url=str(server.make_url(""))) as browser,
            ):
                yield browser
        else:
            transport = httpx.ASGITransport(app)
            async with lifespan(app), httpx.AsyncClient(transport=transport, base_url=HOST) as browser:
                yield browser


def listen() -> socket.socket:
    """Bind a free port, so that its address is known before the server starts."""
    sock = socket.create_server(("127.0.0.1", 0))
    sock.settimeout(0)
    return sock


def address_of(sock: socket.socket) -> str:
    return f"http://127.0.0.1:{sock.getsockname()[1]}"


@asynccontextmanager
async def serving(
    name: str, client: LoanClient, sock: socket.socket, folder: Path | None = None
) -> AsyncIterator[None]:
    """Serve a shop on a socket with the server that docs/howto/web.md names."""
    with opened(name, client, folder) as app:
        is_aiohttp = isinstance(app, web.Application)
        async with _aiohttp(app, sock) if is_aiohttp else _uvicorn(app, sock):
            yield


@asynccontextmanager
async def _aiohttp(app: web.Application, sock: socket.socket) -> AsyncIterator[None]:
    runner = web.AppRunner(app)
    await runner.setup()
    await web.SockSite(runner, sock).start()
    try:
        yield
    finally:
        await runner.cleanup()


class Server(uvicorn.Server):
    """A server with an event that is set at startup."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_up.set()


@asynccontextmanager
async def _uvicorn(app: Any, sock: socket.socket) -> AsyncIterator[None]:
    server = Server(uvicorn.Config(app, lifespan="on", log_config=None))
    running = asyncio.create_task(server.serve([sock]))
    await server.is_up.wait()
    try:
        yield
    finally:
        server.should_exit = True
        await running
