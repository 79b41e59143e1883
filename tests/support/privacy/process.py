"""A separate process whose file writes and output at exit are checked."""

import asyncio
import gc
import json
import logging
import os
import socket
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from loanasync import ApprovalRequest, LoanClient, LoanError, RetryPolicy, UserData
from loanasync.sandbox import Sandbox
from support.privacy.plants import CODE, LIMITS, PAYLOAD, TOKEN, planted

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.truncate", "os.link", "os.symlink", "sqlite3.connect")


def watch_disk() -> list[str]:
    """Record all files that are written, created or moved from now on."""
    written: list[str] = []

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = arguments
            writes = bool(set(mode or "") & set("wax+")) or bool(flags & _WRITES)
            if writes and not isinstance(path, int):  # a number is an open file
                written.append(f"{path}")
        elif event in _CHANGES:
            written.append(f"{event} {arguments}")

    sys.addaudithook(note)
    return written


def request(tag: str) -> ApprovalRequest:
    made: ApprovalRequest = planted(
        ApprovalRequest,
        email=f"zzqemailaddress+{tag}@example.com",
        extra={},
        province="RM",
        postal_code="00100",
    )
    return made


async def flow(client: LoanClient, tag: str) -> None:
    """Make the calls of one loan request."""
    async with client:
        for call in (
            lambda: client.create_request(PAYLOAD),
            lambda: client.approve(CODE, request(tag)),
            lambda: client.upload_documents(CODE, PAYLOAD),
            lambda: client.complete(CODE, planted(UserData)),
        ):
            await call_and_log(call())


async def calls(file: Path) -> None:
    """Make successful and failing calls against a sandbox, and write the journal to a file."""
    async with Sandbox(auth_token=TOKEN) as sandbox:
        for tag in ("approved", "refused", "500x9", "conflict", "nouser", "reset", "truncated", "html502"):
            sandbox.reset()
            await flow(sandbox.client(retry=RetryPolicy(base=0.001)), tag)
        client = sandbox.client()
        await call_and_log(client.with_options(shop_id="other", auth_token=TOKEN).create_request(PAYLOAD))
        await client.aclose()
        for page in ("/_sandbox/", "/_sandbox/journal.jsonl"):
            reader, writer = await asyncio.open_connection(*sandbox.base_url[7:].split(":"))
            writer.write(f"GET {page} HTTP/1.0\r\nHost: {sandbox.base_url[7:]}\r\n\r\n".encode())
            assert (await reader.read()).startswith(b"HTTP/1.0 200")
            writer.close()
        await asyncio.to_thread(file.write_text, sandbox.journal.to_jsonl(), encoding="utf-8")


async def call_and_log(call: Coroutine[Any, Any, object]) -> None:
    """Make a call, and log its error."""
    try:
        await call
    except LoanError as error:
        logging.getLogger("shop").info("failed: %s", error, exc_info=True)


def main() -> None:
    """Make calls, leave clients unclosed in several ways, and print the files that were written."""
    logging.basicConfig(level=logging.DEBUG)
    written = watch_disk()
    asyncio.run(calls(Path(sys.argv[1])))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0)
        close_loop(listening)
    gc.collect()
    asyncio.run(left_open())
    gc.collect()
    print(json.dumps(written))  # noqa: T201  (for the test that reads it)


def close_loop(listening: socket.socket) -> None:
    """Close an event loop with a call in progress."""
    loop = asyncio.new_event_loop()
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    client = LoanClient(url, shop_id="s", auth_token=TOKEN, limits=LIMITS)
    loop.create_task(client.approve(CODE, planted(ApprovalRequest)))  # noqa: RUF006  (the task is dropped on purpose)
    accepted, _ = loop.run_until_complete(loop.sock_accept(listening))
    loop.run_until_complete(loop.sock_recv(accepted, 10))
    accepted.close()
    loop.close()


async def left_open() -> None:
    """Drop a client with an open connection."""
    async with Sandbox(auth_token=TOKEN) as sandbox:
        await call_and_log(sandbox.client().create_request(PAYLOAD))


if __name__ == "__main__":
    main()
