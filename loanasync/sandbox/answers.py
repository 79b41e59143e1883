"""Responses of the service to each call (spec §2, §3, §4, §7), as plain functions over JSON objects."""

import secrets
from collections.abc import Mapping
from typing import Any, Literal, cast

from attrs import evolve

from loanasync.sandbox.customers import Customer, Customers
from loanasync.sandbox.outcomes import CONFLICT, ERRORS, Answer, Outcome
from loanasync.sandbox.readings import Readings
from loanasync.sandbox.validation import (
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

DomainError = Literal["nouser", "already", "noshop", "code"]

# spec §7, domain errors. The specification says nothing about another wording or language: both are assumed.
DOMAIN: Mapping[str, Mapping[DomainError, str]] = {
    "verbatim": {
        "nouser": "User not found",
        "already": "User already evaluated for approval",
        "noshop": "This sales point cannot apply for a loan",
        "code": "Invalid fiscalCode.",
    },
    "reworded": {
        "nouser": "No user has this code.",
        "already": "This user has been evaluated already.",
        "noshop": "Loans are not available at this sales point.",
        "code": "The fiscal code is not valid.",
    },
    "localized": {
        "nouser": "Utente non trovato",
        "already": "Utente già valutato per approvazione",
        "noshop": "Questo punto vendita non può richiedere un finanziamento",
        "code": "Codice fiscale non valido.",
    },
}

# The seven places of an Italian fiscal code that have digits, and the letters that can replace them.
_DIGIT_PLACES = (6, 7, 9, 10, 12, 13, 14)
_OMOCODIA = "LMNPQRSTUV"
_SHOWN = 4  # characters at each end of a masked code
_DATES = ("documentIssueDate", "documentExpirationDate")  # spec §2.2
_MIDNIGHT = "T00:00:00+00:00"


def unreadable() -> Answer:
    """Return the response to a body that is no JSON object (spec §4); not shown, so assumed."""
    return Answer(400, {"errors": {"body": ["This value should be a JSON object."]}})


def rejected(errors: Errors, readings: Readings) -> Answer:
    """Return the response to wrong fields (spec §7)."""
    return Answer(int(readings.validation), {"errors": errors})


def domain_error(name: DomainError, readings: Readings) -> Answer:
    """Return the response with one of the domain errors of spec §7."""
    text = DOMAIN[readings.domain][name]
    if name == "already" and readings.already_evaluated == "409":
        return Answer(409, {"errors": text})
    return Answer(400, {"errors": {"domain": [text]}})


def is_already_evaluated(answer: Answer) -> bool:
    """Return whether a response says "already evaluated", in any reading."""
    errors = answer.body.get("errors") if isinstance(answer.body, Mapping) else None
    told = errors.get("domain") if isinstance(errors, Mapping) else [errors]
    return told in [[texts["already"]] for texts in DOMAIN.values()]


def shaped(answer: Answer, shape: str) -> Answer:
    """Return the response with its body as an object, as an array, or without a body."""
    return evolve(answer, body={"object": answer.body, "array": [answer.body], "empty": None}[shape])


def completed(sent: Mapping[str, Any], readings: Readings) -> Mapping[str, Any] | None:
    """Return the body of the 200 of a completion (spec §4.2: "returns these same fields")."""
    if readings.completion == "empty":
        return None
    fields = dict(sent)
    if readings.completion == "partial":
        fields = dict(list(fields.items())[: len(fields) // 2])
    if readings.dates == "time":
        fields |= {name: f"{fields[name]}{_MIDNIGHT}" for name in _DATES if name in fields}
    return fields


def echoed_code(code: str, readings: Readings) -> dict[str, str]:
    """Return the member `fiscalCode` of a decision (spec §2.1), or nothing."""
    if readings.fiscal_code == "missing":
        return {}
    if readings.fiscal_code == "masked":
        code = code[:_SHOWN] + "*" * (len(code) - 2 * _SHOWN) + code[-_SHOWN:]
    elif readings.fiscal_code == "omocodia":
        code = _with_omocodia(code)
    return {"fiscalCode": code}


def _with_omocodia(code: str) -> str:
    for place in reversed(_DIGIT_PLACES):  # the last digit is the first that is replaced
        if code[place : place + 1].isdecimal():
            return code[:place] + _OMOCODIA[int(code[place])] + code[place + 1 :]
    return code


def redirect_url(url: str, readings: Readings) -> dict[str, str]:
    """Return the member `redirectUrl` of an approval (spec §1.3, §2.1), or nothing."""
    return {"present": {"redirectUrl": url}, "missing": {}, "empty": {"redirectUrl": ""}}[
        readings.redirect_url
    ]


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
        return rejected(errors, readings)
    code = body["fiscalCode"]
    # Assumed: where each order is evaluated, a request can be created again for the next one.
    if readings.evaluates == "customer" and customers.of(code).approved is not None:
        return domain_error("already", readings)
    customer = customers.admit(code)
    customer.documents = False
    customer.additional_data_needed = body.get("additionalDataNeeded") is True
    created = {"fiscalCode": code, "additionalDataNeeded": customer.additional_data_needed}
    return shaped(Answer(201, created), readings.creation)


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
        return rejected(errors, readings)
    if errors := asked_to_be_wrong(outcome.invalid, completing=False):
        return rejected(errors, readings)
    conflict_after = outcome.error == "conflict" and readings.conflict == "after"
    if outcome.error is not None and not conflict_after:
        return asked_for(outcome.error, readings)
    wanted = outcome.decision or ("approved" if body["amount"] <= _REFUSED_ABOVE else "refused")
    customer.approved = wanted == "approved"
    customer.order = order_of(body)
    customer.request = {**body, "instalments": instalments_of(body, dialect)}
    customers.give_page(code, customer)
    if conflict_after:
        return evolve(CONFLICT, evaluated=True)
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
        return rejected(errors, readings) if errors else None
    return None


def _barred(customer: Customer, code: str, dialect: str | None, readings: Readings) -> Answer:
    if customer.created:
        # spec §3 says "a request" and "user": that a customer, or an order, is evaluated once is assumed.
        return domain_error("already", readings)
    if is_fiscal_code(code):
        return domain_error("nouser", readings)
    if dialect == "civic_number":  # spec §7: a domain error in one approval description; which is assumed
        return domain_error("code", readings)
    return rejected({"fiscalCode": ["Invalid fiscal code"]}, readings)


def asked_for(error: str, readings: Readings) -> Answer:
    """Return the error that a word asks for: nouser, already, noshop, forbidden or conflict."""
    return ERRORS[error] if error in ERRORS else domain_error(cast("DomainError", error), readings)


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
        **echoed_code(code, readings),
        **{name: value for name in _ECHOED if (value := sent.get(name)) is not None},
        outcome.street_number or street_number: number,
        "netAmount": sent["amount"] - round(sent["amount"] * _FEE),
        "zeroInterestRate": sent.get("zeroInterestRate") is True,
    }
    if sent.get("paymentDayOfMonth") is not None:
        decision["paymentDayOfMonth"] = int(sent["paymentDayOfMonth"])  # spec §2.1: comes back as an integer
    if customer.approved:
        url = f"{base_url}/apply/{customer.page}#token={secrets.token_urlsafe(12)}"
        decision |= redirect_url(url, readings)
    return {name: value for name, value in decision.items() if name not in outcome.without}


def upload_documents(customers: Customers, code: str, readings: Readings) -> Answer:
    """Spec §4.3. Payload and answer are not shown: any object is accepted, and the answer is assumed."""
    customer = customers.of(code)
    if not customer.created:
        return domain_error("nouser", readings)
    customer.documents = True
    return shaped(Answer(201, {"fiscalCode": code, "documents": "received"}), readings.documents)


def complete(customers: Customers, code: str, body: Body, outcome: Outcome, readings: Readings) -> Answer:
    """Spec §4.2."""
    if not is_fiscal_code(code):
        return domain_error("code", readings)
    customer = customers.of(code)
    if not customer.created:
        return domain_error("nouser", readings)
    if outcome.error in _ERRORS_OF_COMPLETION:
        return asked_for(outcome.error, readings)
    if not customer.documents:
        # spec §4.2: the documents come first; what is answered without them is not shown, so assumed.
        return rejected({"documents": [BLANK_IN_ITALIAN]}, readings)
    if errors := wrong_in_user_data(body) or asked_to_be_wrong(outcome.invalid, completing=True):
        return rejected(errors, readings)
    customer.user_data = dict(body)
    return Answer(200, completed(body, readings), saved=True)
