"""The shop behind each of the five pages: what it asks of the service, and what the shopper gets to see."""

import asyncio
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

Form: TypeAlias = Mapping[str, str]

_LONGEST_NUMBER = 20  # digits: of thousands, Python makes no number
CART = {"Bicycle": 43_500, "Bicycle bell": 1_500}  # euro cents
PAGES = Environment(autoescape=True, loader=FileSystemLoader(Path(__file__).parent))


@define
class Order:
    """A shopper's order; a real shop has it in its database."""

    number: str = Factory(secrets.token_urlsafe)  # stands in the shopper's cookie: not to be guessed
    fiscal_code: str = field(default="", repr=False)
    additional_data_needed: bool = False
    decision: Decision | None = field(default=None, repr=False)
    has_documents: bool = False
    is_completed: bool = False
    turn: asyncio.Lock = Factory(asyncio.Lock)  # a second click waits for the first


@frozen
class Answer:
    """What goes back to the browser, whichever framework sends it."""

    status: int
    headers: dict[str, str] = field(repr=False)
    html: str = field(default="", repr=False)


class Checkout:
    """The shop's four pages. A loan is asked for once, whoever clicks, reloads or goes away."""

    def __init__(self, client: LoanClient) -> None:
        self._client = client
        self._orders: dict[str, Order] = {}

    def cart(self, number: str | None) -> Answer:
        """What is in the cart, and the form for the loan."""
        order = self._order(number)
        return _page(order, "loan") if order.decision is None else _redirect(order, "/back")

    async def pay(self, number: str | None, form: Form) -> Answer:
        """Ask for the loan, and send the shopper on to the service's web application."""
        order = self._order(number)
        try:
            async with order.turn:
                if order.decision is None:
                    order.decision = await self._decision(order, form)
        except LoanError as error:
            return _trouble(order, "loan", form, error)
        match order.decision:
            case Approved(redirect_url=str(url)):
                return _redirect(order, url)  # it holds a token: nobody logs it
            case Approved() | Refused():
                return _redirect(order, "/back")

    async def _decision(self, order: Order, form: Form) -> Decision:
        code = form.get("fiscal_code", "").strip().upper()
        request = _request(form)
        if order.fiscal_code != code:
            if problems := self._client.check(code, request):
                raise InvalidRequestError(problems)  # nothing is created for a form that has to be mended
            with suppress(AlreadyEvaluatedError):  # then the ledger has the decision
                created = await self._client.create_request({"fiscalCode": code})
                # spec §4.3: the shape of the response is open, so it need not be an object
                asked = created.get("additionalDataNeeded") if isinstance(created, Mapping) else None
                order.additional_data_needed = asked is True
            order.fiscal_code = code
        needed = order.additional_data_needed
        try:
            return await self._client.approve(code, request, additional_data_needed=needed)
        except DecisionNotRecordedError as error:
            return error.decision  # the ledger's disk is full, for one: nothing that a shopper has to know

    def back(self, number: str | None) -> Answer:
        """Where the order stands; also where the web application leads back to."""
        order = self._order(number)
        match order.decision:
            case None:
                return _redirect(order, "/")
            case Refused():
                return _page(order, "refused")
            case Approved():
                return _page(order, "completed" if order.is_completed else "data")

    async def complete(self, number: str | None, form: Form) -> Answer:
        """Complete the shopper's data by interface; a shop whose shoppers do that elsewhere leaves it out."""
        order = self._order(number)
        if not isinstance(order.decision, Approved):
            return _redirect(order, "/")
        data = _user_data(form)
        try:
            async with order.turn:
                if not order.is_completed:
                    if problems := self._client.check(order.fiscal_code, data):
                        raise InvalidRequestError(problems)
                    if not order.has_documents:  # their shape is between the shop and the service
                        scans = {"front": form.get("front", ""), "back": form.get("back", "")}
                        await self._client.upload_documents(order.fiscal_code, scans)
                        order.has_documents = True
                    await self._completed(order.fiscal_code, data)
                    order.is_completed = True
        except LoanError as error:
            return _trouble(order, "data", form, error)
        return _redirect(order, "/back")

    async def _completed(self, fiscal_code: str, data: UserData) -> None:
        try:
            await self._client.complete(fiscal_code, data)
        except UnexpectedResponseError as error:
            if error.outcome != "done":  # the data are saved, and only the response cannot be read
                raise

    def _order(self, number: str | None) -> Order:
        order = self._orders.get(number or "") or Order()
        return self._orders.setdefault(order.number, order)


def _trouble(order: Order, page: str, form: Form, error: LoanError) -> Answer:
    is_approval = getattr(error, "operation", "") == "approve"
    if is_approval and error.outcome not in ("not_sent", "not_evaluated"):
        return _page(order, "unknown", 202)  # the service may have decided
    match error:
        case UserNotFoundError() | InvalidFiscalCodeError():
            return _page(order, page, 422, form, [Problem("fiscal_code", "fiscalCode", "is not known")])
        case InvalidRequestError() | RejectedError():
            return _page(order, page, 422, form, error.problems)
        case _ if error.repeatable or error.outcome == "unknown":
            return _page(order, "later", 503)
        case _:
            return _page(order, "elsewhere", 503)  # report it to the shop's staff


def _cookie(order: Order) -> dict[str, str]:
    cookie = f"order={order.number}; Path=/; HttpOnly; SameSite=Lax"  # with HTTPS: Secure, too
    return {"Set-Cookie": cookie, "Cache-Control": "no-store"}


def _page(
    order: Order, page: str, status: int = 200, form: Form | None = None, problems: Sequence[Problem] = ()
) -> Answer:
    html = PAGES.get_template("shop.html").render(
        page=page, order=order, cart=CART, total=sum(CART.values()), form=form or {}, problems=problems
    )
    return Answer(status, {**_cookie(order), "Content-Type": "text/html; charset=utf-8"}, html)


def _redirect(order: Order, url: str) -> Answer:
    return Answer(303, {**_cookie(order), "Location": url})


def _request(form: Form) -> ApprovalRequest:
    names = ["email", "first_name", "last_name", "mobile_phone", "city", "address", "province"]
    names += ["postal_code", "street_number", "citizenship"]
    typed: dict[str, Any] = {name: form.get(name, "").strip() for name in names}
    typed["instalments"] = _whole(form.get("instalments", ""))
    return ApprovalRequest(amount=sum(CART.values()), additional=_additional(form), **typed)


def _additional(form: Form) -> AdditionalData | None:
    if "residence" not in form:  # the block is shown when the service asks for it
        return None
    names = ("residence", "educational_qualification", "children", "salary_type")
    typed: dict[str, Any] = {name: form.get(name, "") for name in names}
    typed["residence_start_date"] = _day(form.get("residence_start_date", ""))
    typed["salary"] = _whole(form.get("salary", ""))  # whole euros
    return AdditionalData(**typed)


def _user_data(form: Form) -> UserData:
    typed: dict[str, Any] = {name: form.get(name, "") for name in ("document_type", "document_code")}
    for name in ("document_issue_date", "document_expiration_date"):
        typed[name] = _day(form.get(name, ""))
    for name in ("politically_exposed", "us_person", "marketing"):
        typed[name] = name in form  # a box that is not ticked is not sent
    return UserData(document_city=form.get("document_city", ""), **typed)


def _whole(text: str) -> int | str:
    """A number, or what was typed instead: the client says at its field what is wrong with it."""
    is_number = text.isascii() and text.isdecimal() and len(text) < _LONGEST_NUMBER
    return int(text) if is_number else text


def _day(text: str) -> date | str:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return text
