"""The checkout of the example shops: loan requests and HTML pages, independent of the web framework."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

from attrs import field, frozen
from jinja2 import Environment, FileSystemLoader
from shop_orders import Order, Orders

from loanasync import (
    AdditionalData,
    AlreadyEvaluatedError,
    ApprovalRequest,
    Approved,
    ConnectError,
    Decision,
    DecisionNotRecordedError,
    InFlightError,
    InvalidFiscalCodeError,
    InvalidRequestError,
    LoanClient,
    LoanError,
    PayloadMismatchError,
    Problem,
    RejectedError,
    ServiceError,
    Timeout,
    UnexpectedResponseError,
    UserData,
    UserNotFoundError,
)
from loanasync.ledger import SqliteLedger

Form: TypeAlias = Mapping[str, str]

# A shopper waits at most 20 seconds for a page, because each page makes one call of each kind at most.
APPROVAL = Timeout(total=15, attempt=14, connect=2)  # approvals and uploads
SHORT = Timeout(total=5, attempt=4, connect=2)  # a lost response to these calls loses no decision
_MAX_DIGITS = 20  # int() raises ValueError for thousands of digits
NOT_KNOWN = Problem("fiscal_code", "fiscalCode", "is not known", "fiscal_code.user_not_found")
CART = {"Bicycle": 43_500, "Bicycle bell": 1_500}  # euro cents
PAGES = Environment(autoescape=True, loader=FileSystemLoader(Path(__file__).parent))


@frozen
class PageResponse:
    """An HTTP response in a form that each framework can send."""

    status: int
    headers: dict[str, str] = field(repr=False)
    html: str = field(default="", repr=False)


def open_client() -> LoanClient:
    """Return a client with a ledger, configured by environment variables.

    Without LOANASYNC_LEDGER, the first client creates a file. A ledger that the variable names must exist.
    """
    ledger = None if "LOANASYNC_LEDGER" in os.environ else SqliteLedger("decisions.db")
    return LoanClient.from_env(ledger=ledger, timeout=APPROVAL)


def open_orders() -> Orders:
    """Return the orders, in a file of the working directory."""
    return Orders(Path("orders.db"))


class Checkout:
    """The handlers of the shop's four routes. Double clicks and reloads send one approval."""

    def __init__(self, client: LoanClient, orders: Orders) -> None:
        self._client = client
        self._orders = orders
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def cart(self, number: str | None) -> PageResponse:
        """Show the cart and the loan form."""
        order = self._orders.get(number)
        return _render(order, "loan") if order.state == "undecided" else _redirect(order, "/order")

    async def pay(self, number: str | None, form: Form) -> PageResponse:
        """Request approval and redirect the shopper to the service's web application."""
        order = self._orders.get(number)
        try:
            async with self._lock(order):
                order = self._orders.get(order.number)
                if order.state == "undecided":
                    decision = await self._request_approval(order, form)
                    if decision is None:
                        return _render(order, "other_data", 409, form)
                    order.state = "approved" if decision.approved else "refused"
                    order.redirect_url = decision.redirect_url if isinstance(decision, Approved) else None
                    self._orders.decide(order)
        except LoanError as error:
            return _error_page(order, "loan", form, error)
        return _redirect(order, order.redirect_url or "/order")  # contains a token: do not log it

    def _lock(self, order: Order) -> asyncio.Lock:
        """Return the order's lock: a second click that reaches this worker waits for the first."""
        return self._locks.setdefault(order.number, asyncio.Lock())

    async def _request_approval(self, order: Order, form: Form) -> Decision | None:
        """Return the decision, or None if another tab applied for this order with another fiscal code."""
        code = form.get("fiscal_code", "").strip().upper()
        request = _approval_request(form)
        if not order.fiscal_code:
            if problems := self._client.check(code, request):
                raise InvalidRequestError(problems)  # create no request for an invalid form
            with suppress(AlreadyEvaluatedError):  # evaluated before: the ledger has the decision
                created = await self._client.create_request({"fiscalCode": code}, timeout=SHORT)
                # spec §4.3: the shape of the response is open, so it need not be an object
                needed = created.get("additionalDataNeeded") if isinstance(created, Mapping) else None
                order.additional_data_needed = needed is True
            order.fiscal_code = code
        if order.fiscal_code != code or not self._orders.claim(order):
            return None
        try:
            return await self._client.approve(
                code, request, additional_data_needed=order.additional_data_needed
            )
        except DecisionNotRecordedError as error:
            return error.decision  # for example, the ledger's disk is full; the decision stands
        except (ConnectError, ServiceError) as error:
            # Other errors without an evaluation may arise while another worker's request is in progress.
            if error.outcome in ("not_sent", "not_evaluated"):
                self._orders.release(order.number, code)
            raise

    def order_status(self, number: str | None) -> PageResponse:
        """Show the state of the order. The service's web application redirects here."""
        order = self._orders.get(number)
        match order.state:
            case "undecided":
                return _redirect(order, "/")
            case "refused":
                return _render(order, "refused")
            case "approved":
                return _render(order, "completed" if order.is_completed else "data")

    async def complete(self, number: str | None, form: Form) -> PageResponse:
        """Send the shopper's documents and data. Omit this if the web application does it."""
        order = self._orders.get(number)
        if order.state != "approved":
            return _redirect(order, "/")
        data = _user_data(form)
        try:
            async with self._lock(order):
                order = self._orders.get(order.number)
                if not order.is_completed:
                    if problems := self._client.check(order.fiscal_code, data):
                        raise InvalidRequestError(problems)
                    if not order.has_documents:  # spec §4.3: the shape of the documents is open
                        scans = {"front": form.get("front", ""), "back": form.get("back", "")}
                        await self._client.upload_documents(order.fiscal_code, scans)
                        order.has_documents = True
                        self._orders.save_progress(order)
                    await self._complete_data(order.fiscal_code, data)
                    order.is_completed = True
                    self._orders.save_progress(order)
        except LoanError as error:
            return _error_page(order, "data", form, error)
        return _redirect(order, "/order")

    async def _complete_data(self, fiscal_code: str, data: UserData) -> None:
        try:
            await self._client.complete(fiscal_code, data, timeout=SHORT)
        except UnexpectedResponseError as error:
            if error.outcome != "done":  # "done": the data were saved, only the response is unreadable
                raise


