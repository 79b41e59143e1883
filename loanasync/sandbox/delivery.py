"""Putting an answer on the wire, or what a fault leaves of it."""

import asyncio
import contextlib
import json
import math
import socket
import struct
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from loanasync.sandbox.engine import Treated
from loanasync.sandbox.outcomes import Answer

_LINGER_NOT = struct.pack("ii", 1, 0)  # closing sends a reset
_PIECES = 20
_BETWEEN_PIECES = 0.05  # seconds
_WRITER = json.JSONEncoder(check_circular=False)  # what came as JSON holds no circles
_LOOK_EVERY = 0.05  # seconds
_GARBAGE = b'{"approved": \x00\xff tr'
_HTML = "<html><head><title>502 Bad Gateway</title></head><body><h1>502 Bad Gateway</h1></body></html>"


def json_response(body: object, status: int, headers: Mapping[str, str] | None = None) -> web.Response:
    """A JSON value as an answer; None is no body at all."""
    if body is None:
        return web.Response(status=status, headers=headers)
    return web.Response(body=_written(body), status=status, headers=headers, content_type="application/json")


def _written(body: object) -> bytes:
    return b"" if body is None else _WRITER.encode(body).encode()


async def deliver(
    request: web.Request, treated: Treated, ending: asyncio.Event, *, drip: bool
) -> web.StreamResponse:
    """Answer as treated; `ending` lets go of whoever hangs."""
    answer = treated.answer
    match treated.fault:
        case "hang" | "reset":
            return await _silence(request, treated.fault, ending)
        case "html502":
            return web.Response(text=_HTML, status=502, content_type="text/html")
        case "empty" | "garbage":
            left = _GARBAGE if treated.fault == "garbage" else b""
            return web.Response(body=left, status=answer.status, content_type="application/json")
        case "trunc":
            return await _truncated(request, answer)
    if drip:
        return await _dripping(request, answer, ending)
    return json_response(answer.body, answer.status, answer.headers)


def has_gone(request: web.Request) -> bool:
    """Whether nobody is there to be answered any more."""
    return request.transport is None or request.transport.is_closing()


async def pause(request: web.Request, seconds: float, ending: asyncio.Event) -> None:
    """Wait so long, or until the shop has gone, or the sandbox ends."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    # aiohttp has no event for a shop that goes while its call is handled, so look now and then.
    while not has_gone(request):
        rest = until - loop.time()
        if rest <= 0:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(rest, _LOOK_EVERY)):
                await ending.wait()
                return


async def _silence(request: web.Request, fault: str, ending: asyncio.Event) -> web.Response:
    if fault == "hang":
        await pause(request, math.inf, ending)
    if request.transport is not None:
        connection: Any = request.transport.get_extra_info("socket")
        if fault == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
        request.transport.abort()
    return web.Response()  # nobody is there to read it


async def _started(request: web.Request, answer: Answer, length: int) -> web.StreamResponse:
    response = web.StreamResponse(status=answer.status, headers=answer.headers)
    response.content_type = "application/json"
    response.content_length = length
    await response.prepare(request)
    return response


async def _truncated(request: web.Request, answer: Answer) -> web.StreamResponse:
    body = _written(answer.body)
    response = await _started(request, answer, len(body))
    await response.write(body[: len(body) // 2])
    if request.transport is not None:
        request.transport.close()  # sends what was written, and then the end
    return response


async def _dripping(request: web.Request, answer: Answer, ending: asyncio.Event) -> web.StreamResponse:
    body = _written(answer.body)
    response = await _started(request, answer, len(body))
    size = max(1, -(-len(body) // _PIECES))
    for start in range(0, len(body), size):
        if has_gone(request):
            break
        await response.write(body[start : start + size])
        await pause(request, _BETWEEN_PIECES, ending)
    return response
