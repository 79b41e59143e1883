"""The checkout of the example shops: loan requests and HTML pages, independent of the web framework."""

import asyncio
import os
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any, TypeAlias

from attrs import Factory, define, field, frozen
from jinja2 import Environment, FileSystemLoader

from loanasync import (
    AdditionalData,
    AlreadyEvaluatedError,
    ApprovalRequest,
    Approved,
    Decision,
    DecisionNotRecordedError,
    InvalidFiscalCodeError,
    InvalidRequestError,
    LoanClient,
    LoanError,
    Problem,
    Refused,
    RejectedError,
    UnexpectedResponseError,
    UserData,
    UserNotFoundError,
)
from loanasync.ledger import LedgerPolicy, SqliteLedger

Form: TypeAlias = Mapping[str, str]

_MAX_DIGITS = 20  # int() raises ValueError for thousands of digits
NOT_KNOWN = Problem("fiscal_code", "fiscalCode", "is not known", "fiscal_code.user_not_found")
CART = {"Bicycle": 43_500, "Bicycle bell": 1_500}  # euro cents
PAGES = Environment(autoescape=True, loader=FileSystemLoader(Path(__file__).parent))


@define
class Order:
    """A shopper's order. A real shop keeps it in its database."""

    number: str = Factory(secrets.token_urlsafe)  # the cookie's value: must be unguessable
    fiscal_code: str = field(default="", repr=False)
    additional_data_needed: bool = False
    decision: Decision | None = field(default=None, repr=False)
    has_documents: bool = False
    is_completed: bool = False
    lock: asyncio.Lock = Factory(asyncio.Lock)  # a second click waits for the first


@frozen
class PageResponse:
    """An HTTP response in a form that each framework can send."""

    status: int
    headers: dict[str, str] = field(repr=False)
    html: str = field(default="", repr=False)


def open_client() -> LoanClient:
    """Return a client with a ledger, configured by environment variables."""
    key = os.environ.get("LOANASYNC_LEDGER_KEY")  # set it in production
    policy = LedgerPolicy(key=key.encode()) if key else None
    return LoanClient.from_env(ledger=SqliteLedger("decisions.db"), ledger_policy=policy)


class Checkout:
    """The handlers of the shop's four routes. Double clicks and reloads send one approval."""

    def __init__(self, client: LoanClient) -> None:
        self._client = client
        self._orders: dict[str, Order] = {}

    def cart(self, number: str | None) -> PageResponse:
        """Show the cart and the loan form."""
        order = self._order(number)
        return _render(order, "loan") if order.decision is None else _redirect(order, "/order")

    async def pay(self, number: str | None, form: Form) -> PageResponse:
        """Request approval and redirect the shopper to the service's web application."""
        order = self._order(number)
        try:
            async with order.lock:
                if order.decision is None:
                    order.decision = await self._request_approval(order, form)
        except LoanError as error:
            return _error_page(order, "loan", form, error)
        match order.decision:
            case Approved(redirect_url=str(url)):
                return _redirect(order, url)  # contains a token: do not log it
            case Approved() | Refused():
                return _redirect(order, "/order")

    async def _request_approval(self, order: Order, form: Form) -> Decision:
        code = form.get("fiscal_code", "").strip().upper()
        request = _approval_request(form)
        if order.fiscal_code != code:
            if problems := self._client.check(code, request):
                raise InvalidRequestError(problems)  # create no request for an invalid form
            with suppress(AlreadyEvaluatedError):  # evaluated before: the ledger has the decision
                created = await self._client.create_request({"fiscalCode": code})
                # spec §4.3: the shape of the response is open, so it need not be an object
                needed = created.get("additionalDataNeeded") if isinstance(created, Mapping) else None
                order.additional_data_needed = needed is True
            order.fiscal_code = code
        try:
            return await self._client.approve(
                code, request, additional_data_needed=order.additional_data_needed
            )
        except DecisionNotRecordedError as error:
            return error.decision  # for example, the ledger's disk is full; the decision stands

    def order_status(self, number: str | None) -> PageResponse:
        """Show the state of the order. The service's web application redirects here."""
        order = self._order(number)
        match order.decision:
            case None:
                return _redirect(order, "/")
            case Refused():
                return _render(order, "refused")
            case Approved():
                return _render(order, "completed" if order.is_completed else "data")

    async def complete(self, number: str | None, form: Form) -> PageResponse:
        """Send the shopper's documents and data. Omit this if the web application does it."""
        order = self._order(number)
        if not isinstance(order.decision, Approved):
            return _redirect(order, "/")
        data = _user_data(form)
        try:
            async with order.lock:
                if not order.is_completed:
                    if problems := self._client.check(order.fiscal_code, data):
                        raise InvalidRequestError(problems)
                    if not order.has_documents:  # spec §4.3: the shape of the documents is open
                        scans = {"front": form.get("front", ""), "back": form.get("back", "")}
                        await self._client.upload_documents(order.fiscal_code, scans)
                        order.has_documents = True
                    await self._complete_data(order.fiscal_code, data)
                    order.is_completed = True
        except LoanError as error:
            return _error_page(order, "data", form, error)
        return _redirect(order, "/order")

    async def _complete_data(self, fiscal_code: str, data: UserData) -> None:
        try:
            await self._client.complete(fiscal_code, data)
        except UnexpectedResponseError as error:
            if error.outcome != "done":  # "done": the data were saved, only the response is unreadable
                raise

    def _order(self, number: str | None) -> Order:
        order = self._orders.get(number or "") or Order()
        return self._orders.setdefault(order.number, order)


def _error_page(order: Order, page: str, form: Form, error: LoanError) -> PageResponse:
    is_approval = getattr(error, "operation", "") == "approve"
    if is_approval and error.outcome not in ("not_sent", "not_evaluated"):
        return _render(order, "unknown", 202)  # the service may have decided
    match error:
        case UserNotFoundError() | InvalidFiscalCodeError():
            return _render(order, page, 422, form, [NOT_KNOWN])
        case InvalidRequestError() | RejectedError():
            return _render(order, page, 422, form, error.problems)
        case _ if error.repeatable or error.outcome == "unknown":
            return _render(order, "retry_later", 503)
        case _:
            return _render(order, "unavailable", 503)  # alert the shop's staff


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
