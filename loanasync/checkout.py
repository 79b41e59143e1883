"""The loan step of a web checkout: create the request, request approval, and return the page to show.

::

    match await checkout(client, code, request, order=order, payload=..., fields=..., approved_url="/order"):
        case Redirect(url=url): ...           # send the shopper to this URL, and never log it
        case Refused(): ...                   # final: offer another way to pay
        case Form(problems=problems): ...     # the form again, with the problems beside its fields
        case Waiting() as page: ...           # page.text("it"), with a button that sends the same form
        case Ask() as page: ...               # page.text("it"), without a button; the staff see page.entry

It calls only public methods of the client. Use these directly if your checkout differs.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from logging import ERROR, WARNING
from typing import Any, Protocol, TypeAlias

from attrs import define, field, fields_dict, frozen

from loanasync._client import LoanClient
from loanasync._display.masking import JSON, AnyJSON, mask
from loanasync._display.texts import Advice, advice_text
from loanasync._log import log
from loanasync._models import AdditionalData, ApprovalRequest
from loanasync._public import name_by_package
from loanasync._results import Approved, Decision, Problems, Refused
from loanasync._settings import Timeout
from loanasync._validation import rules
from loanasync.errors import (
    AlreadyEvaluatedError,
    DeadlineExceededError,
    DecisionNotRecordedError,
    InFlightError,
    InvalidRequestError,
    LedgerError,
    LoanError,
    PayloadMismatchError,
)


class Order(Protocol):
    """Protocol of an order in your database, which all workers share. Each method is one statement.

    A click holds the order for its customer. `checkout` releases this hold if the click evaluated nobody. The
    hold of a killed worker stays. If the shopper leaves, the last methods run after the request has ended, so
    each method opens a new database connection.
    """

    @property
    def number(self) -> str:
        """Number of the order, the `order_id` of `LoanClient.approve`: not personal, and not the cookie."""

    async def decision(self) -> Mapping[str, Any] | None:
        """Return the decision that `save` stored, None before."""

    async def hold(self, fiscal_code: str, /) -> int:
        """Add a hold for a customer, and return the number of holds.

        The code has capital letters, and no spaces around it. Return 0 if another customer has a hold, or if
        the order was paid by another method. For example
        ``UPDATE orders SET code = :code, holds = holds + 1 WHERE number = :number AND NOT paid_by_card AND
        (holds = 0 OR code = :code) RETURNING holds``; without a row, return 0.
        """

    async def release(self) -> None:
        """Take back one hold. Never go below 0: your staff may have set the holds to 0."""

    async def save(self, entry: str, decision: Mapping[str, Any] | None, /) -> None:
        """Store the key of the ledger entry, for your staff, and the decision. Keep a stored decision.

        Args:
            entry: Key of the entry; empty without a ledger.
            decision: JSON values with personal data, or None after an error.
        """


@frozen(kw_only=True)
class Redirect:
    """The loan is approved: send the shopper to `url`, which may contain a token. Never log it.

    Args:
        url: URL of the service's web application (spec §1.3), or the ``approved_url`` of `checkout`.
        decision: The decision; ``decision.to_dict()`` stores it.

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


_STATUS: Mapping[Advice, int] = {
    "correct_form": 422,
    "wait": 202,
    "ask_service": 202,
    "already_decided": 202,
    "other_data": 409,
    "try_later": 503,
    "fix_setup": 503,
}


