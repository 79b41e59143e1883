"""HTTP endpoints of spec §4: credentials, request bodies, responses and faults."""

import asyncio
import contextlib
import hmac
import json
import math
import socket
import struct
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from aiohttp import web
from attrs import evolve, field, frozen
from yarl import URL

from loanasync.sandbox.engine import Call, Delivery, Engine
from loanasync.sandbox.outcomes import ERRORS, FAULTS, Response
from loanasync.sandbox.safety import HINT, looks_like_production

MAX_BODY = 16 << 20  # bytes; documents are images
_MAX_SMALL_BODY = 64 << 10  # bytes; an approval has about a thousand
_MAX_BRACKETS = 256  # objects and arrays in a body
# Assumed: spec §4 says that all bodies are JSON objects. It does not show the response to other bodies.
_UNREADABLE = Response(400, {"errors": {"body": ["This value should be a JSON object."]}})

_NO_LINGER = struct.pack("ii", 1, 0)  # makes the socket send a reset when it is closed
_POLL_INTERVAL = 0.05  # seconds
_WRITER = json.JSONEncoder(check_circular=False)  # parsed JSON has no cycles

_REQUESTS = "/api/shops/{shopId}/requests"
_REQUEST = _REQUESTS + "/{fiscalCode}"

# spec §4
ROUTES = {
    "create_request": ("POST", _REQUESTS),
    "approve": ("POST", _REQUEST),
    "upload_documents": ("POST", _REQUEST + "/documents"),
    "complete": ("PATCH", _REQUEST),
}
_KNOWN_PATHS = f"unknown path or method; the service has: {', '.join(map(' '.join, ROUTES.values()))}"


