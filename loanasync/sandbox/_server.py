"""Starting and stopping the sandbox: in the running loop, on this machine only."""

import asyncio
import contextlib
import signal
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Literal, Self

from aiohttp import web

from loanasync.sandbox._service import Service
from loanasync.sandbox._state import Entry

__all__ = ["Sandbox", "serve"]

Description = Literal["street_number", "civic_number"]


class Sandbox:
    """The service on a port of this machine, with its state in memory.

    Args:
        host: A loopback address.
        port: 0 takes a free one.
        shop_id: The one shop that it knows.
        auth_token: That shop's token.
        dialect: Speak one description only; None accepts both.

    Raises:
        ValueError: The host is not this machine's own, or the dialect is unknown.

    Example:
        >>> async def example() -> str:
        ...     async with Sandbox() as sandbox:
        ...         return sandbox.base_url
        >>> run(example()).startswith("http://127.0.0.1:")
        True
    """

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        shop_id: str = "sandbox-shop",
        auth_token: str = "sandbox-token",  # noqa: S107  (made up, and valid nowhere else)
        dialect: Description | None = None,
    ) -> None:
        if not _is_loopback(host):
            raise ValueError(
                f"host {host} is not loopback: the sandbox has no protection and serves this machine only"
            )
        if dialect not in (None, "street_number", "civic_number"):
            raise ValueError(f"dialect {dialect!r} is unknown: street_number, civic_number or None")
        self.shop_id = shop_id
        self.auth_token = auth_token
        self._host = host
        self._port = port
        self._service = Service(shop_id, auth_token, dialect)
        self._runner: web.AppRunner | None = None
        self._address = ""

    @property
    def base_url(self) -> str:
        """Where it listens, such as ``http://127.0.0.1:8080``.

        Raises:
            RuntimeError: It is not started.
        """
        if not self._address:
            raise RuntimeError("the sandbox has an address once it is started: use `async with Sandbox()`")
        return self._address

    @property
    def journal(self) -> Sequence[Entry]:
        """The last thousand calls, oldest first; nothing personal is in them."""
        return self._service.memory.journal

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: The port is taken.
            RuntimeError: It listens already.
        """
        if self._runner is not None:
            raise RuntimeError(f"the sandbox listens already, at {self._address}")
        self._runner = web.AppRunner(self._service.application(), access_log=None, shutdown_timeout=1)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._host, self._port).start()
        except OSError:
            await self.stop()
            raise
        host, port = self._runner.addresses[0][:2]
        self._address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def stop(self) -> None:
        """Listen no more; what was remembered is kept for as long as the object lives."""
        runner, self._runner = self._runner, None
        self._address = ""
        if runner is not None:
            await runner.cleanup()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:  # a name
        return host == "localhost"


async def serve(sandbox: Sandbox) -> None:
    """Run a sandbox until Ctrl-C or SIGTERM, and say where it is.

    Raises:
        OSError: The port is taken.
    """
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError):  # Windows: Ctrl-C raises KeyboardInterrupt there
            loop.add_signal_handler(number, ended.set)
    async with sandbox:
        print(  # noqa: T201  (what a command is for)
            f"sandbox ready at {sandbox.base_url}\n"
            f"  shop id      {sandbox.shop_id}\n"
            f"  X-Auth-Token {sandbox.auth_token}\n"
            "stop it with Ctrl-C",
            flush=True,
        )
        await ended.wait()
