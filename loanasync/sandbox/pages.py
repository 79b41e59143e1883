"""The HTML pages; they show personal data only on request."""

import json
import shlex
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from attrs import frozen

from loanasync.sandbox.customers import Customer
from loanasync.sandbox.engine import Engine
from loanasync.sandbox.journal import JournalEntry
from loanasync.sandbox.masking import MASK, masked, masked_email, pseudonym
from loanasync.sandbox.outcomes import KNOWN

if TYPE_CHECKING:
    from jinja2 import Environment


_TEMPLATES = Path(__file__).parent / "templates"
_NEWEST = 100
# What pages load, and nothing else; without the script a reload does the same.
ASSETS = {"icon.svg": "image/svg+xml", "live.js": "text/javascript", "style.css": "text/css"}

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
def _environment() -> "Environment | None":
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined  # noqa: PLC0415  (an extra)
    except ImportError:
        return None

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"clock": _clock, "pseudonym": pseudonym}
    return environment


def _render(template: str, **values: Any) -> str | None:
    """Return a page; None without Jinja2."""
    environment = _environment()
    return None if environment is None else environment.get_template(template).render(values)


@cache
def asset(name: str) -> str:
    """A file of `ASSETS`."""
    return (_TEMPLATES / name).read_text(encoding="utf-8")


def missing() -> str | None:
    """The page for an address that belongs to nothing."""
    return _render("missing.html")


def shop(shop_id: str) -> str | None:
    """Return the page to which the customer returns if no `shop_url` is set."""
    return _render("shop.html", shop_id=shop_id)


def application(code: str, customer: Customer, shop_id: str, shop_url: str, *, shown: bool) -> str | None:
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


@frozen
class CustomerRow:
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


def inspector(
    engine: Engine, shop_id: str, *, shown: bool, wrong: str = "", typed: str = "", notice: str = ""
) -> str | None:
    """Return the page with all requests, calls, findings and rules.

    Args:
        engine: The sandbox.
        shop_id: The shop's name.
        shown: Whether personal data is shown.
        wrong: Error of the fault that was typed.
        typed: That fault.
        notice: Error of a reset.
    """
    with engine.lock:
        return _render(
            "inspector.html",
            shop_id=shop_id,
            rows=[_row(*each, shown=shown) for each in engine.customers.items()[: -_NEWEST - 1 : -1]],
            count=len(engine.customers),
            readings=engine.readings.texts(),
            forgotten=engine.customers.forgotten,
            journal=engine.journal,
            calls=engine.journal[: -_NEWEST - 1 : -1],
            findings=list(engine.linter.findings)[: -_NEWEST - 1 : -1],
            rules=list(engine.rules),
            known=[word for word in KNOWN if "<" not in word and "N" not in word],
            wrong=wrong,
            typed=typed,
            notice=notice,
            shown=shown,
            query="?personal=shown" if shown else "",
        )


def _row(code: str, customer: Customer, *, shown: bool) -> CustomerRow:
    email = customer.email if shown or not customer.email else masked_email(customer.email)
    return CustomerRow(pseudonym(code), code if shown else MASK, email, customer)


def _clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))


def call(entry: JournalEntry, base_url: str, shop_id: str, *, shown: bool) -> str | None:
    """One call, with what it takes to make it again."""
    return _render(
        "call.html",
        entry=entry,
        path=_path(entry, shop_id, shown=shown),
        request=_indented(entry.request if shown else masked(entry.request)),
        answer=_indented(entry.answer if shown else entry.masked()["answer"]),
        replay=_replay(entry, base_url, shop_id, shown=shown),
        shown=shown,
    )


def _indented(body: object) -> str:
    return "" if body is None else json.dumps(body, indent=2, ensure_ascii=False)


def _path(entry: JournalEntry, shop_id: str, *, shown: bool) -> str:
    """The path that was called, as a URL has it."""
    code = quote(entry.fiscal_code, safe="") if shown else MASK
    return entry.route.replace("{shopId}", quote(shop_id, safe="")).replace("{fiscalCode}", code)


def _replay(entry: JournalEntry, base_url: str, shop_id: str, *, shown: bool) -> dict[str, str] | None:
    """Return the call as a curl command and as a Python program; None for an address that is not kept."""
    if not entry.route.startswith("/"):
        return None
    url = base_url + _path(entry, shop_id, shown=shown)
    body = entry.request if shown else masked(entry.request)
    return {"curl": _curl(entry.method, url, body), "python": _python(entry.method, url, body)}


# Both read the token from the environment: it is not kept.
def _curl(method: str, url: str, body: Mapping[str, Any] | None) -> str:
    lines = [
        shlex.join(["curl", "-i", "-X", method, url]),
        shlex.join(["-H", "Content-Type: application/json"]),
        '-H "X-Auth-Token: $TOKEN"',
    ]
    if body is not None:
        lines.append(shlex.join(["-d", json.dumps(body, indent=2, ensure_ascii=False)]))
    return " \\\n  ".join(lines)


def _python(method: str, url: str, body: Mapping[str, Any] | None) -> str:
    fields = "".join(f"    {name!r}: {value!r},\n" for name, value in (body or {}).items())
    sent = "None" if body is None else f"{{\n{fields}}}"
    return f"""\
import asyncio
import os

import aiohttp

URL = {url!r}
BODY = {sent}


async def main():
    headers = {{"X-Auth-Token": os.environ["TOKEN"]}}
    async with aiohttp.ClientSession(headers=headers) as session:
        async with session.request({method!r}, URL, json=BODY) as answer:
            print(answer.status, await answer.text())


asyncio.run(main())
"""
