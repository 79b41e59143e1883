"""The lower bound: an asyncio protocol for this one call, without anything else."""

import json

from load import Connection, connect
from order import CODE, ORDER, SHOP, TOKEN, AsyncIterator, Call, Result, asynccontextmanager

__all__ = ["bare"]


@asynccontextmanager
async def bare(base_url: str) -> AsyncIterator[Call]:
    """Write bytes to a kept connection, and parse status and JSON; no timeouts, no TLS, no errors."""
    host = base_url.removeprefix("http://")
    head = (
        f"POST /api/shops/{SHOP}/requests/{CODE} HTTP/1.1\r\nHost: {host}\r\nX-Auth-Token: {TOKEN}\r\n"
        "Content-Type: application/json\r\nContent-Length: "
    ).encode()
    idle: list[Connection] = []

    async def call() -> Result:
        connection = idle.pop() if idle else await connect(base_url)
        body = json.dumps(ORDER).encode()
        status, response = await connection.send(b"%b%d\r\n\r\n%b" % (head, len(body), body))
        idle.append(connection)
        return status, json.loads(response)["approved"]

    yield call
    for connection in idle:
        connection.close()
