"""A Django shop with Sentry: what Sentry records of the template's context and of the view's variables.

Run it in a separate process: Django and Sentry have one configuration for each process.
"""

import asyncio
import itertools
import json
import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import django
import django.shortcuts
import httpx
import sentry_sdk
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import HttpRequest, HttpResponse
from django.template import loader
from django.template.response import TemplateResponse
from django.urls import path
from sentry_sdk.envelope import Envelope
from sentry_sdk.integrations.django import DjangoIntegration
from sentry_sdk.transport import Transport

from loanasync import ApprovalRequest
from loanasync.checkout import checkout
from loanasync.ledger import MemoryLedger
from loanasync.testing import connection_lost, rejected, response, scripted_client
from support.memory_order import MemoryOrder
from support.privacy.plants import CODE, ECHO, LIMITS, TOKEN, found_in, values_of

MARK = "ZZQCONTROL"  # in the error of the view; it is not a planted value
FORM = {name: str(value) for name, value in values_of(ApprovalRequest, checked=True).items()}
FORM |= {"fiscal_code": CODE, "instalments": "12"}

# The settings of docs/howto/web.md.
SETTINGS = {"max_request_body_size": "never", "include_local_variables": False}
RENDERED: dict[str, Callable[[HttpRequest, dict[str, Any]], object]] = {
    "render": lambda request, context: django.shortcuts.render(request, "page.html", context),
    "TemplateResponse": lambda request, context: TemplateResponse(request, "page.html", context).render(),
    "render_to_string": lambda _, context: loader.render_to_string("page.html", context),
}
CONTEXTS = ("objects of loanasync", "form and URL")
TEMPLATE = "{{ page.url }}{{ form.city }}{{ request.email }}{{ client }}{{ order }}"
RESULTS = {
    "approved": response(201, {**ECHO, "approved": True}),
    "rejected": rejected({"city": [f"{FORM['city']} is unknown."]}),
    "lost": connection_lost(),
    "order fails": response(201, {}),
}


class FailingOrder(MemoryOrder):
    """An order in a database whose errors show the statement with its values."""

    async def change(self, old: tuple[str, str], new: tuple[str, str]) -> bool:
        raise RuntimeError(f"no table orders: SET {new} WHERE {old}")


async def pay(request: HttpRequest) -> HttpResponse:
    """Show the page of a click, and then fail."""
    result, rendered, shown = (request.GET[name] for name in ("result", "rendered", "shown"))
    form, order = request.POST.dict(), FailingOrder() if result == "order fails" else MemoryOrder()
    code = form["fiscal_code"]
    script = (response(201, {}), RESULTS[result])
    client = scripted_client(*script, ledger=MemoryLedger(), limits=LIMITS, auth_token=TOKEN)
    page = await checkout(
        client,
        code,
        ApprovalRequest.from_form(form, amount=order.amount),
        order=order,
        payload={"fiscalCode": code},
        fields=list(FORM),
        approved_url="/",
    )
    context = {"page": page, "client": client, "order": order, "decision": getattr(page, "decision", None)}
    context |= {"request": ApprovalRequest.from_form(form, amount=order.amount)}
    if shown == "form and URL":
        context |= {"form": form, "url": getattr(page, "url", "")}
    logging.getLogger("shop").warning("page: %s", page)
    RENDERED[rendered](request, context)
    raise RuntimeError(MARK)


class Events(Transport):
    """Keeps what Sentry would send."""

    sent: ClassVar[list[bytes]] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        """Keep errors and transactions."""
        self.sent.append(envelope.serialize())


async def events_of_click(settings: Mapping[str, Any], **query: str) -> str:
    """Click once, and return what Sentry has recorded."""
    Events.sent.clear()
    sentry_sdk.init(
        "http://key@127.0.0.1/1",
        transport=Events,
        traces_sample_rate=1.0,
        integrations=[DjangoIntegration()],
        auto_enabling_integrations=False,  # would import each package that Sentry knows
        release="test",  # would ask git
        **settings,
    )
    transport = httpx.ASGITransport(get_asgi_application(), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as browser:
        browser.cookies["order"] = TOKEN
        assert (await browser.post("/pay", params=query, data=FORM)).status_code == 500
    sentry_sdk.flush()
    text = b"\n".join(Events.sent).decode()
    is_shown = query["result"] != "order fails"
    assert (MARK if is_shown else "Order.change failed: RuntimeError in ") in text
    assert ("template.render" in text) == (is_shown and query["rendered"] != "render_to_string")
    return text


async def main() -> None:
    """Print a row for each case: the settings, the way to render, the context, and the recorded fields."""
    cases = [*itertools.product([SETTINGS], RENDERED, CONTEXTS)]
    cases += [({name: SETTINGS[name]}, "render_to_string", CONTEXTS[0]) for name in SETTINGS]
    rows = []
    for chosen, rendered, shown in cases:
        query = {"rendered": rendered, "shown": shown}
        events = [await events_of_click(chosen, result=result, **query) for result in RESULTS]
        rows.append([", ".join(chosen), rendered, shown, sorted(found_in("".join(events)))])
    json.dump(rows, sys.stdout)


urlpatterns = [path("pay", pay)]

if __name__ == "__main__":
    options = {"loaders": [("django.template.loaders.locmem.Loader", {"page.html": TEMPLATE})]}
    templates = {"BACKEND": "django.template.backends.django.DjangoTemplates", "OPTIONS": options}
    settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["test"], TEMPLATES=[templates])
    django.setup()
    asyncio.run(main())
