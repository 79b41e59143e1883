"""Run the example shops on real sockets."""

import asyncio
import os
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from aiohttp import web
from checkout import MADE_UP, Shop

from loanasync import LoanClient
from loanasync.sandbox import Sandbox
from support.processes import credentials

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
SHOPS = ["aiohttp", "fastapi", "litestar", "quart", "django"]
FORM = {
    "fiscal_code": "tstxyz00a00a000a",  # lower case: the shop normalizes it
    **MADE_UP,
    "citizenship": "italian",
    "instalments": "12",
}
CODE = FORM["fiscal_code"].upper()
OTHER_CUSTOMER = {**FORM, "fiscal_code": "TSTXYZ00A00A000B"}
DATA = {
    "document_type": "identity_card",
    "document_code": "AA00000AA",
    "document_city": "Roma",
    "document_issue_date": "2022-05-17",
    "document_expiration_date": "2032-05-17",
    "marketing": "on",
}


def tagged(tag: str) -> dict[str, str]:
    return {**FORM, "email": f"anna+{tag}@example.com"}


def listen() -> socket.socket:
    """Listen on a free port, so that its address is known before the server starts."""
    return socket.create_server(("127.0.0.1", 0))


def address_of(sock: socket.socket) -> str:
    return f"http://127.0.0.1:{sock.getsockname()[1]}"


@asynccontextmanager
async def shopper(
    name: str, client: LoanClient, folder: Path, sock: socket.socket | None = None
) -> AsyncIterator[httpx.AsyncClient]:
    """Serve a shop with the server that docs/howto/web.md names; yield a browser with a new order."""
    shop = Shop(client, folder / "orders.db")
    make = import_module(f"shop_{name}").app
    async with browsing(make([], shop) if name == "aiohttp" else make(shop), sock) as browser:
        assert (await browser.get("/")).status_code == 200
        yield browser


@asynccontextmanager
async def browsing(app: Any, sock: socket.socket | None = None) -> AsyncIterator[httpx.AsyncClient]:
    """Serve an application; yield an HTTP client for it."""
    with sock or listen() as listening:
        serve = _aiohttp if isinstance(app, web.Application) else _uvicorn
        async with (
            serve(app, listening),
            httpx.AsyncClient(base_url=address_of(listening), timeout=60) as browser,
        ):
            yield browser


@asynccontextmanager
async def _aiohttp(app: web.Application, sock: socket.socket) -> AsyncIterator[None]:
    runner = web.AppRunner(app)
    await runner.setup()
    await web.SockSite(runner, sock).start()
    try:
        yield
    finally:
        await runner.cleanup()


@asynccontextmanager
async def _uvicorn(app: Any, sock: socket.socket) -> AsyncIterator[None]:
    server = uvicorn.Server(uvicorn.Config(app, lifespan="on", log_config=None))
    running = asyncio.create_task(server.serve([sock]))
    try:
        yield
    finally:
        server.should_exit = True
        await running


@contextmanager
def started(
    *command: str, sandbox: Sandbox, cwd: Path, **settings: str
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a module of Python that serves a shop; yield its process, with a pipe, and its address."""
    # No coverage in the subprocess: it would not be written after a kill, and would print warnings.
    env = {name: os.environ[name] for name in os.environ if not name.startswith(("COV", "PYTHONSAFE"))}
    env |= {**credentials(sandbox), "PYTHONUNBUFFERED": "1", **settings}
    with subprocess.Popen(
        [sys.executable, "-X", "dev", "-m", *command],
        cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8",
    ) as running:  # fmt: skip
        assert running.stdout is not None
        try:
            lines = iter(running.stdout.readline, "")
            [address] = next(
                filter(None, (re.findall(r"unning on (http://[0-9.:]+)", line) for line in lines))
            )
            yield running, address
        finally:
            running.terminate()
            running.stdout.read()
