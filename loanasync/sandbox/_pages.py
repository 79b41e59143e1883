"""What the pages say, as plain values for their templates; personal data only when a person asked."""

import json
import secrets
import shlex
import time
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import frozen

from loanasync.sandbox._customers import Customer
from loanasync.sandbox._engine import Engine
from loanasync.sandbox._entry import Entry
from loanasync.sandbox._masking import MASK, masked, masked_email
from loanasync.sandbox._tags import KNOWN

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = ["application", "call", "handle", "inspector", "live", "missing", "shop"]

_TEMPLATES = Path(__file__).parent / "templates"
_NEWEST = 100
_KEY = secrets.token_bytes(16)

# spec §2.1: the order first; the person is behind a click.
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
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # noqa: PLC0415  (loaded with the first page)

    return Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _render(template: str, **values: Any) -> str:
    return _environment().get_template(template).render(values)


@cache
def live() -> str:
    """The few lines that keep a page up to date; without them a reload does."""
    return (_TEMPLATES / "live.js").read_text(encoding="utf-8")


def missing() -> str:
    """The page for an address that belongs to nothing."""
    return _render("missing.html")


def shop(shop_id: str) -> str:
    """Where the customer comes back to when the shop named no page of its own."""
    return _render("shop.html", shop_id=shop_id)


def application(code: str, customer: Customer, shop_id: str, shop_url: str, *, shown: bool) -> str:
    """The customer's page: which request it is, and what can be done with it."""
    sent = customer.request
    order = {"Shop": shop_id}
    order |= {label: _money(name, sent[name]) for name, label in _ORDER.items() if sent.get(name) is not None}
    person = {"Fiscal code": code, **{label: str(sent.get(name, "")) for name, label in _PERSON.items()}}
    return _render(
        "application.html",
        customer=customer,
        order=order,
        person=person if shown else dict.fromkeys(person, MASK),
        shop_url=shop_url,
        shown=shown,
    )


def _money(name: str, value: float | str) -> str:
    return f"{int(value) / 100:,.2f} euro" if name == "amount" else str(value)


def handle(code: str) -> str:
    """A name for a customer that tells nothing of them."""
    return blake2b(code.encode(), key=_KEY, digest_size=6).hexdigest()


@frozen
class Row:
    """A customer as the inspector lists them."""

    handle: str
    name: str
    email: str
    customer: Customer

    @property
    def state(self) -> str:
        """In the words of spec §3."""
        decided = {None: "created", True: "approved", False: "refused"}[self.customer.approved]
        return decided if self.customer.created else "not created"


def inspector(engine: Engine, shop_id: str, wrong: str, *, shown: bool) -> str:
    """All requests, calls, findings and rules."""
    with engine.lock:
        customers = engine.customers.items()[: -_NEWEST - 1 : -1]
        rows = [
            Row(
                handle(code),
                code if shown else MASK,
                each.email if shown or not each.email else masked_email(each.email),
                each,
            )
            for code, each in customers
        ]
        return _render(
            "inspector.html",
            shop_id=shop_id,
            rows=rows,
            count=len(engine.customers),
            forgotten=engine.customers.forgotten,
            journal=engine.journal,
            calls=[(entry, _clock(entry.at)) for entry in engine.journal[: -_NEWEST - 1 : -1]],
            findings=list(engine.linter.findings)[::-1],
            rules=list(engine.rules),
            known=[word for word in KNOWN if "<" not in word and "N" not in word],
            wrong=wrong,
            shown=shown,
        )


def _clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))


def call(entry: Entry, base_url: str, shop_id: str, *, shown: bool) -> str:
    """One call, with what it takes to make it again."""
    code = entry.fiscal_code if shown or not entry.fiscal_code else MASK
    path = entry.route.replace("{shopId}", shop_id).replace("{fiscalCode}", code)
    request = entry.request if shown else masked(entry.request)
    answer = entry.answer if shown else masked(entry.answer)
    return _render(
        "call.html",
        entry=entry,
        at=_clock(entry.at),
        path=path,
        request=_indented(request),
        answer=_indented(answer),
        curl=_as_curl(entry.method, base_url + path, request),
        python=_as_python(entry.method, base_url + path, request),
        shown=shown,
    )


def _indented(body: object) -> str:
    return "" if body is None else json.dumps(body, indent=2, ensure_ascii=False)


# The token is left to whoever makes the call again: it is not kept.
def _as_curl(method: str, url: str, body: object) -> str:
    words = ["curl", "-i", "-X", method, url, "-H", "Content-Type: application/json"]
    sent = ["-d", json.dumps(body, ensure_ascii=False)] if body is not None else []
    return f'{shlex.join(words)} -H "X-Auth-Token: $TOKEN" {shlex.join(sent)}'.rstrip()


def _as_python(method: str, url: str, body: object) -> str:
    return (
        "import os\nimport aiohttp\n\n"
        "async with aiohttp.ClientSession() as session:\n"
        '    headers = {"X-Auth-Token": os.environ["TOKEN"]}\n'
        f"    async with session.request({method!r}, {url!r}, json={body!r}, headers=headers) as answer:\n"
        "        print(answer.status, await answer.text())"
    )
