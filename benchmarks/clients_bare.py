"""The lower bound: an asyncio protocol for this one call, without anything else."""

import json

from load import Connection, connect
from order import TOKEN, AsyncIterator, Call, Result, Scenario, asynccontextmanager

__all__ = ["bare"]


@asynccontextmanager
async def bare(scenario: Scenario) -> AsyncIterator[Call]:
    """Write bytes to a kept connection, and parse status and JSON; no timeouts, no TLS, no errors."""
    head = (
        f"HTTP/1.1\r\nHost: {scenario.base_url.removeprefix('http://')}\r\nX-Auth-Token: {TOKEN}\r\n"
        "Content-Type: application/json\r\nContent-Length:"
    )
    idle: list[Connection] = []

    async def call() -> Result:
        connection = idle.pop() if idle else await connect(scenario.base_url)
        body = json.dumps(scenario.order.members)
        request = f"POST {scenario.path()} {head} {len(body)}\r\n\r\n{body}"
        status, response = await connection.send(request.encode())
        idle.append(connection)
        return status, json.loads(response)["approved"]

    yield call
    for connection in idle:
        connection.close()
