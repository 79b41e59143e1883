"""The endpoints of spec §4 over HTTP: credentials, request bodies, responses and faults."""

import asyncio
import contextlib
import hmac
import json
import math
import re
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from attrs import evolve, frozen

from loanasync.sandbox.engine import Call, Engine, Treated
from loanasync.sandbox.outcomes import DENIED, FAULTS, Answer
from loanasync.sandbox.responder import UNREADABLE
from loanasync.sandbox.safety import HINT, looks_real

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

LARGEST_BODY = 16 << 20  # bytes; documents are images
_LARGEST_OTHER_BODY = 64 << 10  # a request has about a thousand
_DEEPEST = 64  # objects and arrays in each other

_LINGER_NOT = struct.pack("ii", 1, 0)  # closing sends a reset
_PIECES = 20
_BETWEEN_PIECES = 0.05  # seconds
_LOOK_EVERY = 0.05  # seconds
_WRITER = json.JSONEncoder(check_circular=False)  # what came as JSON holds no circles

_REQUESTS = "/api/shops/{shopId}/requests"
_REQUEST = _REQUESTS + "/{fiscalCode}"

# spec §4
ROUTES = {
    "create_request": ("POST", _REQUESTS),
    "approve": ("POST", _REQUEST),
    "upload_documents": ("POST", _REQUEST + "/documents"),
    "complete": ("PATCH", _REQUEST),
}


