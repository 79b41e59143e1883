"""Routes of the customer's web application, the inspector and the admin calls."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Literal

from aiohttp import web
from attrs import asdict, frozen

from loanasync.sandbox import pages
from loanasync.sandbox.engine import Engine
from loanasync.sandbox.masking import pseudonym
from loanasync.sandbox.service import base_url_of, host_of

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

# Pages load nothing from other sites and cannot be framed.
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self';"
        " form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "Referrer-Policy": "same-origin",  # with no-referrer, browsers send the origin "null" with forms
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_INSPECTOR = "/_sandbox/"
_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")


@frozen
class Web:
    """The pages and admin calls over HTTP.

    Args:
        engine: Engine of the sandbox.
        shop_id: Identifier of the shop.
        shop_url: URL of the link back to the shop; None for no link.
        stopping: Set when the sandbox stops, to end all event streams.
        is_own_host: Returns whether a host name belongs to the sandbox.
    """

    _engine: Engine
    _shop_id: str
    _shop_url: str | None
    _stopping: asyncio.Event
    _is_own_host: Callable[[str], bool]

    def add_routes(self, app: web.Application) -> None:
        """Add all pages and admin calls."""
        reading = {
            "/apply/{page}": self._application,
            "/": self._to_inspector,
            "/_sandbox": self._to_inspector,
            _INSPECTOR: self._inspector,
            "/_sandbox/calls/{number}": self._call,
            **{f"/_sandbox/{name}": self._asset for name in pages.ASSETS},
            "/_sandbox/events": self._events,
            "/_sandbox/health": self._health,
            "/_sandbox/journal.jsonl": self._journal,
            "/_sandbox/findings.json": self._findings,
        }
        for path, handler in reading.items():
            app.router.add_get(path, self._guarded(handler), allow_head=handler != self._events)
        changing = {
            "/apply/{page}": self._decide_application,
            "/_sandbox/reset": self._reset,
            "/_sandbox/faults": self._add_fault,
            "/_sandbox/faults/clear": self._clear_faults,
        }
        for path, handler in changing.items():
            app.router.add_post(path, self._guarded(handler))
        known = [*(f"GET {path}" for path in reading), *(f"POST {path}" for path in changing)]

        async def unknown(_: web.Request) -> web.StreamResponse:
            raise web.HTTPNotFound(text=f"unknown path or method. Available: {', '.join(known)}")

        app.router.add_route("*", _INSPECTOR + "{rest:.*}", self._guarded(unknown))

    def _guarded(self, handler: Handler) -> Handler:
        """Reject requests for another host name and forms of other sites."""

        async def checked(request: web.Request) -> web.StreamResponse:
            if not self._is_own_host(host_of(base_url_of(request))):
                # DNS rebinding: another site's name that resolves to this machine has that site's origin.
                raise web.HTTPForbidden(text="open this page at the URL that the sandbox printed")
            origin = request.headers.get("Origin")
            if origin is not None and origin.partition("://")[2] != request.host:
                raise web.HTTPForbidden(text="a page of another site cannot change the sandbox")
            return await handler(request)

        return checked

    async def _application(self, request: web.Request) -> web.StreamResponse:
        with self._engine.lock:
            found = self._engine.customers.by_page(request.match_info["page"])
            if found is None:
                return _text(pages.missing(), status=HTTPStatus.NOT_FOUND)
            show_personal = _wants_personal(request)
            return _text(
                pages.application(*found, self._shop_id, self._shop_url, show_personal=show_personal)
            )

    async def _decide_application(self, request: web.Request) -> web.StreamResponse:
        wanted = (await _read_form(request, "action")).get("action")
        with self._engine.lock:
            found = self._engine.customers.by_page(request.match_info["page"])
            if found is None or not found[1].order.approved:
                return _text(pages.missing(), status=HTTPStatus.NOT_FOUND)
            if wanted not in ("accept", "cancel"):
                raise web.HTTPBadRequest(text="the field action must be accept or cancel")
            code, customer = found
            chosen: Literal["accepted", "cancelled"] = "accepted" if wanted == "accept" else "cancelled"
            if customer.order.application == "open":
                customer.order.application = chosen
                self._engine.customers.save(code, customer)
                self._engine.notify()
        raise _after_change(request, request.path)

    async def _to_inspector(self, _: web.Request) -> web.StreamResponse:
        raise web.HTTPFound(_INSPECTOR)

    async def _inspector(self, request: web.Request) -> web.StreamResponse:
        return _text(pages.inspector(self._engine, self._shop_id, show_personal=_wants_personal(request)))

    async def _call(self, request: web.Request) -> web.StreamResponse:
        wanted = request.match_info["number"]
        entry = next((each for each in self._engine.journal if str(each.number) == wanted), None)
        if entry is None:
            return _text(pages.missing(), status=HTTPStatus.NOT_FOUND)
        return _text(pages.call(entry, self._shop_id, show_personal=_wants_personal(request)))

    async def _asset(self, request: web.Request) -> web.StreamResponse:
        name = request.path.rpartition("/")[2]
        return web.Response(text=pages.asset(name), content_type=pages.ASSETS[name], headers=_HEADERS)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """Send a server-sent event after each change; changes in quick succession share one event."""
        stream = web.StreamResponse(headers=_HEADERS)
        stream.content_type = "text/event-stream"
        changed = asyncio.Event()
        loop = asyncio.get_running_loop()

        def notify() -> None:  # may be called in another thread, for example by a test that resets
            loop.call_soon_threadsafe(changed.set)

        self._engine.listeners.add(notify)  # before the first byte, so that no change after it is missed
        try:
            await stream.prepare(request)
            await stream.write(b"retry: 500\n\n")
            while not self._stopping.is_set():
                sent = ": here\n\n"  # a comment every 15 seconds detects clients that have disconnected
                with suppress(TimeoutError):
                    async with asyncio.timeout(15):
                        await changed.wait()
                    changed.clear()
                    sent = f"data: {self._engine.journal.total}\n\n"
                await stream.write(sent.encode())
        except ConnectionError:
            pass
        finally:
            self._engine.listeners.discard(notify)
        return stream

    async def _health(self, _: web.Request) -> web.StreamResponse:
        return web.json_response({"status": "ok"})

    async def _journal(self, _: web.Request) -> web.StreamResponse:
        return _text(self._engine.journal.to_jsonl(), "application/jsonl")

    async def _findings(self, _: web.Request) -> web.StreamResponse:
        return web.json_response([*map(asdict, self._engine.linter.findings)])

    async def _reset(self, request: web.Request) -> web.StreamResponse:
        handle, customers = (await _read_form(request, "customer")).get("customer"), self._engine.customers
        with self._engine.lock:
            known = [code for code in customers.codes() if code and pseudonym(code) == handle]
            if handle is None:
                self._engine.reset()
            elif not any(map(customers.forget, known)):
                raise web.HTTPNotFound(text="no customer has this handle: see `customer` in journal.jsonl")
            self._engine.notify()
        raise _after_change(request, _INSPECTOR)

    async def _add_fault(self, request: web.Request) -> web.StreamResponse:
        text = (await _read_form(request, "fault")).get("fault", "").strip()
        try:
            with self._engine.lock:
                self._engine.faults.add(text)
                self._engine.notify()
        except ValueError as error:
            raise web.HTTPBadRequest(text=str(error)) from None
        raise _after_change(request, _INSPECTOR)

    async def _clear_faults(self, request: web.Request) -> web.StreamResponse:
        await _read_form(request)
        with self._engine.lock:
            self._engine.faults.clear()
            self._engine.notify()
        raise _after_change(request, _INSPECTOR)


def _wants_personal(request: web.Request) -> bool:
    return request.query.get("personal") == "shown"


def _after_change(request: web.Request, path: str) -> web.HTTPException:
    return web.HTTPSeeOther(f"{path}?personal=shown" if _wants_personal(request) else path)


def _text(text: str, content_type: str = "text/html", status: int = HTTPStatus.OK) -> web.Response:
    # Strings from JSON may contain unpaired surrogates. They are escaped as in JSON.
    body = text.encode(errors="backslashreplace")
    return web.Response(
        body=body, status=status, content_type=content_type, charset="utf-8", headers=_HEADERS
    )


async def _read_form(request: web.Request, *known: str) -> dict[str, str]:
    """Return the fields of a form; each must be known and given once.

    Unexpected fields are errors: if they were ignored, the call would apply to all customers.

    Raises:
        HTTPBadRequest: The body is not a form, or has an unknown, repeated or unreadable field. The message
            says what to send.
    """
    try:
        posted = await request.post()
    except (LookupError, ValueError):  # an unknown encoding, a missing boundary
        posted = None
    sent = list((posted or {}).items())
    names = [name for name, _ in sent] + [name for name in request.query if name != "personal"]
    is_form = request.content_type in _FORMS or not await request.read()
    fields = {name: value for name, value in sent if isinstance(value, str)}
    if posted is None or not is_form or sorted(names) != sorted(fields) or not fields.keys() <= {*known}:
        wanted = (
            f"a form with each of these fields at most once: {', '.join(known)}" if known else "no fields"
        )
        raise web.HTTPBadRequest(text=f"unexpected body or field: send {wanted}")
    return fields
