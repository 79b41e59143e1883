"""The endpoints of spec §4 over HTTP: credentials first, then the JSON object, then the answer."""

import asyncio
import hmac
import json
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from aiohttp import web

from loanasync.sandbox import _answers as answers
from loanasync.sandbox._delivery import deliver, json_response, pause
from loanasync.sandbox._engine import Call, Engine, Treated
from loanasync.sandbox._safety import HINT, looks_real
from loanasync.sandbox.outcomes import Answer

__all__ = ["LARGEST_BODY", "ROUTES", "Service"]

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

LARGEST_BODY = 16 << 20  # bytes; documents are images
_LARGEST_OTHER_BODY = 1 << 20

_REQUESTS = "/api/shops/{shopId}/requests"
_REQUEST = _REQUESTS + "/{fiscalCode}"

# spec §4
ROUTES = {
    "create_request": ("POST", _REQUESTS),
    "approve": ("POST", _REQUEST),
    "upload_documents": ("POST", _REQUEST + "/documents"),
    "complete": ("PATCH", _REQUEST),
}


class Service:
    """One shop's service over an engine.

    Args:
        engine: What answers.
        shop_id: The one shop that it knows.
        auth_token: That shop's token.
        ending: Set when the sandbox stops, so that nobody hangs on.
    """

    def __init__(self, engine: Engine, shop_id: str, auth_token: str, ending: asyncio.Event) -> None:
        self._engine = engine
        self._shop_id = shop_id
        self._auth_token = auth_token
        self._ending = ending

    def add_routes(self, app: web.Application) -> None:
        """The four calls of the specification."""
        for operation, (method, path) in ROUTES.items():
            app.router.add_route(method, path, self._endpoint(operation, method, path))
        app.middlewares.append(self._other)

    def _endpoint(self, operation: str, method: str, route: str) -> Handler:
        async def handler(request: web.Request) -> web.StreamResponse:
            started = time.perf_counter()
            call = Call(
                operation,
                request.match_info.get("fiscalCode", ""),
                None,
                method,
                route,
                f"{request.scheme}://{request.host}",
            )
            self._read_url(request, call)
            refused = await self._refused(request, call)
            treated = Treated(refused) if refused is not None else await self._treated(request, call)
            self._engine.record(call, treated, started)
            return await deliver(request, treated, self._ending, drip=call.outcome.drip)

        return handler

    def _read_url(self, request: web.Request, call: Call) -> None:
        if request.query_string or self._auth_token in request.path:
            call.findings += tuple(
                self._engine.linter.of_url(request.path, str(request.rel_url.raw_query_string))
            )

    async def _refused(self, request: web.Request, call: Call) -> Answer | None:
        token = request.headers.get("X-Auth-Token", "")  # spec §5
        known = hmac.compare_digest(token.encode(errors="surrogateescape"), self._auth_token.encode())
        if not known or request.match_info["shopId"] != self._shop_id:
            if not known and looks_real(token):
                call.findings += ("production-token",)
                return Answer(403, answers.denied().body, headers={"X-Sandbox-Hint": HINT})
            return answers.denied()
        try:
            raw = await request.read()
        except web.HTTPRequestEntityTooLarge:
            raw = None
        if raw is None or (len(raw) > _LARGEST_OTHER_BODY and call.operation != "upload_documents"):
            return Answer(413, {"errors": {"body": ["This value is too long."]}})  # assumed
        try:
            body = _READER.decode(raw.decode())  # JSON is UTF-8: nobody looks for another encoding
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict):
            # spec §4: all bodies are JSON objects; what is answered to others is not shown, so assumed.
            return answers.rejected({"body": ["This value should be a JSON object."]})
        call.body = body
        code = body.get("fiscalCode")
        if call.operation == "create_request" and isinstance(code, str) and code.isprintable():
            call.code = code  # no half of a surrogate pair, which no file and no page can hold
        return None

    async def _treated(self, request: web.Request, call: Call) -> Treated:
        unreadable = self._engine.plan(call)
        if unreadable is not None:
            return Treated(unreadable)
        if call.outcome.wait_before:
            await pause(request, call.outcome.wait_before / 1000, self._ending)
        treated = self._engine.treat(call)
        if call.outcome.wait_after:
            await pause(request, call.outcome.wait_after / 1000, self._ending)
        return treated

    @web.middleware
    async def _other(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Note calls to addresses that the specification does not have: they are mistakes of the shop's."""
        try:
            return await handler(request)
        except (web.HTTPNotFound, web.HTTPMethodNotAllowed) as missing:
            if not request.path.startswith("/api"):
                raise
            call = Call("", "", None, request.method, "(unknown)", "")
            self._read_url(request, call)
            answer = Answer(missing.status, {"errors": {"path": [_KNOWN_PATHS]}})
            self._engine.record(call, Treated(answer), time.perf_counter())
            allowed: Mapping[str, Any] = {
                name: value for name, value in missing.headers.items() if name == "Allow"
            }
            return json_response(answer.body, missing.status, allowed)


_KNOWN_PATHS = "Known are: " + ", ".join(f"{method} {path}" for method, path in ROUTES.values())


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("JSON has no such number")
    return number


# `json.loads` would make one for each call.
_READER = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)
