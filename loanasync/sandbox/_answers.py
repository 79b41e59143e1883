"""What the service answers to each call (spec §3, §4, §7), as plain functions over JSON objects."""

import secrets
from collections.abc import Mapping
from typing import Any

from attrs import frozen

from loanasync.sandbox._state import Customer, Memory
from loanasync.sandbox._tags import Outcome, UnknownTagError, read_tags
from loanasync.sandbox._validation import (
    BLANK_IN_ITALIAN,
    Errors,
    instalments_of,
    is_fiscal_code,
    street_number_of,
    wrong_in_approval,
    wrong_in_creation,
    wrong_in_user_data,
)

__all__ = ["Answer", "approve", "complete", "create", "denied", "upload_documents"]

Body = Mapping[str, Any]

_REFUSED_ABOVE = 1_000_000  # euro cents: the sandbox's own line, so that a refusal is easy to get
_FEE = 0.03  # assumed, so that netAmount is not the amount

# spec §7, domain errors
_USER_NOT_FOUND = "User not found"
_ALREADY_EVALUATED = "User already evaluated for approval"
_SHOP_NOT_ALLOWED = "This sales point cannot apply for a loan"
_INVALID_FISCAL_CODE = "Invalid fiscalCode."

_DOMAIN_TAGS = {"nouser": _USER_NOT_FOUND, "already": _ALREADY_EVALUATED, "noshop": _SHOP_NOT_ALLOWED}

# spec §2.1, response: what comes back as it was sent
_ECHOED = (
    *("email", "lastname", "firstname", "mobilePhone", "city", "address", "province", "postalCode"),
    *("citizenship", "iban", "amount", "instalments", "orderToken"),
)


@frozen
class Answer:
    """A status and its body; `evaluated` when this very call decided the request."""

    status: int
    body: Mapping[str, Any]
    evaluated: bool = False


def denied() -> Answer:
    """Wrong credentials (spec §5, §7)."""
    return Answer(403, {"error": "Access denied"})  # spec §7: `error`, singular, and a string


def _rejected(errors: Errors) -> Answer:
    return Answer(400, {"errors": errors})


def _domain(message: str) -> Answer:
    return _rejected({"domain": [message]})


def _system_error(*, evaluated: bool = False) -> Answer:
    return Answer(500, {"errors": {"system": ["System error"]}}, evaluated)


def create(memory: Memory, body: Body) -> Answer:
    """Spec §4.3. Payload and answer are not shown: what is read and answered here is assumed."""
    if errors := wrong_in_creation(body):
        return _rejected(errors)
    code = body["fiscalCode"]
    known = memory.customers.get(code)
    if known is not None and known.approved is not None:
        return _domain(_ALREADY_EVALUATED)
    needed = body.get("additionalDataNeeded") is True
    memory.customers[code] = Customer(additional_data_needed=needed)
    return Answer(201, {"fiscalCode": code, "additionalDataNeeded": needed})


def approve(memory: Memory, code: str, body: Body, dialect: str | None, base_url: str) -> Answer:
    """Spec §4.1."""
    customer = memory.customers.get(code)
    if customer is None or customer.approved is not None:
        return _barred(customer, code, dialect)
    if errors := wrong_in_approval(body, dialect, additional=customer.additional_data_needed):
        return _rejected(errors)
    try:
        outcome = read_tags(body["email"])
    except UnknownTagError as unknown:
        return _rejected({"email": [str(unknown)]})
    if customer.faults_answered < outcome.faults_before:
        customer.faults_answered += 1
        return _system_error()
    return _asked_for(outcome) or _evaluate(customer, code, body, outcome, dialect, base_url)


def _evaluate(
    customer: Customer, code: str, body: Body, outcome: Outcome, dialect: str | None, base_url: str
) -> Answer:
    customer.approved = body["amount"] <= _REFUSED_ABOVE and not outcome.asks("refused")
    customer.request = {**body, "instalments": instalments_of(body, dialect)}
    if outcome.asks("500after"):
        return _system_error(evaluated=True)
    decision = _decision(customer, code, dialect, base_url)
    return Answer(201 if customer.approved else 422, decision, evaluated=True)


def _barred(customer: Customer | None, code: str, dialect: str | None) -> Answer:
    if customer is not None:
        return _domain(_ALREADY_EVALUATED)  # spec §3
    if is_fiscal_code(code):
        return _domain(_USER_NOT_FOUND)
    if dialect == "civic_number":  # spec §7: a domain error in one approval description; which is assumed
        return _domain(_INVALID_FISCAL_CODE)
    return _rejected({"fiscalCode": ["Invalid fiscal code"]})


def _asked_for(outcome: Outcome) -> Answer | None:
    for tag, message in _DOMAIN_TAGS.items():
        if outcome.asks(tag):
            return _domain(message)
    if outcome.asks("conflict"):
        # spec §7: `errors` is a single string here; its wording is not shown.
        return Answer(409, {"errors": "The request cannot be completed"})
    return None


def _decision(customer: Customer, code: str, dialect: str | None, base_url: str) -> dict[str, Any]:
    """The response fields of spec §2.1; what was not sent is not echoed."""
    sent = customer.request
    street_number, number = street_number_of(sent, dialect)
    said = "approved" if customer.approved else "refused"
    decision: dict[str, Any] = {
        "approved": customer.approved,
        "approvalMessageApiFull": f"The request was {said}.",
        "approvalMessageApiSemiFull": said,
        "fiscalCode": code,
        **{name: sent[name] for name in _ECHOED if sent.get(name) is not None},
        street_number: number,
        "netAmount": sent["amount"] - round(sent["amount"] * _FEE),
        "zeroInterestRate": sent.get("zeroInterestRate") is True,
    }
    if sent.get("paymentDayOfMonth") is not None:
        decision["paymentDayOfMonth"] = int(sent["paymentDayOfMonth"])  # spec §2.1: comes back as an integer
    if customer.approved:
        decision["redirectUrl"] = f"{base_url}/apply/{customer.page}#token={secrets.token_urlsafe(12)}"
    return decision


def upload_documents(memory: Memory, code: str) -> Answer:
    """Spec §4.3. Payload and answer are not shown: any object is accepted, and the answer is assumed."""
    customer = memory.customers.get(code)
    if customer is None:
        return _domain(_USER_NOT_FOUND)
    customer.documents = True
    return Answer(201, {"fiscalCode": code, "documents": "received"})


def complete(memory: Memory, code: str, body: Body) -> Answer:
    """Spec §4.2."""
    if not is_fiscal_code(code):
        return _domain(_INVALID_FISCAL_CODE)
    customer = memory.customers.get(code)
    if customer is None:
        return _domain(_USER_NOT_FOUND)
    if not customer.documents:
        # spec §4.2: the documents come first; what is answered without them is not shown, so assumed.
        return _rejected({"documents": [BLANK_IN_ITALIAN]})
    if errors := wrong_in_user_data(body):
        return _rejected(errors)
    return Answer(200, body)
