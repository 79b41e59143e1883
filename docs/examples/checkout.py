"""The checkout of the example shops: orders, loan and HTML pages, independent of the web framework."""

import logging
import os
from collections.abc import Mapping
from pathlib import Path

from attrs import field, frozen
from jinja2 import Environment, FileSystemLoader
from shop_orders import Order, Orders

from loanasync import (
    ApprovalRequest,
    InvalidRequestError,
    LedgerError,
    LoanClient,
    LoanError,
    Refused,
    Timeout,
    UserData,
)
from loanasync.checkout import Ask, Form, Page, Paid, Redirect, Waiting, checkout, error_page, settle
from loanasync.ledger import SqliteLedger
from loanasync.testing import fiscal_code

ROUTES = (
    ("GET", "/"),
    ("POST", "/pay"),
    ("GET", "/order"),
    ("POST", "/complete"),
    ("POST", "/new"),
    ("GET", "/health"),
)
# A shopper waits at most 20 seconds for a page.
APPROVAL = Timeout(total=15, attempt=14, connect=2)  # approvals and uploads
SHORT = Timeout(total=5, attempt=4, connect=2)  # a lost response to these calls loses no decision
CART = {"Bicycle": 43_500, "Bicycle bell": 1_500}  # euro cents
# The form of this example is filled, except for the fiscal code, which is a made-up one for each order.
MADE_UP = {
    "first_name": "Anna",
    "last_name": "Prova",
    "email": "anna@example.com",
    "mobile_phone": "3330000000",
    "address": "Via Prova",
    "street_number": "12/A",
    "postal_code": "00100",
    "city": "Roma",
    "province": "RM",
}
LOAN_FIELDS = (
    *("fiscal_code", "instalments", "email", "first_name", "last_name", "mobile_phone", "city", "address"),
    *("province", "postal_code", "street_number", "citizenship", "residence", "residence_start_date"),
    *("educational_qualification", "children", "salary_type", "salary"),
)
BOXES = ("politically_exposed", "us_person", "marketing")
DATA_FIELDS = (
    *("document_type", "document_code", "document_city", "document_issue_date", "document_expiration_date"),
    *BOXES,
)
PAGES = Environment(autoescape=True, loader=FileSystemLoader(Path(__file__).parent))
logger = logging.getLogger("shop")


@frozen
class PageResponse:
    """An HTTP response in a form that each framework can send."""

    status: int
    headers: dict[str, str] = field(repr=False)
    html: str = field(default="", repr=False)


def open_client(*, max_concurrency: int | None = None, proxy: str | None = None) -> LoanClient:
    """Return a client with a ledger, configured by environment variables.

    Without LOANASYNC_LEDGER, the first client creates a file. A ledger that the variable names must exist.
    """
    ledger = None if "LOANASYNC_LEDGER" in os.environ else SqliteLedger("decisions.db")
    return LoanClient.from_env(ledger=ledger, timeout=APPROVAL, max_concurrency=max_concurrency, proxy=proxy)


def additional_data_needed(created: object) -> bool:
    """Read the response of the creation. Its shape is an agreement with the service (spec §4.3)."""
    return isinstance(created, Mapping) and created.get("additionalDataNeeded") is True


