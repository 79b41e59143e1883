"""What the service answers to each call (spec §3, §4, §7), as plain functions over JSON objects."""

import secrets
from collections.abc import Mapping
from typing import Any

from loanasync.sandbox._customers import Customer, Customers
from loanasync.sandbox._outcomes import Answer, Outcome
from loanasync.sandbox._validation import (
    BLANK_IN_ITALIAN,
    Errors,
    asked_to_be_wrong,
    instalments_of,
    is_fiscal_code,
    street_number_of,
    wrong_in_approval,
    wrong_in_creation,
    wrong_in_user_data,
)

__all__ = ["ALREADY_EVALUATED", "approve", "complete", "create", "denied", "rejected", "system_error"]
__all__ += ["upload_documents"]

Body = Mapping[str, Any]

_REFUSED_ABOVE = 1_000_000  # euro cents: the sandbox's own line, so that a refusal is easy to get
_FEE = 0.03  # assumed, so that netAmount is not the amount

# spec §7, domain errors
_USER_NOT_FOUND = "User not found"
ALREADY_EVALUATED = "User already evaluated for approval"
_SHOP_NOT_ALLOWED = "This sales point cannot apply for a loan"
_INVALID_FISCAL_CODE = "Invalid fiscalCode."

_DOMAIN_ERRORS = {"nouser": _USER_NOT_FOUND, "already": ALREADY_EVALUATED, "noshop": _SHOP_NOT_ALLOWED}

# spec §4.2: a completion may be answered with 400 or 403, and it is no evaluation.
_ERRORS_OF_COMPLETION = ("forbidden", "nouser", "noshop")

# spec §2.1, response: what comes back as it was sent
_ECHOED = (
    *("email", "lastname", "firstname", "mobilePhone", "city", "address", "province", "postalCode"),
    *("citizenship", "iban", "amount", "instalments", "orderToken"),
)


def denied() -> Answer:
    """Wrong credentials (spec §5, §7)."""
    return Answer(403, {"error": "Access denied"})  # spec §7: `error`, singular, and a string


def rejected(errors: Errors) -> Answer:
    """Something was formally wrong, or a domain error (spec §7)."""
    return Answer(400, {"errors": errors})


def _domain(message: str) -> Answer:
    return rejected({"domain": [message]})


def system_error() -> Answer:
    """The service's own fault (spec §7)."""
    return Answer(500, {"errors": {"system": ["System error"]}})


def create(customers: Customers, body: Body) -> Answer:
    """Spec §4.3. Payload and answer are not shown: what is read and answered here is assumed."""
    if errors := wrong_in_creation(body):
        return rejected(errors)
    code = body["fiscalCode"]
    if customers.of(code).approved is not None:
        return _domain(ALREADY_EVALUATED)
    customer = customers.admit(code)
    customer.documents = False
    customer.additional_data_needed = body.get("additionalDataNeeded") is True
    return Answer(201, {"fiscalCode": code, "additionalDataNeeded": customer.additional_data_needed})


def approve(
    customers: Customers, code: str, body: Body, outcome: Outcome, dialect: str | None, base_url: str
) -> Answer:
    """Spec §4.1."""
    customer = customers.of(code)
    if not customer.created or customer.approved is not None:
        return _barred(customer, code, dialect)
    if errors := wrong_in_approval(body, dialect, additional=customer.additional_data_needed):
        return rejected(errors)
    if errors := asked_to_be_wrong(outcome.invalid, completing=False):
        return rejected(errors)
    if outcome.error is not None:
        return _asked_for(outcome.error)
    wanted = outcome.decision or ("approved" if body["amount"] <= _REFUSED_ABOVE else "refused")
    customer.approved = wanted == "approved"
    customer.request = {**body, "instalments": instalments_of(body, dialect)}
    customers.give_page(code, customer)
    decision = _decision(customer, code, outcome, dialect, base_url)
    return Answer(201 if customer.approved else 422, decision, evaluated=True)


def _barred(customer: Customer, code: str, dialect: str | None) -> Answer:
    if customer.created:
        return _domain(ALREADY_EVALUATED)  # spec §3
    if is_fiscal_code(code):
        return _domain(_USER_NOT_FOUND)
    if dialect == "civic_number":  # spec §7: a domain error in one approval description; which is assumed
        return _domain(_INVALID_FISCAL_CODE)
    return rejected({"fiscalCode": ["Invalid fiscal code"]})


def _asked_for(error: str) -> Answer:
    if error == "forbidden":
        return denied()
    if error == "conflict":
        # spec §7: `errors` is a single string here; its wording is not shown.
        return Answer(409, {"errors": "The request cannot be completed"})
    return _domain(_DOMAIN_ERRORS[error])


def _decision(
    customer: Customer, code: str, outcome: Outcome, dialect: str | None, base_url: str
) -> dict[str, Any]:
    """The response fields of spec §2.1; what was not sent is not echoed."""
    sent = customer.request
    street_number, number = street_number_of(sent, dialect)
    said = "approved" if customer.approved else "refused"
    decision: dict[str, Any] = {
        "approved": customer.approved,
        "approvalMessageApiFull": f"The request was {said}.",
        "approvalMessageApiSemiFull": said,
        "fiscalCode": code,
        **{name: value for name in _ECHOED if (value := sent.get(name)) is not None},
        outcome.street_number or street_number: number,
        "netAmount": sent["amount"] - round(sent["amount"] * _FEE),
        "zeroInterestRate": sent.get("zeroInterestRate") is True,
    }
    if sent.get("paymentDayOfMonth") is not None:
        decision["paymentDayOfMonth"] = int(sent["paymentDayOfMonth"])  # spec §2.1: comes back as an integer
    if customer.approved and outcome.redirect:
        decision["redirectUrl"] = f"{base_url}/apply/{customer.page}#token={secrets.token_urlsafe(12)}"
    return decision


def upload_documents(customers: Customers, code: str) -> Answer:
    """Spec §4.3. Payload and answer are not shown: any object is accepted, and the answer is assumed."""
    customer = customers.of(code)
    if not customer.created:
        return _domain(_USER_NOT_FOUND)
    customer.documents = True
    return Answer(201, {"fiscalCode": code, "documents": "received"})


def complete(customers: Customers, code: str, body: Body, outcome: Outcome) -> Answer:
    """Spec §4.2."""
    if not is_fiscal_code(code):
        return _domain(_INVALID_FISCAL_CODE)
    customer = customers.of(code)
    if not customer.created:
        return _domain(_USER_NOT_FOUND)
    if outcome.error in _ERRORS_OF_COMPLETION:
        return _asked_for(outcome.error)
    if not customer.documents:
        # spec §4.2: the documents come first; what is answered without them is not shown, so assumed.
        return rejected({"documents": [BLANK_IN_ITALIAN]})
    if errors := wrong_in_user_data(body) or asked_to_be_wrong(outcome.invalid, completing=True):
        return rejected(errors)
    customer.user_data = dict(body)
    return Answer(200, body, saved=True)
