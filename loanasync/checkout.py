"""The loan step of a web checkout: create the request, request approval, and return the page to show.

::

    match await checkout(client, code, request, payload=..., fields=FIELDS, approved_url="/order"):
        case Redirect(url=url): ...           # send the shopper to this URL, and never log it
        case Refused(): ...                   # final: offer another way to pay
        case Form(problems=problems): ...     # the form again, with the problems beside its fields
        case Waiting() as page: ...           # page.text("it"), with a button that sends the same form
        case Ask() as page: ...               # page.text("it"), without a button; the staff see page.entry

It calls only public methods of the client. Use these directly if your checkout differs.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping
from logging import ERROR, WARNING
from typing import TypeAlias

from attrs import field, fields_dict, frozen

from loanasync._client import LoanClient
from loanasync._display.masking import JSON, AnyJSON, mask
from loanasync._display.texts import advice_text
from loanasync._log import log
from loanasync._models import AdditionalData, ApprovalRequest
from loanasync._public import name_by_package
from loanasync._results import Approved, Decision, Problems, Refused
from loanasync._settings import Timeout
from loanasync.errors import (
    AlreadyEvaluatedError,
    DecisionNotRecordedError,
    InvalidRequestError,
    LoanError,
)


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


@frozen(kw_only=True)
class _ErrorPage:
    """A page after an error."""

    error: LoanError

    @property
    def entry(self) -> str | None:
        """Key of the entry in the ledger. Store it with the order, and log it."""
        return self.error.entry

    @property
    def may_be_evaluated(self) -> bool:
        """True if the service may have evaluated the customer, so that the order has this customer now."""
        return self.error.operation == "approve" and self.error.outcome not in ("not_sent", "not_evaluated")

    def text(self, language: str = "en") -> str:
        """Return a sentence for the shopper, in ``en`` or ``it``."""
        return self.error.text(language)


@frozen(kw_only=True)
class Form(_ErrorPage):
    """Show the form again. The customer was not evaluated, so the shopper may change everything.

    Args:
        error: The error. Log it for the shop's staff.
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

    The approval is still being decided, or was not sent.

    Example:
        >>> from loanasync.checkout import Waiting
        >>> Waiting(error=InFlightError("approve", "c0ffee")).text()
        'Your request is still being decided. Please check again in a few seconds.'
    """


class Ask(_ErrorPage):
    """Show `text` without a button, and report `error` and `entry` to the shop's staff, who must act.

    Example:
        >>> from loanasync.checkout import Ask
        >>> Ask(error=OutcomeUnknownError("approve", "c0ffee", "unknown", "")).entry
        'c0ffee'
    """

    def text(self, language: str = "en") -> str:
        """Return a sentence for the shopper, in ``en`` or ``it``."""
        if self.error.advice == "correct_form":  # the form has no field to correct
            return advice_text("fix_setup", self.error.operation, language)
        return super().text(language)


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
    payload: Mapping[str, JSON],
    fields: Collection[str],
    approved_url: str,
    additional_data_needed: Callable[[AnyJSON], bool] = _says_nothing,
    already_created: Callable[[LoanError], bool] = _says_already_evaluated,
    scope: str = "",
    create_timeout: Timeout | None = None,
) -> Page:
    """Create a request, request its approval, and return the page to show.

    It may be called again with the same data, such as after a double click or a reload: the approval is sent
    once, and after it the request is not created again. An invalid request is not created. Errors of
    `additional_data_needed` and `already_created` are raised before the approval.

    Args:
        client: The client, with a ledger if your shop has several workers.
        fiscal_code: Fiscal code of the customer.
        request: Data of the order and the customer, such as from `ApprovalRequest.from_form`.
        payload: The body of `LoanClient.create_request`. Its members are an agreement with the service.
        fields: Names of the fields that your form can show, in Python or in the specification.
        approved_url: Your page for an approved order. It is used if the response has no URL.
        additional_data_needed: Returns True if the response of the creation asks for the additional data. The
            specification does not show this response.
        already_created: Returns True if an error of the creation means that the request exists already. By
            default, only `AlreadyEvaluatedError` does.
        scope: The `scope` of `LoanClient.approve`.
        create_timeout: Time limits of the creation instead of the client's.

    Example:
        >>> from loanasync.checkout import checkout
        >>> page = run(checkout(
        ...     client, fiscal_code, request, payload={"fiscalCode": fiscal_code},
        ...     fields=["fiscal_code", "email"], approved_url="/order",
        ... ))
        >>> type(page).__name__
        'Redirect'
    """
    needed = False
    problems = client.check(fiscal_code, request)
    recall, creation, approval = _calls(client, fiscal_code, request, payload, scope, create_timeout)
    del fiscal_code, request, payload  # personal: must not be in a traceback
    try:
        if problems:
            raise InvalidRequestError(problems, "approve")
        # First: the page of a known approval must not depend on the creation, which may fail this time.
        decision = await recall()
        if decision is None:
            try:
                needed = additional_data_needed(await creation())
            except LoanError as error:
                if not already_created(error):
                    raise
            decision = await approval(needed)
    except DecisionNotRecordedError as error:
        log(ERROR, "checkout: %s", error)  # the ledger has failed; the decision stands
        decision = error.decision
    except LoanError as error:
        return error_page(error.with_traceback(None), fields, additional_data_needed=needed)
    if isinstance(decision, Refused):
        return decision
    return Redirect(url=decision.redirect_url or approved_url, decision=decision)


def _calls(
    client: LoanClient,
    fiscal_code: str,
    request: ApprovalRequest,
    payload: Mapping[str, JSON],
    scope: str,
    create_timeout: Timeout | None,
) -> tuple[
    Callable[[], Awaitable[Decision | None]],
    Callable[[], Awaitable[AnyJSON]],
    Callable[[bool], Awaitable[Decision]],
]:
    """Return the three calls, which show no personal data in a traceback."""
    return (
        lambda: client.recall(fiscal_code, request, scope=scope),
        lambda: client.create_request(payload, timeout=create_timeout),
        lambda needed: client.approve(fiscal_code, request, additional_data_needed=needed, scope=scope),
    )


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
        'Your request is still being decided. Please check again in a few seconds.'
    """
    if error.advice == "correct_form":
        beside, others = Problems(getattr(error, "problems", ())).for_fields(fields)
        if others:
            shown = "; ".join(map(str, others))  # without personal values
            log(WARNING, "checkout, entry %s: the form has no field for: %s", error.entry, shown)
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
        return Ask(error=error)  # the shopper cannot correct it
    return Waiting(error=error) if error.advice in ("wait", "try_later") else Ask(error=error)


__all__ = ["Ask", "Form", "Page", "Redirect", "Waiting", "checkout", "error_page"]

name_by_package(globals())