@frozen(kw_only=True)
class _ErrorPage:
    """A page after an error."""

    error: LoanError
    advice: Advice = field()

    @advice.default
    def _advice_of_error(self) -> Advice:
        return self.error.advice

    @property
    def entry(self) -> str | None:
        """Key of the entry in the ledger."""
        return self.error.entry

    @property
    def status(self) -> int:
        """HTTP status of the page."""
        return _STATUS[self.advice]

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

    The staff must act, except if `advice` is ``other_data``.

    Example:
        >>> from loanasync.checkout import Ask
        >>> Ask(error=OutcomeUnknownError("approve", "c0ffee", "unknown", "")).entry
        'c0ffee'
    """


Page: TypeAlias = Redirect | Refused | Form | Waiting | Ask
"""Result of `checkout`: the page to show."""


_ADDITIONAL = frozenset(fields_dict(AdditionalData))


def _says_already_evaluated(error: LoanError) -> bool:
    return isinstance(error, AlreadyEvaluatedError)


def _says_nothing(_: AnyJSON) -> bool:
    return False


async def checkout(
    client: LoanClient,
    fiscal_code: str,
    request: ApprovalRequest,
    *,
    order: Order,
    payload: Mapping[str, JSON],
    fields: Collection[str],
    approved_url: str,
    additional_data_needed: Callable[[AnyJSON], bool] = _says_nothing,
    already_created: Callable[[LoanError], bool] = _says_already_evaluated,
    create_timeout: Timeout | None = None,
) -> Page:
    """Create a request, request its approval, and return the page to show.

    Call it for each click, such as a double click or a reload: the approval is sent once, with the number of
    the order as `order_id`. A stored decision is returned whatever the shopper has typed. An invalid request
    is not created. A decision about another amount is not stored; the page is `Ask`, and an error is logged.
    Errors of your functions,
    `Order.decision` and `Order.hold` are raised. Those of `Order.release` and `Order.save` are logged, since
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
        client,
        fiscal_code,
        request,
        payload,
        additional_data_needed,
        already_created,
        order.number,
        create_timeout,
    )
    del fiscal_code, request, payload  # personal: must not be in a traceback
    if (decision := _restored(await order.decision())) is not None:
        return _decided(decision, approved_url)
    problems = client.check(click.fiscal_code, click.request)
    if problems.for_fields({*fields, "fiscal_code"})[0]:  # before `hold`: a database may refuse such a code
        return error_page(InvalidRequestError(problems, "approve"), fields)
    deciding = asyncio.create_task(_decide(click, order, fields, approved_url))
    client._flights.follow(deciding)  # noqa: SLF001  (of this package)
    try:
        return await asyncio.shield(deciding)
    except asyncio.CancelledError:  # the shopper has left
        click.has_left = True
        if click.is_preparing:
            deciding.cancel()
        deciding.add_done_callback(_report)
        raise


def _report(deciding: "asyncio.Task[Page]") -> None:
    """Log the error of a click whose shopper has left. Its text may contain personal values."""
    if not deciding.cancelled() and (error := deciding.exception()) is not None:
        log(ERROR, "checkout: failed after the shopper had left: %s", type(error).__name__)


async def _decide(click: "_Click", order: Order, fields: Collection[str], approved_url: str) -> Page:
    """Hold and decide an order, then store its decision or release the hold.

    No method of the order is cancelled if the shopper leaves.
    """
    holds = await order.hold(rules.normalize_fiscal_code(click.fiscal_code))
    if isinstance(holds, bool) or not isinstance(holds, int):  # such as None of an UPDATE without RETURNING
        raise TypeError(f"Order.hold must return the number of holds, not {type(holds).__name__}")
    if not holds:
        return Ask(error=PayloadMismatchError("approve", "", "inflight"))
    entry = None
    try:
        decision = await click.decide(has_others=holds > 1)
    except DecisionNotRecordedError as error:
        log(ERROR, "checkout: %s", error)  # the ledger has failed; the decision stands
        decision = error.decision
    except LoanError as error:
        # A `LedgerError` is about an earlier click or order, which has its own hold.
        is_own = error.outcome not in ("not_sent", "not_evaluated") and not isinstance(error, LedgerError)
        click.may_evaluate &= is_own
        page = error_page(error.with_traceback(None), fields, additional_data_needed=click.needs_data)
        is_in_doubt = not click.has_recalled and error.outcome == "not_sent"
        # The response is still awaited. A creation decides nothing.
        is_late = isinstance(error, DeadlineExceededError) and is_own and error.operation == "approve"
        if is_late or (is_in_doubt and holds > 1):  # another click may have evaluated the customer
            page = Waiting(error=error, advice="wait")
        entry = page.entry
        if entry is not None:
            with _logged("save", entry):
                await order.save(entry, None)
        return page
    finally:
        if not click.may_evaluate:
            with _logged("release", entry):
                await order.release()
    entry = decision.meta.entry or ""
    if decision.amount not in (None, click.request.amount):  # the shop must not deliver what no loan pays
        state = "approved" if decision.approved else "refused"
        page = Ask(error=PayloadMismatchError("approve", entry, state), advice="already_decided")
        with _logged("save", entry):
            await order.save(entry, None)
        log(ERROR, "checkout, entry %s: the decision is about another amount: not stored", entry or "-")
        return page
    with _logged("save", entry):
        await order.save(entry, decision.to_dict())
    return _decided(decision, approved_url)


