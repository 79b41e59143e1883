"""Pages for people: the customer's web application, the inspector, and what other programs may ask."""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from aiohttp import web

from loanasync.sandbox import _pages as pages
from loanasync.sandbox._engine import Engine
from loanasync.sandbox._openapi import document

__all__ = ["Web"]

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

# Nothing is loaded from elsewhere, and nobody frames it.
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'self'; connect-src 'self';"
        " form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class Web:
    """The pages over an engine.

    Args:
        engine: What they show.
        shop_id: The shop's name.
        shop_url: Where the web application leads back to; None: a page of the sandbox's own.
        ending: Set when the sandbox stops, so that no page hangs on.
    """

    def __init__(self, engine: Engine, shop_id: str, shop_url: str | None, ending: asyncio.Event) -> None:
        self._engine = engine
        self._shop_id = shop_id
        self._shop_url = shop_url or "/shop"
        self._ending = ending

    def add_routes(self, app: web.Application) -> None:
        """All pages."""
        app.router.add_get("/apply/{page}", self._application)
        app.router.add_post("/apply/{page}", self._own(self._decided))
        app.router.add_get("/shop", self._shop)
        app.router.add_get("/_sandbox/", self._inspector)
        app.router.add_get("/_sandbox/calls/{number}", self._call)
        app.router.add_get("/_sandbox/live.js", self._live)
        app.router.add_get("/_sandbox/events", self._events)
        app.router.add_get("/_sandbox/openapi.json", self._openapi)
        app.router.add_get("/_sandbox/journal.jsonl", self._journal)
        app.router.add_get("/_sandbox/findings.json", self._findings)
        app.router.add_post("/_sandbox/reset", self._own(self._reset))
        app.router.add_post("/_sandbox/faults", self._own(self._add_fault))
        app.router.add_post("/_sandbox/faults/clear", self._own(self._clear_faults))

    def _own(self, handler: Handler) -> Handler:
        """Only pages of the sandbox's own, and programs, may change something; no other site's form."""

        async def checked(request: web.Request) -> web.StreamResponse:
            origin = request.headers.get("Origin")
            if origin is not None and urlsplit(origin).netloc != request.host:
                raise web.HTTPForbidden(text="another site's page may not change the sandbox")
            return await handler(request)

        return checked

    async def _application(self, request: web.Request) -> web.StreamResponse:
        found = self._engine.customers.at_page(request.match_info["page"])
        if found is None:
            return _html(pages.missing(), 404)
        return _html(pages.application(*found, self._shop_id, self._shop_url, shown=_shown(request)))

    async def _decided(self, request: web.Request) -> web.StreamResponse:
        found = self._engine.customers.at_page(request.match_info["page"])
        if found is None or not found[1].approved:
            return _html(pages.missing(), 404)
        code, customer = found
        wanted = (await request.post()).get("action")
        if wanted not in ("accept", "cancel"):
            raise web.HTTPBadRequest(text="the action is accept or cancel")
        if customer.application == "open":  # what a person decided stays
            with self._engine.lock:
                customer.application = "accepted" if wanted == "accept" else "cancelled"
                self._engine.customers.save(code, customer)
            self._engine.changed()
        raise web.HTTPSeeOther(request.path)

    async def _shop(self, _: web.Request) -> web.StreamResponse:
        return _html(pages.shop(self._shop_id))

    async def _inspector(self, request: web.Request) -> web.StreamResponse:
        return _html(pages.inspector(self._engine, self._shop_id, "", shown=_shown(request)))

    async def _call(self, request: web.Request) -> web.StreamResponse:
        wanted = request.match_info["number"]
        entry = next((each for each in self._engine.journal if str(each.number) == wanted), None)
        if entry is None:
            return _html(pages.missing(), 404)
        base_url = f"{request.scheme}://{request.host}"
        return _html(pages.call(entry, base_url, self._shop_id, shown=_shown(request)))

    async def _live(self, _: web.Request) -> web.StreamResponse:
        return web.Response(text=pages.live(), content_type="text/javascript")

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """Server-sent events: one for each change, several at once as one."""
        response = web.StreamResponse(headers={"Cache-Control": "no-store"})
        response.content_type = "text/event-stream"
        await response.prepare(request)
        changed = asyncio.Event()
        loop = asyncio.get_running_loop()

        def tell() -> None:  # a test may reset the sandbox from its own thread
            loop.call_soon_threadsafe(changed.set)

        self._engine.watching.add(tell)
        ended = asyncio.ensure_future(self._ending.wait())
        try:
            await response.write(b"retry: 500\n\n")
            while not self._ending.is_set():
                happened = asyncio.ensure_future(changed.wait())
                await asyncio.wait({happened, ended}, return_when=asyncio.FIRST_COMPLETED, timeout=15)
                happened.cancel()
                # A comment now and then finds out who has gone.
                sent = f"data: {self._engine.journal.total}\n\n" if changed.is_set() else ": here\n\n"
                changed.clear()
                await response.write(sent.encode())
        except ConnectionError:
            pass
        finally:
            ended.cancel()
            self._engine.watching.discard(tell)
        return response

    async def _openapi(self, request: web.Request) -> web.StreamResponse:
        return web.json_response(document(f"{request.scheme}://{request.host}"))

    async def _journal(self, request: web.Request) -> web.StreamResponse:
        criteria: dict[str, str | int] = dict(request.query)
        with contextlib.suppress(KeyError):
            criteria["status"] = int(criteria["status"])
        try:
            text = self._engine.journal.to_jsonl(**criteria)
        except (TypeError, ValueError) as error:
            raise web.HTTPBadRequest(text=str(error)) from None
        return web.Response(text=text, content_type="application/jsonl")

    async def _findings(self, _: web.Request) -> web.StreamResponse:
        found = [
            {"rule": each.rule, "call": each.call, "sentence": each.sentence}
            for each in self._engine.linter.findings
        ]
        return web.Response(text=json.dumps(found), content_type="application/json")

    async def _reset(self, request: web.Request) -> web.StreamResponse:
        wanted = (await request.post()).get("customer")
        with self._engine.lock:
            if wanted is None:
                self._engine.reset()
            else:
                self._engine.customers.forget(self._code_of(wanted))
                self._engine.changed()
        raise web.HTTPSeeOther("/_sandbox/")

    def _code_of(self, handle: object) -> str:
        codes = (code for code, _ in self._engine.customers.items())
        return next((code for code in codes if pages.handle(code) == handle), "")

    async def _add_fault(self, request: web.Request) -> web.StreamResponse:
        text = str((await request.post()).get("rule", "")).strip()
        try:
            self._engine.rules.add_text(text)
        except ValueError as error:
            if "text/html" not in request.headers.get("Accept", ""):
                raise web.HTTPBadRequest(text=str(error)) from None
            return _html(pages.inspector(self._engine, self._shop_id, str(error), shown=False), 400)
        self._engine.changed()
        raise web.HTTPSeeOther("/_sandbox/")

    async def _clear_faults(self, _: web.Request) -> web.StreamResponse:
        self._engine.rules.clear()
        self._engine.changed()
        raise web.HTTPSeeOther("/_sandbox/")


def _shown(request: web.Request) -> bool:
    return request.query.get("personal") == "shown"


def _html(text: str, status: int = 200) -> web.Response:
    return web.Response(text=text, status=status, content_type="text/html", headers=_HEADERS)
