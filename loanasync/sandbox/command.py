"""Serving until somebody ends it: what both commands do."""

import asyncio
import contextlib
import signal
import webbrowser

from loanasync.sandbox.server import Sandbox


async def serve(sandbox: Sandbox, *, open_page: bool = False) -> None:
    """Run a sandbox until Ctrl-C or SIGTERM, and say where it is.

    Args:
        sandbox: Not started yet.
        open_page: Show the inspector in the browser.

    Raises:
        OSError: The port is taken.
        ValueError: The state file cannot be used.
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
            f"  inspector    {sandbox.base_url}/_sandbox/\n"
            "stop it with Ctrl-C",
            flush=True,
        )
        if open_page:
            await asyncio.to_thread(webbrowser.open, f"{sandbox.base_url}/_sandbox/")
        await ended.wait()
