"""The lower bound: a protocol of asyncio's written for this one call, with no more than it needs."""

import json

from load import Line, connect
from order import CODE, ORDER, SHOP, TOKEN, Answer, AsyncIterator, Call, asynccontextmanager

__all__ = ["bare"]


@asynccontextmanager
async def bare(base_url: str) -> AsyncIterator[Call]:
    """Bytes to a kept connection, and the answer's status and JSON; no time-out, no TLS, no errors."""
    host = base_url.removeprefix("http://")
    head = (
        f"POST /api/shops/{SHOP}/requests/{CODE} HTTP/1.1\r\nHost: {host}\r\nX-Auth-Token: {TOKEN}\r\n"
        "Content-Type: application/json\r\nContent-Length: "
    ).encode()
    idle: list[Line] = []

    async def call() -> Answer:
        line = idle.pop() if idle else await connect(base_url)
        body = json.dumps(ORDER).encode()
        status, answer = await line.ask(b"%b%d\r\n\r\n%b" % (head, len(body), body))
        idle.append(line)
        return status, json.loads(answer)["approved"]

    yield call
    for line in idle:
        line.close()
