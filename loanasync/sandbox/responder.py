"""Responses of the service to each call (spec §2, §3, §4, §7)."""

import secrets
from collections.abc import Mapping
from typing import Any, Literal, cast

from attrs import evolve, frozen

from loanasync.sandbox.customers import Customer, Customers
from loanasync.sandbox.outcomes import CONFLICT, ERRORS, Answer, Outcome
from loanasync.sandbox.readings import Readings
from loanasync.sandbox.validation import (
    ADDITIONAL,
    APPROVAL,
    BLANK_IN_ITALIAN,
    CREATION,
    INVALID_FISCAL_CODE,
    USER_DATA,
    Errors,
    asked_to_be_wrong,
    instalments_of,
    is_fiscal_code,
    street_number_of,
    wrong_in,
    wrong_in_approval,
)

Body = Mapping[str, Any]
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


# Assumed: spec §4 says that all bodies are JSON objects, and does not show the response to others.
UNREADABLE = Answer(400, {"errors": {"body": ["This value should be a JSON object."]}})

_ALL_OF_APPROVAL = {**APPROVAL, **ADDITIONAL}
_REFUSED_ABOVE = 1_000_000  # euro cents: the sandbox's own line, so that a refusal is easy to get
_FEE = 0.03  # assumed, so that netAmount is not the amount

# spec §4.2: a completion may be answered with 400 or 403, and it is no evaluation.
_ERRORS_OF_COMPLETION = ("forbidden", "nouser", "noshop")

# spec §2.1, response: what comes back as it was sent
_ECHOED = (
    *("email", "lastname", "firstname", "mobilePhone", "city", "address", "province", "postalCode"),
    *("citizenship", "iban", "amount", "instalments", "orderToken"),
)