@frozen
class Service:
    """One shop's service over an engine.

    Args:
        engine: What answers.
        shop_id: The one shop that it knows.
        auth_token: That shop's token.
        ending: Set when the sandbox stops, so that nobody hangs on.
    """

    _engine: Engine
    _shop_id: str
    _auth_token: str
    _ending: asyncio.Event

    def add_routes(self, app: web.Application) -> None:
        """The four calls of the specification."""
        # The approval first: the router looks at them in this order, and it is asked for most.
        for operation in sorted(ROUTES, key="approve".__ne__):
            method, path = ROUTES[operation]
            app.router.add_route(method, path, self._endpoint(operation, method, path))
        app.router.add_route("*", "/api{rest:(/.*)?}", self._unknown_path)

    def _endpoint(self, operation: str, method: str, route: str) -> Handler:
        async def handler(request: web.Request) -> web.StreamResponse:
            started = time.perf_counter()
            call = Call(
                operation,
                request.match_info.get("fiscalCode", ""),
                None,
                method,
                route,
                address_of(request),
            )
            refused = await self._refused(request, call)
            self._read_url(request, call)
            treated = Treated(refused) if refused is not None else await self._treated(request, call)
            self._engine.record(call, treated, started)
            return await self._deliver(request, treated, drip=call.outcome.drip)

        return handler

    def _read_url(self, request: web.Request, call: Call) -> None:
        sent = request.raw_path
        if "?" in sent or "%" in sent or self._auth_token in sent:
            query, knows = str(request.rel_url.raw_query_string), self._engine.customers.knows
            found = self._engine.linter.of_url(
                request.path, query, lambda code: code == call.code or knows(code)
            )
            call.findings += tuple(found)

    async def _refused(self, request: web.Request, call: Call) -> Answer | None:
        if hint := self._unknown(request):
            if hint == HINT:
                call.findings += ("production-token",)
            return evolve(DENIED, headers={"X-Sandbox-Hint": hint})
        try:
            raw = await request.read()
        except web.HTTPRequestEntityTooLarge:
            raw = None
        except web.RequestPayloadError:  # compressed, and broken
            raw = b""
        if raw is None or (len(raw) > _LARGEST_OTHER_BODY and call.operation != "upload_documents"):
            return Answer(413, {"errors": {"body": ["This value is too long."]}})  # assumed
        try:
            body = _READER.decode(raw.decode())  # JSON is UTF-8: nobody looks for another encoding
        except (ValueError, RecursionError):
            body = None
        if raw.count(b"[") + raw.count(b"{") > _DEEPEST and _is_deeper(body, _DEEPEST):
            body = None  # what was read could not be written again
        if not isinstance(body, dict):
            return UNREADABLE
        call.body = body
        code = body.get("fiscalCode")
        if call.operation == "create_request" and isinstance(code, str) and code.isprintable():
            call.code = code  # no half of a surrogate pair, which no file and no page can hold
        return None

    def _unknown(self, request: web.Request) -> str:
        """What is wrong with the credentials (spec §5), which the body of a 403 does not say."""
        token = request.headers.get("X-Auth-Token", "")
        if not hmac.compare_digest(token.encode(errors="surrogateescape"), self._auth_token.encode()):
            if looks_real(token):
                return HINT
            return "X-Auth-Token is another shop's" if token else "X-Auth-Token is missing"
        shop = request.match_info["shopId"]
        return "" if shop == self._shop_id else "the shop in the path is another than the token's"

    async def _treated(self, request: web.Request, call: Call) -> Treated:
        unreadable = self._engine.plan(call)
        if unreadable is not None:
            return Treated(unreadable)
        if call.outcome.wait_before:
            await self._pause(request, call.outcome.wait_before / 1000)
        treated = self._engine.treat(call)
        if call.outcome.wait_after:
            await self._pause(request, call.outcome.wait_after / 1000)
        if _has_gone(request):
            self._engine.nobody_listens(call)
        return treated

    async def _deliver(self, request: web.Request, treated: Treated, *, drip: bool) -> web.StreamResponse:
        """Send the response, or what a fault leaves of it."""
        answer, fault = treated.answer, FAULTS.get(treated.fault)
        if fault is not None and fault.silent:
            return await self._silence(request, treated.fault)
        if fault is not None and fault.body is not None:
            headers = {"Content-Type": fault.content_type}
            return web.Response(body=fault.body, status=fault.status or answer.status, headers=headers)
        if treated.fault == "trunc":
            return await _truncated(request, answer)
        if drip:
            return await self._dripping(request, answer)
        return _json_response(answer)

    async def _pause(self, request: web.Request, seconds: float) -> None:
        """Wait so long, or until the shop has gone, or the sandbox ends."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        # aiohttp has no event for a shop that goes while its call is handled, so look now and then.
        while not _has_gone(request):
            rest = until - loop.time()
            if rest <= 0:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(rest, _LOOK_EVERY)):
                    await self._ending.wait()
                    return

    async def _silence(self, request: web.Request, fault: str) -> web.Response:
        if fault == "hang":
            await self._pause(request, math.inf)
        if request.transport is not None:
            connection: Any = request.transport.get_extra_info("socket")
            if fault == "reset":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
            request.transport.abort()
        return web.Response()  # nobody is there to read it

    async def _dripping(self, request: web.Request, answer: Answer) -> web.StreamResponse:
        body = _written(answer.body)
        response = await _started(request, answer, len(body))
        size = max(1, -(-len(body) // _PIECES))
        for start in range(0, len(body), size):
            if _has_gone(request):
                break
            await response.write(body[start : start + size])
            await self._pause(request, _BETWEEN_PIECES)
        return response

    async def _unknown_path(self, request: web.Request) -> web.StreamResponse:
        """Note calls to addresses that the specification does not have: they are mistakes of the shop's."""
        call = Call("", "", None, request.method, "(unknown)", "")
        self._read_url(request, call)
        allowed = ",".join(sorted(method for method, path in _PATHS if path.fullmatch(request.path)))
        headers = {"Allow": allowed} if allowed else None
        answer = Answer(405 if allowed else 404, {"errors": {"path": [_KNOWN_PATHS]}}, headers=headers)
        self._engine.record(call, Treated(answer), time.perf_counter())
        return _json_response(answer)


_PATHS = [(method, re.compile(re.sub(r"\{\w+\}", "[^/]+", path))) for method, path in ROUTES.values()]
_KNOWN_PATHS = "Known are: " + ", ".join(f"{method} {path}" for method, path in ROUTES.values())


def address_of(request: web.Request) -> str:
    """The sandbox's own address, as this shop calls it."""
    return f"{request.scheme}://{request.host}"


def _is_deeper(value: object, left: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return left == 0 or any(_is_deeper(each, left - 1) for each in inner)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("JSON has no such number")
    return number


# `json.loads` would make one for each call.
_READER = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)


def _json_response(answer: Answer) -> web.Response:
    content_type = None if answer.body is None else "application/json"
    body = None if answer.body is None else _written(answer.body)
    return web.Response(body=body, status=answer.status, headers=answer.headers, content_type=content_type)


def _written(body: object) -> bytes:
    return b"" if body is None else _WRITER.encode(body).encode()


def _has_gone(request: web.Request) -> bool:
    """Return whether the client closed its connection."""
    return request.transport is None or request.transport.is_closing()


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
