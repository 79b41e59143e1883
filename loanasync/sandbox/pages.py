"""The HTML pages of the sandbox. They mask personal data unless `show_personal` is set."""

import json
import time
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from aiohttp import web

from loanasync.sandbox.customers import Customer
from loanasync.sandbox.engine import Engine
from loanasync.sandbox.journal import JournalEntry
from loanasync.sandbox.masking import MASK, masked_email, pseudonym
from loanasync.sandbox.outcomes import TAG_WORDS

if TYPE_CHECKING:
    from jinja2 import Environment

_NO_PAGES = (
    "the pages of the sandbox need Jinja2: pip install '.[sandbox]' in a checkout."
    " The service and all other paths under /_sandbox/ work without it"
)

_TEMPLATES = files("loanasync.sandbox") / "templates"
_NEWEST = slice(None, -101, -1)  # the last 100 entries, newest first
# The only files that pages load. Without the script, reload a page to update it.
ASSETS = {"icon.svg": "image/svg+xml", "live.js": "text/javascript", "style.css": "text/css"}

# spec §2.1: fields of the order, which are always shown, and of the person, which are masked.
_ORDER = {"amount": "Amount", "instalments": "Instalments", "orderToken": "Order"}
_PERSON = {
    "firstname": "First name",
    "lastname": "Last name",
    "email": "E-mail",
    "mobilePhone": "Mobile phone",
    "address": "Address",
    "city": "City",
    "province": "Province",
    "postalCode": "Postal code",
    "citizenship": "Citizenship",
}


@cache
def _environment() -> "Environment":
    try:
        from jinja2 import Environment, FunctionLoader, StrictUndefined  # noqa: PLC0415  (an extra)
    except ImportError:
        raise web.HTTPNotImplemented(text=_NO_PAGES) from None

    environment = Environment(
        loader=FunctionLoader(asset),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"clock": _clock, "pseudonym": pseudonym}
    return environment


def _render(template: str, **values: Any) -> str:
    return _environment().get_template(template).render(values)


@cache
def asset(name: str) -> str:
    """Return the text of a file in `ASSETS`, or of a template."""
    return (_TEMPLATES / name).read_text(encoding="utf-8")


def missing() -> str:
    """Return the 404 page."""
    return _render("missing.html")


def application(
    code: str, customer: Customer, shop_id: str, shop_url: str | None, *, show_personal: bool
) -> str:
    """Return the customer's page with the request and the buttons to accept or cancel the loan."""
    sent = customer.order.request
    order = {"Shop": shop_id}
    order |= {label: _money(name, sent[name]) for name, label in _ORDER.items() if sent.get(name) is not None}
    person = {"Fiscal code": code, **{label: str(sent.get(name, "")) for name, label in _PERSON.items()}}
    return _render(
        "application.html",
        state=customer.order,
        order=order,
        person=person if show_personal else dict.fromkeys(person, MASK),
        shop_url=shop_url,
        show_personal=show_personal,
    )


def _money(name: str, value: float | str) -> str:
    return f"{int(value) / 100:,.2f} euro" if name == "amount" else str(value)


def inspector(engine: Engine, shop_id: str, *, show_personal: bool) -> str:
    """Return the inspector, the page with the newest requests and calls, all findings, and the faults."""
    with engine.lock:
        customers = engine.customers.items()
        return _render(
            "inspector.html",
            shop_id=shop_id,
            rows=[_row(*each, show_personal=show_personal) for each in customers[_NEWEST]],
            count=len(customers),
            forgotten=engine.customers.forgotten,
            journal=engine.journal,
            calls=engine.journal[_NEWEST],
            findings=list(engine.linter.findings)[_NEWEST],
            faults=list(engine.faults),
            words=[word for word in TAG_WORDS if "<" not in word and "N" not in word],
            show_personal=show_personal,
            query="?personal=shown" if show_personal else "",
        )


def _row(code: str, customer: Customer, *, show_personal: bool) -> dict[str, Any]:
    decided = {None: "created", True: "approved", False: "refused"}[customer.order.approved]  # spec §3
    return {
        "handle": pseudonym(code),
        "name": code if show_personal else MASK,
        "email": customer.email if show_personal or not customer.email else masked_email(customer.email),
        "state": decided if customer.created else "not created",
        "customer": customer,
    }


def _clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))


def call(entry: JournalEntry, shop_id: str, *, show_personal: bool) -> str:
    """Return the page of one call."""
    code = quote(entry.fiscal_code, safe="") if show_personal else MASK
    masked = entry.masked()
    return _render(
        "call.html",
        entry=entry,
        path=entry.route.replace("{shopId}", quote(shop_id, safe="")).replace("{fiscalCode}", code),
        request=_indented(entry.request if show_personal else masked["request"]),
        response=_indented(entry.response if show_personal else masked["response"]),
        show_personal=show_personal,
    )


def _indented(body: object) -> str:
    return "" if body is None else json.dumps(body, indent=2, ensure_ascii=False)