def _error_page(order: Order, page: str, form: Form, error: LoanError) -> PageResponse:
    match error:
        case InFlightError():  # another worker requests it, or was killed
            shown = "in_progress", 202
        case PayloadMismatchError(state="inflight" | "approved" | "refused"):
            shown = "other_data", 409
        case LoanError(outcome="unknown") if getattr(error, "operation", "") == "approve":
            shown = "unknown", 202  # the service may have decided
        case UserNotFoundError() | InvalidFiscalCodeError():
            return _render(order, page, 422, form, [NOT_KNOWN])
        case InvalidRequestError() | RejectedError():
            return _render(order, page, 422, form, error.problems)
        case _ if error.repeatable or error.outcome == "unknown":
            shown = "retry_later", 503
        case _:
            shown = "unavailable", 503  # alert the shop's staff
    return _render(order, *shown, form)


def _headers(order: Order) -> dict[str, str]:
    cookie = f"order={order.number}; Path=/; HttpOnly; SameSite=Lax"  # add "; Secure" with HTTPS
    return {"Set-Cookie": cookie, "Cache-Control": "no-store"}


def _render(
    order: Order, page: str, status: int = 200, form: Form | None = None, problems: Sequence[Problem] = ()
) -> PageResponse:
    html = PAGES.get_template("shop.html").render(
        page=page, order=order, cart=CART, total=sum(CART.values()), form=form or {}, problems=problems
    )
    return PageResponse(status, {**_headers(order), "Content-Type": "text/html; charset=utf-8"}, html)


def _redirect(order: Order, url: str) -> PageResponse:
    return PageResponse(303, {**_headers(order), "Location": url})


def _approval_request(form: Form) -> ApprovalRequest:
    names = ["email", "first_name", "last_name", "mobile_phone", "city", "address", "province"]
    names += ["postal_code", "street_number", "citizenship"]
    fields: dict[str, Any] = {name: form.get(name, "").strip() for name in names}
    fields["instalments"] = _int_or_text(form.get("instalments", ""))
    return ApprovalRequest(amount=sum(CART.values()), additional=_additional(form), **fields)


def _additional(form: Form) -> AdditionalData | None:
    if "residence" not in form:  # the form shows this block only if the service requires it
        return None
    names = ("residence", "educational_qualification", "children", "salary_type")
    fields: dict[str, Any] = {name: form.get(name, "") for name in names}
    fields["residence_start_date"] = _date_or_text(form.get("residence_start_date", ""))
    fields["salary"] = _int_or_text(form.get("salary", ""))  # whole euros
    return AdditionalData(**fields)


def _user_data(form: Form) -> UserData:
    fields: dict[str, Any] = {name: form.get(name, "") for name in ("document_type", "document_code")}
    for name in ("document_issue_date", "document_expiration_date"):
        fields[name] = _date_or_text(form.get(name, ""))
    for name in ("politically_exposed", "us_person", "marketing"):
        fields[name] = name in form  # browsers do not send an unchecked box
    return UserData(document_city=form.get("document_city", ""), **fields)


def _int_or_text(text: str) -> int | str:
    """Return the number, or the text unchanged so that `client.check` reports the field."""
    is_number = text.isascii() and text.isdecimal() and len(text) < _MAX_DIGITS
    return int(text) if is_number else text


def _date_or_text(text: str) -> date | str:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return text