@frozen
class Service:
    """The service of one shop over HTTP.

    Args:
        engine: Processes the calls.
        shop_id: Identifier of the shop.
        auth_token: Token of the shop.
        stopping: Set when the sandbox stops, to end all waiting requests.
        is_own_host: Returns whether a host name belongs to the sandbox.
    """

    _engine: Engine
    _shop_id: str
    _auth_token: str = field(repr=False)
    _stopping: asyncio.Event
    _is_own_host: Callable[[str], bool]

    def add_routes(self, app: web.Application) -> None:
        """Add the four calls of the specification."""
        # The approval is the most frequent call, and the router tries the routes in this order.
        for operation in sorted(ROUTES, key="approve".__ne__):
            app.router.add_route(*ROUTES[operation], partial(self._handle, operation))
        app.router.add_route("*", "/api{rest:(/.*)?}", self._respond_unknown_path)

    async def _handle(self, operation: str, request: web.Request) -> web.StreamResponse:
        started, code = time.perf_counter(), request.match_info.get("fiscalCode", "")
        method, route = ROUTES[operation]
        call = Call(operation, code, body=None, method=method, route=route, base_url=base_url_of(request))
        rejection = await self._read_request(request, call)
        self._lint_url(request, call)
        delivery = Delivery(rejection) if rejection is not None else await self._process(request, call)
        self._engine.record(call, delivery, started)
        return await self._deliver(request, delivery)

    def _lint_url(self, request: web.Request, call: Call) -> None:
        sent = request.raw_path
        if "?" in sent or "%" in sent or self._auth_token in sent:
            query, known = str(request.rel_url.raw_query_string), {call.code, *self._engine.customers.codes()}
            call.findings += tuple(self._engine.linter.check_url(request.path, query, known))

    async def _read_request(self, request: web.Request, call: Call) -> Response | None:
        """Check the credentials and read the body into `call`; return an error response if that fails."""
        if hint := self._credentials_error(request):
            if hint == HINT:
                call.findings += ("production-token",)
            return evolve(ERRORS["forbidden"], headers={"X-Sandbox-Hint": hint})
        try:
            raw = await request.read()
        except web.HTTPRequestEntityTooLarge:
            raw = None
        except web.RequestPayloadError:  # compressed data that is broken
            raw = b""
        if raw is None or (len(raw) > _MAX_SMALL_BODY and call.operation != "upload_documents"):
            return Response(413, {"errors": {"body": ["This value is too long."]}})  # assumed
        try:
            body = _READER.decode(raw.decode())  # JSON is always UTF-8
        except (ValueError, RecursionError):
            body = None
        if call.operation != "upload_documents" and raw.count(b"[") + raw.count(b"{") > _MAX_BRACKETS:
            body = None  # the encoder cannot write values that are nested a thousand times
        if not isinstance(body, dict):
            return _UNREADABLE
        call.body = body
        code = body.get("fiscalCode")
        if call.operation == "create_request" and isinstance(code, str) and code.isprintable():
            call.code = code  # printable, so without unpaired surrogates, which cannot be encoded
        return None

    def _credentials_error(self, request: web.Request) -> str:
        """Return the hint about wrong credentials (spec §5) for a header of the 403, or an empty string."""
        origin = request.headers.get("Origin")  # of a browser, whose page may have this host by DNS rebinding
        if origin is not None and not self._is_own_host(host_of(origin)):
            return "a page of another site cannot call the sandbox"
        token = request.headers.get("X-Auth-Token", "")
        if not hmac.compare_digest(token.encode(errors="surrogateescape"), self._auth_token.encode()):
            if looks_like_production(token):
                return HINT
            return "X-Auth-Token belongs to another shop" if token else "X-Auth-Token is missing"
        shop = request.match_info["shopId"]
        return "" if shop == self._shop_id else "the shop in the path does not match X-Auth-Token"

    async def _process(self, request: web.Request, call: Call) -> Delivery:
        if rejected := self._engine.plan(call):
            return rejected
        if call.outcome.wait_before:
            await self._pause(request, call.outcome.wait_before / 1000)
        delivery = self._engine.process(call)
        if call.outcome.wait_after:
            await self._pause(request, call.outcome.wait_after / 1000)
        if _is_disconnected(request):
            self._engine.client_disconnected(call)
        return delivery

    async def _deliver(self, request: web.Request, delivery: Delivery) -> web.StreamResponse:
        """Send the response, after applying the fault."""
        response, fault = delivery.response, FAULTS.get(delivery.fault)
        if fault is not None and fault.silent:
            return await self._drop_connection(request, delivery.fault)
        if fault is not None and fault.body is not None:
            headers = {"Content-Type": fault.content_type}
            return web.Response(body=fault.body, status=fault.status or response.status, headers=headers)
        if delivery.fault == "trunc":
            return await self._send_half(request, response)
        return _json_response(response)

    async def _pause(self, request: web.Request, seconds: float) -> None:
        """Wait, but at most until the client disconnects or the sandbox stops."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        # aiohttp does not signal a disconnect while a request is being handled, so poll for it.
        while not _is_disconnected(request):
            remaining = until - loop.time()
            if remaining <= 0:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(remaining, _POLL_INTERVAL)):
                    await self._stopping.wait()
                    return

    async def _drop_connection(self, request: web.Request, fault: str) -> web.Response:
        if fault == "hang":
            await self._pause(request, math.inf)
        if request.transport is not None:
            connection: Any = request.transport.get_extra_info("socket")
            if fault == "reset":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
            request.transport.abort()
        return web.Response()  # aiohttp needs a response; the connection is closed

    async def _send_half(self, request: web.Request, response: Response) -> web.StreamResponse:
        body = _WRITER.encode(response.body).encode()
        stream = web.StreamResponse(status=response.status, headers=response.headers)
        stream.content_type = "application/json"
        stream.content_length = len(body)
        await stream.prepare(request)
        await stream.write(body[: len(body) // 2])
        if request.transport is not None:
            request.transport.close()  # after sending what was written
        return stream

    async def _respond_unknown_path(self, request: web.Request) -> web.StreamResponse:
        """Record a call that the specification does not have, and respond with 404."""
        call = Call("", "", None, request.method, "(unknown)", "")
        self._lint_url(request, call)
        response = Response(404, {"errors": {"path": [_KNOWN_PATHS]}})
        self._engine.record(call, Delivery(response), time.perf_counter())
        return _json_response(response)


def base_url_of(request: web.Request) -> str:
    """Return the URL of the sandbox as used in this request."""
    return f"{request.scheme}://{request.host}"


def host_of(url: str) -> str:
    """Return the host of a URL, or an empty string."""
    with contextlib.suppress(ValueError):
        return URL(url).host or ""
    return ""


def _finite_number(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError("not a JSON number")
    return number


# Created once: `json.loads` with these arguments would create a decoder for each call.
_READER = json.JSONDecoder(parse_float=_finite_number, parse_constant=_finite_number)


def _json_response(response: Response) -> web.Response:
    body, kind = _WRITER.encode(response.body).encode(), "application/json"
    return web.Response(body=body, status=response.status, headers=response.headers, content_type=kind)


def _is_disconnected(request: web.Request) -> bool:
    """Return whether the client closed its connection."""
    return request.transport is None or request.transport.is_closing()
