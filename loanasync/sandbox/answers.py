"""What the service answers to each call (spec §3, §4, §7), as plain functions over JSON objects."""

import secrets
from collections.abc import Mapping
from typing import Any

from attrs import evolve

from loanasync.sandbox import shapes
from loanasync.sandbox.customers import Customer, Customers
from loanasync.sandbox.outcomes import Answer, Outcome
from loanasync.sandbox.readings import Readings
from loanasync.sandbox.validation import (
    BLANK_IN_ITALIAN,
    asked_to_be_wrong,
    instalments_of,
    is_fiscal_code,
    street_number_of,
    wrong_in_approval,
    wrong_in_creation,
    wrong_in_user_data,
)

Body = Mapping[str, Any]

_REFUSED_ABOVE = 1_000_000  # euro cents: the sandbox's own line, so that a refusal is easy to get
_FEE = 0.03  # assumed, so that netAmount is not the amount

# spec §4.2: a completion may be answered with 400 or 403, and it is no evaluation.
_ERRORS_OF_COMPLETION = ("forbidden", "nouser", "noshop")

# spec §2.1, response: what comes back as it was sent
_ECHOED = (
    *("email", "lastname", "firstname", "mobilePhone", "city", "address", "province", "postalCode"),
    *("citizenship", "iban", "amount", "instalments", "orderToken"),
)


def order_of(body: Body | None) -> str:
    """Return the token of the order that an approval is for (spec §2.1); a missing one is one value, too."""
    token = (body or {}).get("orderToken")
    return token if isinstance(token, str) else ""


def create(customers: Customers, body: Body, readings: Readings) -> Answer:
    """Spec §4.3. Payload and answer are not shown: what is read and answered here is assumed."""
    if errors := wrong_in_creation(body):
        return shapes.rejected(errors, readings)
    code = body["fiscalCode"]
    # Assumed: where each order is evaluated, a request can be created again for the next one.
    if readings.evaluates == "customer" and customers.of(code).approved is not None:
        return shapes.domain_error("already", readings)
    customer = customers.admit(code)
    customer.documents = False
    customer.additional_data_needed = body.get("additionalDataNeeded") is True
    created = {"fiscalCode": code, "additionalDataNeeded": customer.additional_data_needed}
    return shapes.shaped(Answer(201, created), readings.creation)


def approve(
    customers: Customers,
    code: str,
    body: Body,
    outcome: Outcome,
    dialect: str | None,
    base_url: str,
    readings: Readings,
) -> Answer:
    """Spec §4.1."""
    customer = customers.of(code)
    if not customer.created or customer.approved is not None:
        return _barred(customer, code, dialect, readings)
    if errors := wrong_in_approval(body, dialect, additional=customer.additional_data_needed):
        return shapes.rejected(errors, readings)
    if errors := asked_to_be_wrong(outcome.invalid, completing=False):
        return shapes.rejected(errors, readings)
    conflict_after = outcome.error == "conflict" and readings.conflict == "after"
    if outcome.error is not None and not conflict_after:
        return asked_for(outcome.error, readings)
    wanted = outcome.decision or ("approved" if body["amount"] <= _REFUSED_ABOVE else "refused")
    customer.approved = wanted == "approved"
    customer.order = order_of(body)
    customer.request = {**body, "instalments": instalments_of(body, dialect)}
    customers.give_page(code, customer)
    if conflict_after:
        return evolve(shapes.conflict(), evaluated=True)
    decision = _decision(customer, code, outcome, dialect, base_url, readings)
    return Answer(201 if customer.approved else int(readings.refusal), decision, evaluated=True)


def chosen_by_rule(operation: str, chosen: Outcome, readings: Readings) -> Answer | None:
    """Return the error that a rule chose for this call, whatever the customer's state; None for no error.

    A tag's error comes from `approve` and `complete` instead, after their own checks.
    """
    if chosen.error is not None:
        decides = operation == "approve" and chosen.error == "conflict" and readings.conflict == "after"
        return None if decides else asked_for(chosen.error, readings)
    if operation in ("approve", "complete"):
        errors = asked_to_be_wrong(chosen.invalid, completing=operation == "complete")
        return shapes.rejected(errors, readings) if errors else None
    return None


def _barred(customer: Customer, code: str, dialect: str | None, readings: Readings) -> Answer:
    if customer.created:
        # spec §3 says "a request" and "user": that a customer, or an order, is evaluated once is assumed.
        return shapes.domain_error("already", readings)
    if is_fiscal_code(code):
        return shapes.domain_error("nouser", readings)
    if dialect == "civic_number":  # spec §7: a domain error in one approval description; which is assumed
        return shapes.domain_error("code", readings)
    return shapes.rejected({"fiscalCode": ["Invalid fiscal code"]}, readings)


def asked_for(error: str, readings: Readings) -> Answer:
    """Return the error that a word asks for: nouser, already, noshop, forbidden or conflict."""
    match error:
        case "nouser" | "already" | "noshop":
            return shapes.domain_error(error, readings)
        case "forbidden":
            return shapes.denied()
        case _:
            return shapes.conflict()


def _decision(
    customer: Customer,
    code: str,
    outcome: Outcome,
    dialect: str | None,
    base_url: str,
    readings: Readings,
) -> dict[str, Any]:
    """The response fields of spec §2.1; what was not sent is not echoed."""
    sent = customer.request
    street_number, number = street_number_of(sent, dialect)
    said = "approved" if customer.approved else "refused"
    decision: dict[str, Any] = {
        "approved": customer.approved,
        "approvalMessageApiFull": f"The request was {said}.",
        "approvalMessageApiSemiFull": said,
        **shapes.echoed_code(code, readings),
        **{name: value for name in _ECHOED if (value := sent.get(name)) is not None},
        outcome.street_number or street_number: number,
        "netAmount": sent["amount"] - round(sent["amount"] * _FEE),
        "zeroInterestRate": sent.get("zeroInterestRate") is True,
    }
    if sent.get("paymentDayOfMonth") is not None:
        decision["paymentDayOfMonth"] = int(sent["paymentDayOfMonth"])  # spec §2.1: comes back as an integer
    if customer.approved and outcome.redirect:
        url = f"{base_url}/apply/{customer.page}#token={secrets.token_urlsafe(12)}"
        decision |= shapes.redirect_url(url, readings)
    return decision


def upload_documents(customers: Customers, code: str, readings: Readings) -> Answer:
    """Spec §4.3. Payload and answer are not shown: any object is accepted, and the answer is assumed."""
    customer = customers.of(code)
    if not customer.created:
        return shapes.domain_error("nouser", readings)
    customer.documents = True
    return shapes.shaped(Answer(201, {"fiscalCode": code, "documents": "received"}), readings.documents)


def complete(customers: Customers, code: str, body: Body, outcome: Outcome, readings: Readings) -> Answer:
    """Spec §4.2."""
    if not is_fiscal_code(code):
        return shapes.domain_error("code", readings)
    customer = customers.of(code)
    if not customer.created:
        return shapes.domain_error("nouser", readings)
    if outcome.error in _ERRORS_OF_COMPLETION:
        return asked_for(outcome.error, readings)
    if not customer.documents:
        # spec §4.2: the documents come first; what is answered without them is not shown, so assumed.
        return shapes.rejected({"documents": [BLANK_IN_ITALIAN]}, readings)
    if errors := wrong_in_user_data(body) or asked_to_be_wrong(outcome.invalid, completing=True):
        return shapes.rejected(errors, readings)
    customer.user_data = dict(body)
    return Answer(200, shapes.completed(body, readings), saved=True)