@contextmanager
def _logged(method: str, entry: str | None) -> Iterator[None]:
    """Log an error of the order, whose text may contain personal values: the page is known and is shown."""
    try:
        yield
    except (Exception, asyncio.CancelledError) as error:  # also the end of the event loop
        log(ERROR, "checkout, entry %s: order.%s failed: %s", entry or "-", method, type(error).__name__)
        if isinstance(error, asyncio.CancelledError):
            raise


@define
class _Click:
    """The data of a click, masked in tracebacks, and what the click has learnt."""

    client: LoanClient
    fiscal_code: str = field(repr=mask)
    request: ApprovalRequest
    payload: Mapping[str, JSON] = field(repr=mask)
    additional_data_needed: Callable[[AnyJSON], bool]
    already_created: Callable[[LoanError], bool]
    order_id: str
    create_timeout: Timeout | None
    needs_data: bool = False
    has_recalled: bool = False  # the ledger or the client's memory was read
    is_preparing: bool = False  # it ends if the shopper leaves
    may_evaluate: bool = False
    has_left: bool = False  # the shopper

    async def decide(self, *, has_others: bool) -> Decision:
        """Return the decision. Without a ledger, send nothing if other clicks hold the order.

        Another process, or this one before a restart, may have evaluated the customer.
        """
        if self.has_left:
            raise asyncio.CancelledError
        self.is_preparing = True
        try:
            await self._prepare(may_send=not has_others or self.client.ledger is not None)
        finally:
            self.is_preparing = False
        self.may_evaluate = True
        return await self.client.approve(
            self.fiscal_code, self.request, additional_data_needed=self.needs_data, order_id=self.order_id
        )

    async def _prepare(self, *, may_send: bool) -> None:
        """Create the request, unless its approval is known."""
        if problems := self.client.check(self.fiscal_code, self.request):
            raise InvalidRequestError(problems, "approve")
        # First: the page of a known approval must not depend on the creation, which may fail this time.
        known = await self.client.known(self.fiscal_code, order_id=self.order_id)
        self.has_recalled = True
        is_new = known.state in ("none", "released")
        if is_new and not may_send:
            log(
                WARNING,
                "checkout: nothing is sent: another click holds the order, and there is no ledger",
            )
            raise InFlightError("approve", "")
        if is_new:
            try:
                created = await self.client.create_request(self.payload, timeout=self.create_timeout)
                self.needs_data = self.additional_data_needed(created)
            except LoanError as error:
                if not self.already_created(error):
                    raise


def _restored(stored: Mapping[str, Any] | None) -> Decision | None:
    try:
        if stored is None:
            return None
        if not isinstance(stored, Mapping):
            text = "Order.decision must return None or the mapping that Order.save got"
            raise TypeError(f"{text}, not {type(stored).__name__}")
        return (Approved if stored.get("approved") is True else Refused).from_dict(stored)
    finally:
        del stored  # personal: must not be in a traceback


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
            additional_data_needed |= any(
                each.field in _ADDITIONAL for found in beside.values() for each in found
            )
            return Form(
                error=error,
                problems=beside,
                for_the_shop=others,
                additional_data_needed=additional_data_needed,
            )
        return Ask(error=error, advice="fix_setup")  # the shopper cannot correct it
    return Waiting(error=error) if error.advice in ("wait", "try_later") else Ask(error=error)


__all__ = ["Ask", "Form", "Order", "Page", "Redirect", "Waiting", "checkout", "error_page"]

name_by_package(globals())