class Shop:
    """The pages of the shop. Double clicks and reloads send one approval."""

    def __init__(self, client: LoanClient | None = None, orders: Path = Path("orders.db")) -> None:
        self.client = client or open_client()
        self._orders = Orders(orders)

    async def respond(self, path: str, cookie: str | None, form: Mapping[str, object]) -> PageResponse:
        """Return the page of a route, for the order in the shopper's cookie."""
        if path == "/health":
            return await self._health()
        found = await self._orders.where("cookie = ?", cookie)
        order = found[0] if found and path != "/new" else await self._orders.add(sum(CART.values()))
        typed = {name: value for name, value in form.items() if isinstance(value, str)}
        if path == "/pay":
            return await self._pay(order, typed)
        page = await settle(self.client, order, approved_url="/order")  # the shopper may come back later
        match path, page:
            case "/complete", Redirect():
                return await self._complete(order, typed)
            case ("/order", Redirect() | Refused() | Paid()) | ("/", None | Waiting() | Ask()):
                return await self._show(order, page)
        return _redirect(order, "/order" if isinstance(page, Redirect | Refused | Paid) else "/")

    async def _health(self) -> PageResponse:
        """Return 503 while no approval can be sent, so that the load balancer uses another machine."""
        try:
            await self.client.check_ledger()
        except LedgerError as error:
            logger.error("not ready: %s", error)  # noqa: TRY400  (the text says what to do)
            return PageResponse(503, {"Content-Type": "text/plain"}, "not ready")
        return PageResponse(200, {"Content-Type": "text/plain"}, "ready")

    async def _show(self, order: Order, page: Page | None) -> PageResponse:
        match page:
            case Redirect(url=url):
                name = "completed" if (await order.row())["is_completed"] else "data"
                return _render(order, name, url=url)
            case Refused():
                return _render(order, "refused")
            case Paid():
                return _render(order, "paid")
            case Waiting() | Ask():
                return _render(order, "message", page.status, message=page)
        return _render(order, "loan", form={"fiscal_code": fiscal_code(), **MADE_UP})

    async def _pay(self, order: Order, form: dict[str, str]) -> PageResponse:
        code = form.get("fiscal_code", "").strip().upper()
        page = await checkout(
            self.client,
            code,
            ApprovalRequest.from_form(form, amount=order.amount),
            order=order,
            payload={"fiscalCode": code},
            fields=LOAN_FIELDS,
            approved_url="/order",
            additional_data_needed=additional_data_needed,
            create_timeout=SHORT,
        )
        match page:
            case Redirect(url=url):
                return _redirect(order, url)  # contains a token: do not log it
            case Refused() | Paid():
                return _redirect(order, "/order")
            case Form() | Waiting() | Ask():
                return _error_page(order, "loan", form, page)

    async def _complete(self, order: Order, form: dict[str, str]) -> PageResponse:
        """Send the shopper's documents and data. Omit this if the service's web application does it."""
        row, code = await order.row(), await order.customer()
        data = UserData.from_form(form, **{name: name in form for name in BOXES})
        try:
            if problems := self.client.check(code, data):
                raise InvalidRequestError(problems, "complete")
            if not row["has_documents"]:  # spec §4.3: the shape of the documents is open
                await self.client.upload_documents(code, {"front": form.get("front", "")})
                await order.save_documents()
            await self.client.complete(code, data, timeout=SHORT)
        except LoanError as error:
            if error.outcome != "done":  # "done": saved, only the response is unreadable
                return _error_page(order, "data", form, error_page(error, DATA_FIELDS))
        await order.save_completion()
        return _redirect(order, "/order")


def _error_page(order: Order, name: str, form: dict[str, str], page: Form | Waiting | Ask) -> PageResponse:
    logger.warning("entry %s: %s", page.entry, page.error)  # not the cookie's value
    if isinstance(page, Form):
        is_needed = page.additional_data_needed or "residence" in form
        return _render(order, name, page.status, form, problems=page.problems, additional=is_needed)
    repeat = ("/pay" if name == "loan" else "/complete") if isinstance(page, Waiting) else None
    return _render(order, "message", page.status, form, message=page, repeat=repeat)


def _headers(order: Order) -> dict[str, str]:
    cookie = f"order={order.cookie}; Path=/; HttpOnly; SameSite=Lax"  # add "; Secure" with HTTPS
    return {"Set-Cookie": cookie, "Cache-Control": "no-store"}


def _render(
    order: Order, name: str, status: int = 200, form: Mapping[str, str] | None = None, **values: object
) -> PageResponse:
    shown = {"page": name, "cart": CART, "form": form or {}, "problems": {}, **values}
    html = PAGES.get_template("shop.html").render(shown)
    return PageResponse(status, {**_headers(order), "Content-Type": "text/html; charset=utf-8"}, html)


def _redirect(order: Order, url: str) -> PageResponse:
    return PageResponse(303, {**_headers(order), "Location": url})
