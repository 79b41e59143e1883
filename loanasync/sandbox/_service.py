"""The endpoints of spec §4 over HTTP: credentials first, then the JSON object, then the answer."""

import hmac
import json
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web

from loanasync.sandbox import _answers as answers
from loanasync.sandbox import _page as page
from loanasync.sandbox._answers import Answer
from loanasync.sandbox._state import Entry, Memory

__all__ = ["Service"]

Respond = Callable[[web.Request, Mapping[str, Any]], Answer]

_LARGEST_BODY = 1 << 20

REQUESTS = "/api/shops/{shopId}/requests"
REQUEST = REQUESTS + "/{fiscalCode}"


class Service:
    """One shop's service and its memory."""

    def __init__(self, shop_id: str, auth_token: str, dialect: str | None) -> None:
        self.memory = Memory()
        self._shop_id = shop_id
        self._auth_token = auth_token
        self._dialect = dialect

    def application(self) -> web.Application:
        """The aiohttp application that serves it."""
        app = web.Application(client_max_size=_LARGEST_BODY)
        app.router.add_post(REQUESTS, self._endpoint(self._create))
        app.router.add_post(REQUEST, self._endpoint(self._approve))
        app.router.add_patch(REQUEST, self._endpoint(self._complete))
        app.router.add_post(REQUEST + "/documents", self._endpoint(self._upload_documents))
        app.router.add_get("/apply/{page}", self._show)
        app.router.add_post("/apply/{page}", self._finish)
        return app

    def _create(self, _: web.Request, body: Mapping[str, Any]) -> Answer:
        return answers.create(self.memory, body)

    def _approve(self, request: web.Request, body: Mapping[str, Any]) -> Answer:
        base_url = f"{request.scheme}://{request.host}"
        return answers.approve(self.memory, _code(request), body, self._dialect, base_url)

    def _complete(self, request: web.Request, body: Mapping[str, Any]) -> Answer:
        return answers.complete(self.memory, _code(request), body)

    def _upload_documents(self, request: web.Request, _: Mapping[str, Any]) -> Answer:
        return answers.upload_documents(self.memory, _code(request))

    def _endpoint(self, respond: Respond) -> Callable[[web.Request], Any]:
        async def handler(request: web.Request) -> web.Response:
            answer = await self._answer(request, respond)
            resource = request.match_info.route.resource
            route = resource.canonical if resource is not None else ""
            self.memory.journal.append(Entry(request.method, route, answer.status, answer.evaluated))
            return web.json_response(answer.body, status=answer.status)

        return handler

    async def _answer(self, request: web.Request, respond: Respond) -> Answer:
        token = request.headers.get("X-Auth-Token", "")  # spec §5
        known = hmac.compare_digest(token.encode(), self._auth_token.encode())
        if not known or request.match_info["shopId"] != self._shop_id:
            return answers.denied()
        try:
            body = json.loads(await request.read())
        except (ValueError, RecursionError):
            body = None
        if not isinstance(body, dict):
            # spec §4: all bodies are JSON objects; what is answered to others is not shown, so assumed.
            return Answer(400, {"errors": {"body": ["This value should be a JSON object."]}})
        return respond(request, body)

    async def _show(self, request: web.Request) -> web.Response:
        customer = self.memory.page(request.match_info["page"])
        if customer is None:
            return _html(page.missing(), 404)
        return _html(page.render(customer, self._shop_id), 200)

    async def _finish(self, request: web.Request) -> web.Response:
        customer = self.memory.page(request.match_info["page"])
        if customer is None or not customer.approved:
            return _html(page.missing(), 404)
        customer.finished = True
        raise web.HTTPSeeOther(request.path)


def _code(request: web.Request) -> str:
    return request.match_info["fiscalCode"]


def _html(text: str, status: int) -> web.Response:
    return web.Response(text=text, status=status, content_type="text/html")
