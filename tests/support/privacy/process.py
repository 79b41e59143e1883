"""A process of its own, to see what it writes to disk, and what its last words are."""

import asyncio
import gc
import json
import logging
import os
import socket
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from loanasync import ApprovalRequest, LoanClient, LoanError, RetryPolicy, UserData
from loanasync.sandbox import Sandbox
from support.privacy.plants import CODE, LIMITS, PAYLOAD, TOKEN, planted

__all__ = ["main"]

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.truncate", "os.link", "os.symlink", "sqlite3.connect")


def watch_disk() -> list[str]:
    """Note from now on whatever is written to, made or moved."""
    noted: list[str] = []

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = arguments
            writes = bool(set(mode or "") & set("wax+")) or bool(flags & _WRITES)
            if writes and not isinstance(path, int):  # a number is a file that is open already
                noted.append(f"{path}")
        elif event in _CHANGES:
            noted.append(f"{event} {arguments}")

    sys.addaudithook(note)
    return noted


def request(tag: str) -> ApprovalRequest:
    made: ApprovalRequest = planted(
        ApprovalRequest,
        email=f"zzqemailaddress+{tag}@example.com",
        extra={},
        province="RM",
        postal_code="00100",
    )
    return made


async def calls(file: str) -> None:
    """Good and bad calls against a sandbox; the journal is written where somebody asks for it."""
    async with Sandbox(auth_token=TOKEN) as sandbox, sandbox.client(retry=RetryPolicy(base=0.001)) as client:
        for tag in ("approved", "refused", "500x9", "conflict", "nouser", "reset", "truncated", "html502"):
            sandbox.reset()
            for call in (
                lambda: client.create_request(PAYLOAD),
                lambda tag=tag: client.approve(CODE, request(tag)),
                lambda: client.upload_documents(CODE, PAYLOAD),
                lambda: client.complete(CODE, planted(UserData)),
            ):
                await quietly(call())
        await quietly(client.with_options(shop_id="other", auth_token=TOKEN).create_request(PAYLOAD))
        for page in ("/_sandbox/", "/_sandbox/journal.jsonl"):
            reader, writer = await asyncio.open_connection(*sandbox.base_url[7:].split(":"))
            writer.write(f"GET {page} HTTP/1.0\r\nHost: {sandbox.base_url[7:]}\r\n\r\n".encode())
            assert (await reader.read()).startswith(b"HTTP/1.0 200")
            writer.close()
        if file:
            sandbox.journal.write_jsonl(file)


async def quietly(call: Coroutine[Any, Any, object]) -> None:
    """Make a call, whatever comes of it."""
    try:
        await call
    except LoanError as error:
        logging.getLogger("shop").info("failed: %s", error, exc_info=True)


def disk(file: str) -> None:
    """Tell what was written."""
    noted = watch_disk()
    asyncio.run(calls(file))
    print(json.dumps(noted))  # noqa: T201  (for the test that reads it)


def forget(_: str) -> None:
    """Forget clients in every way there is, with all that Python says of it."""
    logging.basicConfig(level=logging.DEBUG)
    asyncio.run(calls(""))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0)
        by_hand(listening)
    gc.collect()
    asyncio.run(left_open())
    gc.collect()


def by_hand(listening: socket.socket) -> None:
    """Close a loop with a call under way in it."""
    loop = asyncio.new_event_loop()
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    client = LoanClient(url, shop_id="s", auth_token=TOKEN, limits=LIMITS)
    loop.create_task(client.approve(CODE, planted(ApprovalRequest)))  # noqa: RUF006  (as said)
    accepted, _ = loop.run_until_complete(loop.sock_accept(listening))
    loop.run_until_complete(loop.sock_recv(accepted, 10))
    accepted.close()
    loop.close()


async def left_open() -> None:
    """Drop a client that holds a connection."""
    async with Sandbox(auth_token=TOKEN) as sandbox:
        await quietly(sandbox.client().create_request(PAYLOAD))


def main() -> None:
    """Play what is asked for: ``disk`` or ``forget``, and a file to write to."""
    scenes: dict[str, Callable[[str], None]] = {"disk": disk, "forget": forget}
    scenes[sys.argv[1]](str(Path(sys.argv[2])) if len(sys.argv) > 2 else "")


if __name__ == "__main__":
    main()