@frozen
class Answers:
    """The responses to the four calls, by the state of the customers and by one reading.

    Args:
        customers: The customers, which the calls change.
        dialect: The one description to speak; None accepts both.
        readings: The reading of the specification to play.
    """

    _customers: Customers
    _dialect: str | None
    _readings: Readings

    def create(self, body: Body) -> Answer:
        """Spec §4.3. Payload and answer are not shown: what is read and answered here is assumed."""
        if errors := wrong_in(CREATION, body):
            return self.rejected(errors)
        code = body["fiscalCode"]
        # Assumed: where each order is evaluated, a request can be created again for the next one.
        if self._readings.evaluates == "customer" and self._customers.of(code).approved is not None:
            return self._domain_error("already")
        customer = self._customers.admit(code)
        customer.documents = False
        customer.additional_data_needed = body.get("additionalDataNeeded") is True
        created = {"fiscalCode": code, "additionalDataNeeded": customer.additional_data_needed}
        return _shaped(created, self._readings.creation)

    def approve(self, code: str, body: Body, outcome: Outcome, base_url: str) -> Answer:
        """Spec §4.1."""
        customer = self._customers.of(code)
        if not customer.created or customer.approved is not None:
            return self._barred(customer, code)
        errors = wrong_in_approval(body, self._dialect, additional=customer.additional_data_needed)
        if errors := errors or asked_to_be_wrong(outcome.invalid, _ALL_OF_APPROVAL):
            return self.rejected(errors)
        conflict_after = outcome.error == "conflict" and self._readings.conflict == "after"
        if outcome.error is not None and not conflict_after:
            return self._asked_for(outcome.error)
        wanted = outcome.decision or ("approved" if body["amount"] <= _REFUSED_ABOVE else "refused")
        customer.approved = wanted == "approved"
        customer.order = order_of(body)
        customer.request = {**body, "instalments": instalments_of(body, self._dialect)}
        self._customers.give_page(code, customer)
        if conflict_after:
            return evolve(CONFLICT, evaluated=True)
        decision = self._decision(customer, code, outcome, base_url)
        return Answer(201 if customer.approved else int(self._readings.refusal), decision, evaluated=True)

    def upload_documents(self, code: str) -> Answer:
        """Spec §4.3. Payload and answer are not shown: any object is accepted, and the answer is assumed."""
        customer = self._customers.of(code)
        if not customer.created:
            return self._domain_error("nouser")
        customer.documents = True
        return _shaped({"fiscalCode": code, "documents": "received"}, self._readings.documents)

    def complete(self, code: str, body: Body, outcome: Outcome) -> Answer:
        """Spec §4.2."""
        if not is_fiscal_code(code):
            return self._domain_error("code")
        customer = self._customers.of(code)
        if not customer.created:
            return self._domain_error("nouser")
        if outcome.error in _ERRORS_OF_COMPLETION:
            return self._asked_for(outcome.error)
        if not customer.documents:
            # spec §4.2: the documents come first; what is answered without them is not shown, so assumed.
            return self.rejected({"documents": [BLANK_IN_ITALIAN]})
        if errors := wrong_in(USER_DATA, body) or asked_to_be_wrong(outcome.invalid, USER_DATA):
            return self.rejected(errors)
        customer.user_data = dict(body)
        return Answer(200, self._completed(body), saved=True)

    def chosen_by_rule(self, operation: str, chosen: Outcome) -> Answer | None:
        """Return the error that a rule chose for this call, whatever the customer's state; None for no error.

        A tag's error comes from `approve` and `complete` instead, after their own checks.
        """
        if chosen.error is not None:
            conflict_after = chosen.error == "conflict" and self._readings.conflict == "after"
            return None if operation == "approve" and conflict_after else self._asked_for(chosen.error)
        known = {"approve": _ALL_OF_APPROVAL, "complete": USER_DATA}.get(operation, {})
        errors = asked_to_be_wrong(chosen.invalid, known)
        return self.rejected(errors) if errors else None

    def rejected(self, errors: Errors) -> Answer:
        """Return the response to wrong fields (spec §7)."""
        return Answer(int(self._readings.validation), {"errors": errors})

    def _domain_error(self, name: DomainError) -> Answer:
        text = DOMAIN[self._readings.domain][name]
        if name == "already" and self._readings.already_evaluated == "409":
            return Answer(409, {"errors": text})
        return Answer(400, {"errors": {"domain": [text]}})

    def _asked_for(self, error: str) -> Answer:
        """Return the error that a word asks for."""
        return ERRORS[error] if error in ERRORS else self._domain_error(cast("DomainError", error))

    def _barred(self, customer: Customer, code: str) -> Answer:
        if customer.created:
            # spec §3 says "a request" and "user": that a customer, or an order, is evaluated once is assumed.
            return self._domain_error("already")
        if is_fiscal_code(code):
            return self._domain_error("nouser")
        if self._dialect == "civic_number":  # spec §7: in one approval description; which is assumed
            return self._domain_error("code")
        return self.rejected({"fiscalCode": [INVALID_FISCAL_CODE]})

    def _decision(self, customer: Customer, code: str, outcome: Outcome, base_url: str) -> dict[str, Any]:
        """The response fields of spec §2.1; what was not sent is not echoed."""
        sent = customer.request
        street_number, number = street_number_of(sent, self._dialect)
        said = "approved" if customer.approved else "refused"
        decision: dict[str, Any] = {
            "approved": customer.approved,
            "approvalMessageApiFull": f"The request was {said}.",
            "approvalMessageApiSemiFull": said,
            "fiscalCode": self._echoed_code(code),
            **{name: value for name in _ECHOED if (value := sent.get(name)) is not None},
            outcome.street_number or street_number: number,
            "netAmount": sent["amount"] - round(sent["amount"] * _FEE),
            "zeroInterestRate": sent.get("zeroInterestRate") is True,
        }
        if sent.get("paymentDayOfMonth") is not None:
            decision["paymentDayOfMonth"] = int(sent["paymentDayOfMonth"])  # spec §2.1: an integer here
        if customer.approved:
            url = f"{base_url}/apply/{customer.page}#token={secrets.token_urlsafe(12)}"
            decision["redirectUrl"] = "" if self._readings.redirect_url == "empty" else url
        without = {*outcome.without}
        without |= {"fiscalCode"} if self._readings.fiscal_code == "missing" else set()
        without |= {"redirectUrl"} if self._readings.redirect_url == "missing" else set()
        return {name: value for name, value in decision.items() if name not in without}

    def _echoed_code(self, code: str) -> str:
        if self._readings.fiscal_code == "masked":
            return code[:_SHOWN] + "*" * (len(code) - 2 * _SHOWN) + code[-_SHOWN:]
        return _with_omocodia(code) if self._readings.fiscal_code == "omocodia" else code

    def _completed(self, sent: Body) -> Body | None:
        """Return the body of the 200 of a completion (spec §4.2: "returns these same fields")."""
        if self._readings.completion == "empty":
            return None
        fields = dict(sent)
        if self._readings.completion == "partial":
            fields = dict(list(fields.items())[: len(fields) // 2])
        if self._readings.dates == "time":
            fields |= {name: f"{fields[name]}{_MIDNIGHT}" for name in _DATES if name in fields}
        return fields


def order_of(body: Body | None) -> str:
    """Return the token of the order that an approval is for (spec §2.1); a missing one is one value, too."""
    token = (body or {}).get("orderToken")
    return token if isinstance(token, str) else ""


def is_already_evaluated(answer: Answer) -> bool:
    """Return whether a response says "already evaluated", in any reading."""
    errors = answer.body.get("errors") if isinstance(answer.body, Mapping) else None
    told = errors.get("domain") if isinstance(errors, Mapping) else [errors]
    return told in [[texts["already"]] for texts in DOMAIN.values()]


def _shaped(body: Body, shape: str) -> Answer:
    """Return a 201 with the body as an object, as an array, or without a body."""
    bodies: dict[str, Body | list[Any] | None] = {"object": body, "array": [body], "empty": None}
    return Answer(201, bodies[shape])


def _with_omocodia(code: str) -> str:
    for place in reversed(_DIGIT_PLACES):  # the last digit is the first that is replaced
        if code[place : place + 1].isdecimal():
            return code[:place] + _OMOCODIA[int(code[place])] + code[place + 1 :]
    return code
