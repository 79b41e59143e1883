"""Routes of the customer's web application, the inspector, and the calls for programs."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Container
from http import HTTPStatus
from typing import Literal

from aiohttp import web
from attrs import frozen

from loanasync.sandbox import pages
from loanasync.sandbox.engine import Engine
from loanasync.sandbox.forms import read_filters, read_form
from loanasync.sandbox.masking import pseudonym
from loanasync.sandbox.openapi import document
from loanasync.sandbox.service import address_of

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

# Nothing is loaded from elsewhere, and nobody frames it.
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self';"
        " form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "Referrer-Policy": "same-origin",  # with no-referrer, browsers call a form's origin "null"
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_INSPECTOR = "/_sandbox/"
_NO_PAGES = (
    "the pages of the sandbox need Jinja2: pip install 'loanasync[sandbox]'."
    " Without it, the service and all other addresses under /_sandbox/ work"
)
_ADMIN_CALLS = (
    "Known are: POST /_sandbox/reset, POST /_sandbox/faults, POST /_sandbox/faults/clear,"
    " GET /_sandbox/journal.jsonl, GET /_sandbox/findings.json, GET /_sandbox/openapi.json,"
    " GET /_sandbox/events, GET /_sandbox/health"
)
_UNKNOWN_CUSTOMER = (
    "no customer has this handle: it was reset already, or is of an earlier start. Take the handle from the"
    " member customer of /_sandbox/journal.jsonl. A POST without fields resets everything"
)


@frozen
class Web:
    """The pages over an engine.

    Args:
        engine: What they show.
        shop_id: The shop's name.
        shop_url: Where the web application leads back to; None: a page of the sandbox's own.
        ending: Set when the sandbox stops, so that no page hangs on.
        is_own: Whether a host is one under which the sandbox may be asked.
    """

    _engine: Engine
    _shop_id: str
    _shop_url: str | None
    _ending: asyncio.Event
    _is_own: Callable[[str], bool]

    def add_routes(self, app: web.Application) -> None:
        """All pages."""
        shown = {
            "/apply/{page}": self._application,
            "/shop": self._shop,
            "/": self._to_inspector,
            "/_sandbox": self._to_inspector,
            _INSPECTOR: self._inspector,
            "/_sandbox/calls/{number}": self._call,
            **{f"/_sandbox/{name}": self._asset for name in pages.ASSETS},
            "/_sandbox/events": self._events,
            "/_sandbox/health": self._health,
            "/_sandbox/openapi.json": self._openapi,
            "/_sandbox/journal.jsonl": self._journal,
            "/_sandbox/findings.json": self._findings,
            "/_sandbox/faults": self._to_inspector,  # a reload after a wrong one
        }
        for path, handler in shown.items():
            app.router.add_get(path, self._here(handler), allow_head=handler != self._events)
        changing = {
            "/apply/{page}": self._decided,
            "/_sandbox/reset": self._reset,
            "/_sandbox/faults": self._add_fault,
            "/_sandbox/faults/clear": self._clear_faults,
        }
        for path, handler in changing.items():
            app.router.add_post(path, self._here(handler))
        app.router.add_route("*", _INSPECTOR + "{rest:.*}", self._here(_unknown(shown, changing)))

    def _here(self, handler: Handler) -> Handler:
        """Only under an address of the sandbox's own, and no form of another site's."""

        async def checked(request: web.Request) -> web.StreamResponse:
            if not self._is_own(_host_of(request)):
                # A name that another site let lead here would make its pages ours to the browser.
                raise web.HTTPForbidden(text="ask for this page by the address that the sandbox printed")
            origin = request.headers.get("Origin")
            if origin is not None and origin.partition("://")[2] != request.host:
                raise web.HTTPForbidden(text="another site's page may not change the sandbox")
            return await handler(request)

        return checked

    async def _application(self, request: web.Request) -> web.StreamResponse:
        with self._engine.lock:
            found = self._engine.customers.at_page(request.match_info["page"])
            if found is None:
                return _html(pages.missing(), 404)
            return _html(
                pages.application(*found, self._shop_id, self._shop_url or "/shop", shown=_shown(request))
            )

    async def _decided(self, request: web.Request) -> web.StreamResponse:
        wanted = (await read_form(request, "action")).get("action")
        with self._engine.lock:
            found = self._engine.customers.at_page(request.match_info["page"])
            if found is None or not found[1].approved:
                return _html(pages.missing(), 404)
            if wanted not in ("accept", "cancel"):
                raise web.HTTPBadRequest(text="the action is accept or cancel")
            code, customer = found
            chosen: Literal["accepted", "cancelled"] = "accepted" if wanted == "accept" else "cancelled"
            if customer.application == "open":
                customer.application = chosen
                self._engine.customers.save(code, customer)
                self._engine.changed()
            elif customer.application != chosen and not _is_page(request):
                text = f"the application was {customer.application} before: the first decision stays"
                raise web.HTTPConflict(text=text)
        raise _see(request, request.path)

    async def _shop(self, _: web.Request) -> web.StreamResponse:
        return _html(pages.shop(self._shop_id))

    async def _to_inspector(self, _: web.Request) -> web.StreamResponse:
        raise web.HTTPFound(_INSPECTOR)

    async def _inspector(self, request: web.Request) -> web.StreamResponse:
        return _html(pages.inspector(self._engine, self._shop_id, shown=_shown(request)))

    async def _call(self, request: web.Request) -> web.StreamResponse:
        wanted = request.match_info["number"]
        entry = next((each for each in self._engine.journal if str(each.number) == wanted), None)
        if entry is None:
            return _html(pages.missing(), 404)
        base_url = address_of(request)
        return _html(pages.call(entry, base_url, self._shop_id, shown=_shown(request)))

    async def _asset(self, request: web.Request) -> web.StreamResponse:
        name = request.path.rpartition("/")[2]
        return web.Response(text=pages.asset(name), content_type=pages.ASSETS[name], headers=_HEADERS)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """Server-sent events: one for each change, several at once as one."""
        response = web.StreamResponse(headers=_HEADERS)
        response.content_type = "text/event-stream"
        changed = asyncio.Event()
        loop = asyncio.get_running_loop()

        def tell() -> None:  # a test may reset the sandbox from its own thread
            loop.call_soon_threadsafe(changed.set)

        self._engine.watching.add(tell)  # before the first byte: who reads it misses nothing from then on
        ended = asyncio.ensure_future(self._ending.wait())
        try:
            await response.prepare(request)
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

    async def _health(self, _: web.Request) -> web.StreamResponse:
        return web.json_response({"status": "ok"})

    async def _openapi(self, request: web.Request) -> web.StreamResponse:
        return web.json_response(document(address_of(request)))

    async def _journal(self, request: web.Request) -> web.StreamResponse:
        try:
            lines = self._engine.journal.to_jsonl(**read_filters(request.query))
        except ValueError as error:
            raise web.HTTPBadRequest(text=str(error)) from None
        except RuntimeError as error:  # it is off
            raise web.HTTPConflict(text=str(error)) from None
        return _text(lines, "application/jsonl")

    async def _findings(self, request: web.Request) -> web.StreamResponse:
        for name in request.query:
            raise web.HTTPBadRequest(text=f"findings have no filter {name!r}: ask for all of them")
        found = [
            {"rule": each.rule, "call": each.call, "sentence": each.sentence}
            for each in self._engine.linter.findings
        ]
        return web.Response(text=json.dumps(found), content_type="application/json")

    async def _reset(self, request: web.Request) -> web.StreamResponse:
        handle = (await read_form(request, "customer")).get("customer")
        with self._engine.lock:
            if handle is None:
                self._engine.reset()
            elif not self._forget(handle):
                return self._failed(
                    request, web.HTTPNotFound(text=_UNKNOWN_CUSTOMER), notice=_UNKNOWN_CUSTOMER
                )
            else:
                self._engine.changed()
        raise _see(request, _INSPECTOR)

    def _failed(self, request: web.Request, error: web.HTTPException, **said: str) -> web.StreamResponse:
        """Return the inspector with an error, or raise the error for a program and without Jinja2."""
        page = None
        if _is_page(request):
            page = pages.inspector(self._engine, self._shop_id, shown=_shown(request), **said)
        if page is None:
            raise error
        return _html(page, error.status)

    def _forget(self, handle: str) -> bool:
        customers = self._engine.customers
        for code in customers.codes():
            if code and pseudonym(code) == handle:
                return customers.forget(code)
        return False

    async def _add_fault(self, request: web.Request) -> web.StreamResponse:
        text = (await read_form(request, "rule")).get("rule", "").strip()
        try:
            with self._engine.lock:
                self._engine.rules.add_text(text)
        except ValueError as error:
            return self._failed(request, web.HTTPBadRequest(text=str(error)), wrong=str(error), typed=text)
        self._engine.changed()
        raise _see(request, _INSPECTOR)

    async def _clear_faults(self, request: web.Request) -> web.StreamResponse:
        await read_form(request)
        with self._engine.lock:
            self._engine.rules.clear()
        self._engine.changed()
        raise _see(request, _INSPECTOR)


def _unknown(shown: Container[str], changing: Container[str]) -> Handler:
    """Return the handler of all other addresses: a 405 for a wrong method, else a 404."""

    async def handler(request: web.Request) -> web.StreamResponse:
        allowed = [method for method, paths in (("GET", shown), ("POST", changing)) if request.path in paths]
        if allowed:
            raise web.HTTPMethodNotAllowed(request.method, allowed, text=_ADMIN_CALLS)
        raise web.HTTPNotFound(text=_ADMIN_CALLS)

    return handler


def _host_of(request: web.Request) -> str:
    try:
        return request.url.host or ""
    except ValueError:  # a port that is none
        return ""


def _is_page(request: web.Request) -> bool:
    """Return whether a page posted the form; programs get plain text."""
    return "text/html" in request.headers.get("Accept", "")


def _shown(request: web.Request) -> bool:
    return request.query.get("personal") == "shown"


def _see(request: web.Request, path: str) -> web.HTTPException:
    """Lead a person on after a change, what was shown stays shown; to a program it is done."""
    if not _is_page(request):
        return web.HTTPNoContent()
    return web.HTTPSeeOther(f"{path}?personal=shown" if _shown(request) else path)


def _html(page: str | None, status: int = HTTPStatus.OK) -> web.Response:
    """Return a page; without Jinja2, what to install."""
    if page is None:
        return _text(
            _NO_PAGES, "text/plain", HTTPStatus.NOT_IMPLEMENTED if status == HTTPStatus.OK else status
        )
    return _text(page, "text/html", status)


def _text(text: str, content_type: str, status: int = 200) -> web.Response:
    # JSON may bring halves of surrogate pairs; they are shown as JSON writes them.
    body = text.encode(errors="backslashreplace")
    return web.Response(
        body=body, status=status, content_type=content_type, charset="utf-8", headers=_HEADERS
    )
