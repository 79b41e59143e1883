"""The loan step of a web checkout: create the request, request approval, and return the page to show.

::

    match await checkout(client, code, request, order=order, payload=..., fields=..., approved_url="/order"):
        case Redirect(url=url): ...           # send the shopper to this URL, and never log it
        case Refused(): ...                   # final: offer another way to pay
        case Paid(): ...                      # otherwise, by a method of your shop: your page of the order
        case Form(problems=problems): ...     # the form again, with the problems beside its fields
        case Waiting() as page: ...           # page.text("it"), with a button that sends the same form
        case Ask() as page: ...               # page.text("it"), without a button; the staff see page.entry

`settle` returns the page of an order without the form: for its start page, a cron job or your staff. Both
call only public methods of the client. Use these directly if your checkout differs.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from logging import ERROR, WARNING
from secrets import token_hex
from typing import TypeAlias

from attrs import Factory, define, evolve, field, fields_dict, frozen

from loanasync._client import LoanClient
from loanasync._models.classes import name_by_package
from loanasync._models.decisions import OTHER_ORDER, Approved, Decision, Problems, Refused
from loanasync._models.masking import JSON, AnyJSON, mask
from loanasync._models.requests import AdditionalData, ApprovalRequest
from loanasync._models.texts import Advice, advice_text
from loanasync._order import FREE, Loan, Order, OrderError, change_loan, change_or_log, described, read_loan
from loanasync._protocol import rules
from loanasync._settings import Timeout
from loanasync._telemetry.log import log
from loanasync.errors import (
    AlreadyEvaluatedError,
    DeadlineExceededError,
    DecisionForgottenError,
    DecisionNotRecordedError,
    InFlightError,
    InvalidRequestError,
    LedgerError,
    LoanError,
    OutcomeUnknownError,
    PayloadMismatchError,
)


@frozen(kw_only=True)
class Redirect:
    """The loan is approved: send the shopper to `url`, which may contain a token. Never log it.

    Args:
        url: URL of the service's web application (spec §1.3), or the ``approved_url`` of `checkout`.
        decision: The decision.

    Example:
        >>> from loanasync.checkout import Redirect
        >>> meta = Meta(status=201, attempts=1, elapsed=0.2)
        >>> Redirect(url="https://loans.example.com/#secret", decision=Approved(meta=meta)).entry is None
        True
    """

    url: str = field(repr=mask)
    decision: Approved

    @property
    def entry(self) -> str | None:
        """Key of the entry in the ledger."""
        return self.decision.meta.entry


@frozen
class Paid:
    """The order was paid by a method of your shop, so nothing was sent. Show your page of the order.

    Example:
        >>> _ = run(order.change(("free", ""), ("paid", "")))
        >>> run(settle(client, order))
        Paid()
    """


_STATUS: Mapping[Advice, int] = {
    "correct_form": 422,
    "other_data": 409,
    "other_order": 409,
    "try_later": 503,
    "fix_setup": 503,
}


@frozen(kw_only=True)
class _ErrorPage:
    """A page after an error."""

    error: LoanError
    advice: Advice = field(default=Factory(lambda self: self.error.advice, takes_self=True))

    @property
    def entry(self) -> str | None:
        """Key of the entry in the ledger."""
        return self.error.entry

    @property
    def status(self) -> int:
        """HTTP status of the page."""
        return _STATUS.get(self.advice, 202)

    def text(self, language: str = "en") -> str:
        """Return a text for the shopper, in ``en`` or ``it``."""
        return advice_text(self.advice, self.error.operation, language)


@frozen(kw_only=True)
class Form(_ErrorPage):
    """Show the form again. This click evaluated nobody.

    Args:
        error: The error. Log it for the shop's staff.
        advice: ``correct_form``.
        problems: The problems to show beside each field, by its name.
        for_the_shop: Problems that no field shows. A warning with them was logged.
        additional_data_needed: True if the form must also ask for the additional data (spec §2.1).

    Example:
        >>> from loanasync.checkout import Form
        >>> problems = client.check(fiscal_code, ApprovalRequest.from_form({}, amount=45_000))
        >>> beside, others = problems.for_fields(["email"])
        >>> Form(error=InvalidRequestError(problems), problems=beside, for_the_shop=others).text("it")
        'Correggere i dati inseriti.'
    """

    problems: Mapping[str, Problems]
    for_the_shop: Problems
    additional_data_needed: bool = False


class Waiting(_ErrorPage):
    """Show `text` and a button that sends the same form. This sends no second approval.

    The approval is still being decided, or was not sent. `advice` is ``wait`` or ``try_later``.

    Example:
        >>> from loanasync.checkout import Waiting
        >>> Waiting(error=InFlightError("approve", "c0ffee")).text()
        'Your request is still being decided. Please check again in a minute.'
    """


class Ask(_ErrorPage):
    """Show `text` without a button, and report `error` and `entry` to the shop's staff.

    The staff must act, except if `advice` is ``other_data`` or ``other_order``.

    Example:
        >>> from loanasync.checkout import Ask
        >>> Ask(error=OutcomeUnknownError("approve", "c0ffee", "unknown", "")).entry
        'c0ffee'
    """


Page: TypeAlias = Redirect | Refused | Paid | Form | Waiting | Ask
"""Result of `checkout` and `settle`: the page to show."""


_ADDITIONAL = frozenset(fields_dict(AdditionalData))
_SLACK = 30.0  # seconds for a slow database, and again for different clocks


async def checkout(
    client: LoanClient,
    fiscal_code: str,
    request: ApprovalRequest,
    *,
    order: Order,
    payload: Mapping[str, JSON],
    fields: Collection[str],
    approved_url: str,
    additional_data_needed: Callable[[AnyJSON], bool] = lambda _: False,
    already_created: Callable[[LoanError], bool] = lambda error: isinstance(error, AlreadyEvaluatedError),
    create_timeout: Timeout | None = None,
) -> Page:
    """Create a request, request its approval, and return the page to show.

    Call it for each click, such as a double click or a reload: the approval is sent once, with the number of
    the order as `order_id`. A stored decision is returned whatever the shopper has typed. An invalid request
    is not created. A decision about another amount is not stored; the page is `Ask`, and an error is logged.
    Errors of your functions are raised, and those of the order until it is held. Later ones are logged, since
    the page is known. If the shopper leaves and the caller is cancelled, an approval that was begun ends in
    the background, and its decision is stored.

    Args:
        client: The client, with a ledger if your shop has several workers.
        fiscal_code: Fiscal code of the customer, as typed.
        request: Data of the order and the customer, such as from `ApprovalRequest.from_form`.
        order: The order in your database. It must be the order of the shopper's own session.
        payload: The body of `LoanClient.create_request`. Its members are an agreement with the service.
        fields: Names of the fields that your form can show, in Python or in the specification.
        approved_url: Your page for an approved order. It is used if the response has no URL.
        additional_data_needed: Returns True if the response of the creation asks for the additional data. The
            specification does not show this response.
        already_created: Returns True if an error of the creation means that the request exists already. By
            default, only `AlreadyEvaluatedError` does.
        create_timeout: Time limits of the creation instead of the client's.

    Raises:
        OrderError: A method of the order failed before the order was held.
        ValueError: The request has not the amount of the order, or its columns are not as `Order.change`
            wrote them.

    Example:
        >>> from loanasync.checkout import checkout
        >>> page = run(checkout(
        ...     client, fiscal_code, request, order=order, payload={"fiscalCode": fiscal_code},
        ...     fields=["fiscal_code", "email"], approved_url="/order",
        ... ))
        >>> type(page).__name__
        'Redirect'
    """
    click = _Click(
        client, fiscal_code, request, order, payload, additional_data_needed, already_created, create_timeout
    )
    del fiscal_code, request, payload  # personal: must not be in a traceback
    loan = await read_loan(order)
    if (page := _page_of(loan, order, approved_url)) is not None:
        return page
    if problems := client.check(click.fiscal_code, click.request):  # first: a database may refuse such a code
        invalid = InvalidRequestError(problems, "approve")
        page = error_page(invalid, fields)
        # A shopper who cannot correct it must not pay otherwise, if the loan may be approved.
        return _page(invalid, loan.advice) if isinstance(page, Ask) and loan.state == "held" else page
    if click.request.amount != order.amount:
        raise ValueError("the request must have the amount of the order: pass amount=order.amount")
    deciding = asyncio.create_task(_decide(click, fields, approved_url))
    client._flights.follow(deciding)  # noqa: SLF001  (of this package)
    try:
        return await asyncio.shield(deciding)
    except asyncio.CancelledError:  # the shopper has left
        click.has_left = True
        deciding.add_done_callback(_report)
        raise


async def settle(client: LoanClient, order: Order, *, approved_url: str = "") -> Page | None:
    """Bring an order up to date from the ledger. Return the page to show, or None if the order is free.

    It needs no form, sends nothing, and can be repeated. It stores a decision that the order lacks, because
    the shopper has left, `Order.change` failed, a worker was killed, or your staff have resolved the entry.
    It frees the order if the ledger knows that nobody was evaluated, and if no click can still begin an
    approval. Without a ledger it frees nothing. Call it for the page of an order without a form, and from
    cron for all orders in the state ``held``. Errors of `Order.change` are logged.

    Args:
        client: A client with the shop's ledger.
        order: The order in your database.
        approved_url: The argument of `checkout`.

    Raises:
        OrderError: `Order.loan` failed.
        ValueError: The columns of the order are not as `Order.change` wrote them.

    Example:
        >>> from loanasync.checkout import settle
        >>> print(run(settle(client, order)))
        None
    """
    loan = await read_loan(order)
    if loan.state != "held":
        return _page_of(loan, order, approved_url)
    now = time.time()  # before the ledger is read: this process may be stopped meanwhile
    try:
        known = await client.known(loan.code, order_id=order.number)
    except LoanError as error:  # the order keeps its page
        return _page(error.with_traceback(None), loan.advice)
    entry, state = known.entry or "", "released" if known.note == OTHER_ORDER else known.state
    if known.decision is not None:
        return await _store(order, loan, known.decision, approved_url)
    match state:
        case "none" | "released" | "inflight":
            is_over = max(loan.holds.values(), default=0) < now and state != "inflight"
            is_free = client.ledger is not None and is_over
            new = await change_or_log(order, entry, lambda old: FREE if is_free and old == loan else old)
            return None if new == FREE else Waiting(error=InFlightError("approve", entry))
        case "unknown" | "lost" | "held":
            failure: LoanError = OutcomeUnknownError("approve", entry, state, known.note)
        case _:
            outcome = "unknown" if state == "erased" else state
            failure = DecisionForgottenError("approve", entry, outcome)
    page = _page(failure, failure.advice)
    await change_or_log(order, entry, lambda old: old.noted(entry, page.advice) if old == loan else old)
    return page


def _report(deciding: "asyncio.Task[Page]") -> None:
    """Log the error of a click whose shopper has left. Its text may contain personal values."""
    if not deciding.cancelled() and (error := deciding.exception()) is not None:
        log(ERROR, "checkout: failed after the shopper had left: %s", described(error))


async def _decide(click: "_Click", fields: Collection[str], approved_url: str) -> Page:
    """Hold and decide an order, then store its decision or take back the hold.

    No method of the order is cancelled if the shopper leaves.
    """
    order, unwritten = click.order, None
    loan = await change_loan(order, click.held)
    if click.hold not in loan.holds:
        shown = _page_of(loan, order, approved_url)
        return click.page_of(loan) if shown is None else shown
    try:
        decision = await click.decide(has_others=len(loan.holds) > 1)
    except DecisionNotRecordedError as error:  # the ledger has failed; the decision stands
        decision, unwritten = error.decision, error
    except LoanError as error:
        page = click.page_after(error.with_traceback(None), loan, fields)
        if click.may_evaluate:
            entry, advice = page.entry or "", page.advice
            await change_or_log(
                order, entry, lambda old: old.noted(entry, advice) if click.hold in old.holds else old
            )
        return page
    finally:
        if not click.may_evaluate:
            await change_or_log(order, "", lambda old: old.without(click.hold))
    shown = await _store(order, loan, decision, approved_url)
    if unwritten is not None:
        log(ERROR, "checkout: %s", unwritten)
    return shown


async def _store(order: Order, loan: Loan, decision: Decision, approved_url: str) -> Page:
    """Store a decision with the order for which it was requested, if its amount and customer are the same."""
    entry, state = decision.meta.entry or "", "approved" if decision.approved else "refused"
    new = evolve(loan, state=state, holds={}, entry=entry, decision=decision.to_dict())

    def decided(old: Loan) -> Loan:
        is_same = (old.state, old.code, old.amount) == ("held", loan.code, loan.amount)
        return new if old == FREE or is_same else old

    if order.amount == loan.amount and decision.amount in (None, loan.amount):
        if (stored := await change_or_log(order, entry, decided)) is None:
            return _decided(decision, approved_url)  # an error was logged; the decision stands
        if stored.decision is not None and (page := _page_of(stored, order, approved_url)) is not None:
            return page
    await change_or_log(
        order, entry, lambda old: old.noted(entry, "already_decided") if old.code == loan.code else old
    )
    return _not_stored(entry, state)


def _not_stored(entry: str, state: str) -> Ask:
    text = "the order was paid, or has another amount or customer: ask the service about this loan"
    log(ERROR, "checkout, entry %s: %s, but %s", entry or "-", state, text)
    return Ask(error=PayloadMismatchError("approve", entry, state), advice="already_decided")


def _page_of(loan: Loan, order: Order, approved_url: str) -> Page | None:
    """Return the page of an order that is decided or paid."""
    if loan.state == "paid":
        return Paid()
    if loan.decision is None:
        return None
    if loan.state == "approved" and loan.amount != order.amount:  # no loan pays what the shop delivers
        return _not_stored(loan.entry, loan.state)
    kind = Approved if loan.state == "approved" else Refused
    return _decided(kind.from_dict(loan.decision), approved_url)


@define
class _Click:
    """The data of a click, masked in tracebacks, and what the click has learnt."""

    client: LoanClient
    fiscal_code: str = field(repr=mask)
    request: ApprovalRequest
    order: Order = field(repr=mask)
    payload: Mapping[str, JSON] = field(repr=mask)
    additional_data_needed: Callable[[AnyJSON], bool]
    already_created: Callable[[LoanError], bool]
    create_timeout: Timeout | None
    hold: str = field(factory=partial(token_hex, 4))  # of this click
    begin_until: float = 0.0  # the approval is not sent later than at this time of day
    needs_data: bool = False
    entry: str | None = None  # of this order in the ledger
    may_evaluate: bool = False
    has_left: bool = False  # the shopper

    def held(self, old: Loan) -> Loan:
        """Return the order with the hold of this click; the same if it is decided, or of another customer."""
        code, amount = rules.normalize_fiscal_code(self.fiscal_code), self.order.amount
        own = Loan("held", self.order.number, amount, code) if old == FREE else old
        if (own.state, own.code, own.amount) != ("held", code, amount):
            return old
        policy, limits = self.client.ledger_policy, self.client.timeout
        self.begin_until = time.time() + (self.create_timeout or limits).total + _SLACK
        until = self.begin_until + limits.longest + _SLACK + 2 * (policy.patience if policy else 0)
        return evolve(own, holds={**own.holds, self.hold: until})

    def page_of(self, loan: Loan) -> Ask | Waiting:
        """Return the page of an order that this click could not hold: nothing is sent."""
        if self.held(loan) == loan:  # another customer, or an earlier amount
            return Ask(error=PayloadMismatchError("approve", loan.entry, "inflight"))
        return Waiting(error=InFlightError("approve", ""), advice="try_later")  # the amount has changed

    def page_after(self, error: LoanError, loan: Loan, fields: Collection[str]) -> Form | Waiting | Ask:
        """Return the page after an error of this click, and note if it evaluated nobody."""
        is_final = getattr(error, "note", "") == OTHER_ORDER  # nobody evaluates this order
        is_earlier = isinstance(error, LedgerError) and not self._is_of_order(error, loan)
        self.may_evaluate &= not (is_final or is_earlier or error.outcome in ("not_sent", "not_evaluated"))
        is_of_ledger = error.operation in ("known", None)
        if len(loan.holds) > 1 and is_of_ledger:  # another click may have evaluated them
            return _page(error, loan.advice)
        if isinstance(error, DeadlineExceededError) and self.may_evaluate:
            return Waiting(error=error, advice="wait")  # the response is still awaited
        return error_page(error, fields, additional_data_needed=self.needs_data)

    def _is_of_order(self, error: LedgerError, loan: Loan) -> bool:
        """Return True if the error is an unknown outcome of this order, and no other click holds the order.

        Otherwise it is about an earlier click, which has its own hold, or about another order.
        """
        is_open = isinstance(error, OutcomeUnknownError | PayloadMismatchError) and error.outcome == "unknown"
        return is_open and error.entry == self.entry and len(loan.holds) == 1

    async def decide(self, *, has_others: bool) -> Decision:
        """Create the request, unless its approval is known, and return the decision.

        Without a ledger, send nothing if other clicks hold the order: another process, or this one before a
        restart, may have evaluated the customer.
        """
        # First: the page of a known approval must not depend on the creation, which may fail this time.
        known = await self.client.known(self.fiscal_code, order_id=self.order.number)
        self.entry = known.entry
        if known.state in ("none", "released"):
            if has_others and self.client.ledger is None:
                text = "checkout: nothing is sent: another click holds the order, and there is no ledger"
                log(WARNING, text)
                raise InFlightError("approve", "")
            self._stop_if_left()
            try:
                created = await self.client.create_request(self.payload, timeout=self.create_timeout)
                self.needs_data = self.additional_data_needed(created)
            except LoanError as error:
                if not self.already_created(error):
                    raise
        self._stop_if_left()
        if time.time() > self.begin_until:  # the process was stopped: `settle` may have freed the order
            raise DeadlineExceededError("approve", "TimeoutError", "not_sent", 0)
        self.may_evaluate = True
        return await self.client.approve(
            self.fiscal_code, self.request, additional_data_needed=self.needs_data, order_id=self.order.number
        )

    def _stop_if_left(self) -> None:
        if self.has_left:
            raise asyncio.CancelledError


def _decided(decision: Decision, approved_url: str) -> Redirect | Refused:
    if isinstance(decision, Refused):
        return decision
    return Redirect(url=decision.redirect_url or approved_url, decision=decision)


def error_page(
    error: LoanError, fields: Collection[str], *, additional_data_needed: bool = False
) -> Form | Waiting | Ask:
    """Return the page to show after an error of a call, such as `LoanClient.complete`.

    Args:
        error: The error.
        fields: Names of the fields that your form can show, in Python or in the specification.
        additional_data_needed: The attribute of `Form`.

    Example:
        >>> from loanasync.checkout import error_page
        >>> error_page(InFlightError("approve", "c0ffee"), ["email"]).text()
        'Your request is still being decided. Please check again in a minute.'
    """
    if error.advice == "correct_form":
        beside, others = Problems(getattr(error, "problems", ())).for_fields(fields)
        if others:
            shown = "; ".join(map(str, others))  # without personal values
            log(WARNING, "checkout, entry %s: the form has no field for: %s", error.entry or "-", shown)
        if beside:
            # The service may ask for them only in its response to the approval.
            asks = any(each.field in _ADDITIONAL for found in beside.values() for each in found)
            needed = additional_data_needed or asks
            return Form(error=error, problems=beside, for_the_shop=others, additional_data_needed=needed)
        return Ask(error=error, advice="fix_setup")  # the shopper cannot correct it
    return _page(error, error.advice)


def _page(error: LoanError, advice: Advice) -> Waiting | Ask:
    kind = Waiting if advice in ("wait", "try_later") else Ask
    return kind(error=error, advice=advice)


__all__ = ["Ask", "Form", "Order", "OrderError", "Page", "Paid", "Redirect", "Waiting"]
__all__ += ["checkout", "error_page", "settle"]

name_by_package(globals())
