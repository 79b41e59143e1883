"""The service's responses to the four calls (spec §2, §3, §4, §7)."""

import secrets
from collections.abc import Mapping
from typing import Any

from attrs import evolve, frozen

from loanasync.sandbox import validation
from loanasync.sandbox.customers import Customer, Customers, Order
from loanasync.sandbox.outcomes import CONFLICT, ERRORS, Outcome, Response, decision_texts, tag_of
from loanasync.sandbox.readings import Readings

Body = Mapping[str, Any]

# spec §7, domain errors. The other wording and the other language are assumed.
DOMAIN: Mapping[str, Mapping[str, str]] = {
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

# The seven positions of an Italian fiscal code with digits, and the letters that can replace the digits.
_DIGIT_POSITIONS = (6, 7, 9, 10, 12, 13, 14)
_OMOCODIA = "LMNPQRSTUV"
_VISIBLE = 4  # characters at each end of a masked code
_DATES = ("documentIssueDate", "documentExpirationDate")  # spec §2.2
_MIDNIGHT = "T00:00:00+00:00"


# Assumed: spec §4 says that all bodies are JSON objects. It does not show the response to other bodies.
UNREADABLE = Response(400, {"errors": {"body": ["This value should be a JSON object."]}})

_REFUSED_ABOVE = 1_000_000  # euro cents: a limit of the sandbox, so that a refusal is easy to get
_FEE = 0.03  # assumed, so that netAmount differs from amount

# spec §4.2: a completion can fail with 400 or 403.
_ERRORS_OF_COMPLETION = ("forbidden", "nouser", "noshop")

# spec §2.1, response: fields that are returned unchanged
_ECHOED = [name for name in validation.ECHOED if name != "streetNumber"]


@frozen
class Responder:
    """Processes the four calls and returns the responses of the service.

    Args:
        customers: The customers. Calls change their state.
        dialect: The one description of the approval to implement; None accepts both.
        readings: The readings of the specification to play.
    """

    _customers: Customers
    _dialect: str | None
    _readings: Readings

    def create(self, body: Body) -> Response:
        """Create a request (spec §4.3). The shapes of payload and response are assumed."""
        if errors := validation.body_errors(validation.CREATION, body):
            return self.rejected(errors)
        code = body["fiscalCode"]
        # Assumed: if each order is evaluated, a request can be created again for the next order.
        customer = self._customers.of(code)
        if self._readings.evaluates == "customer" and customer.order.approved is not None:
            return self._error("already")
        customer.created, customer.documents = True, False
        # An e-mail address is not a field of the creation, but a shop may send it.
        tagged = "additional" in tag_of(body.get("email")).lower().split(".")
        customer.additional_data_needed = tagged or body.get("additionalDataNeeded") is True
        created = {"fiscalCode": code, "additionalDataNeeded": customer.additional_data_needed}
        return _created(created, self._readings.creation)

    def approve(self, code: str, body: Body, outcome: Outcome, base_url: str) -> Response:
        """Evaluate a request (spec §4.1)."""
        customer = self._customers.of(code)
        order = customer.order
        if not customer.created or order.approved is not None:
            return self._not_approvable(customer, code)
        needed = customer.additional_data_needed or outcome.additional
        errors = validation.approval_errors(body, self._dialect, additional=needed)
        if errors := errors or validation.requested_errors(outcome.invalid, validation.FIELDS["approve"]):
            return self.rejected(errors)
        conflict_after = outcome.error == "conflict" and self._readings.conflict == "after"
        if outcome.error is not None and not conflict_after:
            return self._error(outcome.error)
        wanted = outcome.decision or ("approved" if body["amount"] <= _REFUSED_ABOVE else "refused")
        order.approved = wanted == "approved"
        order.request = {**body, "instalments": validation.instalments_of(body, self._dialect)}
        order.page = secrets.token_urlsafe(12)
        if conflict_after:
            return evolve(CONFLICT, evaluated=True)
        decision = self._decision(order, code, outcome, base_url)
        return Response(201 if order.approved else int(self._readings.refusal), decision, evaluated=True)

    def upload_documents(self, code: str) -> Response:
        """Accept documents (spec §4.3). Any object is accepted; the shape of the response is assumed."""
        customer = self._customers.of(code)
        if not customer.created:
            return self._error("nouser")
        customer.documents = True
        return _created({"fiscalCode": code, "documents": "received"}, self._readings.documents)

    def complete(self, code: str, body: Body, outcome: Outcome) -> Response:
        """Save the user data (spec §4.2)."""
        if not validation.is_fiscal_code(code):
            return self._error("code")
        customer = self._customers.of(code)
        if not customer.created:
            return self._error("nouser")
        if outcome.error in _ERRORS_OF_COMPLETION:
            return self._error(outcome.error)
        if not customer.documents:
            # spec §4.2: documents must be uploaded first. The response without documents is assumed.
            return self.rejected({"documents": [validation.BLANK_IN_ITALIAN]})
        errors = validation.body_errors(validation.USER_DATA, body)
        if errors := errors or validation.requested_errors(outcome.invalid, validation.USER_DATA):
            return self.rejected(errors)
        customer.user_data = dict(body)
        return Response(200, self._completed(body), saved=True)

    def error_from_rule(self, operation: str, chosen: Outcome) -> Response | None:
        """Return the error that a rule chose for this call, in any state of the customer; None for no error.

        The error of a tag is returned by `approve` and `complete`, after their checks.
        """
        if chosen.error is not None:
            conflict_after = chosen.error == "conflict" and self._readings.conflict == "after"
            return None if operation == "approve" and conflict_after else self._error(chosen.error)
        errors = validation.requested_errors(chosen.invalid, validation.FIELDS[operation])
        return self.rejected(errors) if errors else None

    def rejected(self, errors: validation.Errors) -> Response:
        """Return the response to invalid fields (spec §7)."""
        return Response(int(self._readings.validation), {"errors": errors})

    def _error(self, name: str) -> Response:
        """Return the response for an error: a word of a tag or rule, or another domain error."""
        if name in ERRORS:
            return ERRORS[name]
        text = DOMAIN[self._readings.domain][name]
        if name == "already" and self._readings.already_evaluated == "409":
            return Response(409, {"errors": text})
        return Response(400, {"errors": {"domain": [text]}})

    def _not_approvable(self, customer: Customer, code: str) -> Response:
        if customer.created:
            # spec §3 says "a request" and "user". Assumed: each customer, or each order, is evaluated once.
            return self._error("already")
        if validation.is_fiscal_code(code):
            return self._error("nouser")
        if self._dialect == "civic_number":  # spec §7: in one approval description; assumed to be this one
            return self._error("code")
        return self.rejected({"fiscalCode": [validation.INVALID_FISCAL_CODE]})

    def _decision(self, order: Order, code: str, outcome: Outcome, base_url: str) -> dict[str, Any]:
        """Return the response fields of spec §2.1. Fields that were not sent are not echoed."""
        sent = order.request
        street_number, number = validation.street_number_of(sent, self._dialect)
        decision: dict[str, Any] = {
            "approved": order.approved,
            **decision_texts(approved=order.approved is True),
            "fiscalCode": self._echoed_code(code),
            **{name: value for name in _ECHOED if (value := sent.get(name)) is not None},
            outcome.street_number or street_number: number,
            "netAmount": sent["amount"] - round(sent["amount"] * _FEE),
            "zeroInterestRate": sent.get("zeroInterestRate") is True,
        }
        if sent.get("paymentDayOfMonth") is not None:
            decision["paymentDayOfMonth"] = int(sent["paymentDayOfMonth"])  # spec §2.1: an integer here
        if order.approved:
            url = f"{base_url}/apply/{order.page}#token={secrets.token_urlsafe(12)}"
            decision["redirectUrl"] = "" if self._readings.redirect_url == "empty" else url
        without = {*outcome.without}
        without |= {"fiscalCode"} if self._readings.fiscal_code == "missing" else set()
        without |= {"redirectUrl"} if self._readings.redirect_url == "missing" else set()
        return {name: value for name, value in decision.items() if name not in without}

    def _echoed_code(self, code: str) -> str:
        if self._readings.fiscal_code == "masked":
            return code[:_VISIBLE] + "*" * (len(code) - 2 * _VISIBLE) + code[-_VISIBLE:]
        return _with_omocodia(code) if self._readings.fiscal_code == "omocodia" else code

    def _completed(self, sent: Body) -> Body | None:
        """Return the body of a successful completion (spec §4.2: "returns these same fields")."""
        if self._readings.completion == "empty":
            return None
        fields = dict(sent)
        if self._readings.completion == "partial":
            fields = dict(list(fields.items())[: len(fields) // 2])
        if self._readings.dates == "time":
            fields |= {name: f"{fields[name]}{_MIDNIGHT}" for name in _DATES if name in fields}
        return fields


def is_already_evaluated(response: Response) -> bool:
    """Return whether a response means "already evaluated", in any reading."""
    errors = response.body.get("errors") if isinstance(response.body, Mapping) else None
    messages = errors.get("domain") if isinstance(errors, Mapping) else [errors]
    return messages in [[texts["already"]] for texts in DOMAIN.values()]


def _created(body: Body, shape: str) -> Response:
    """Return a 201 whose body is an object, an array or empty."""
    bodies: dict[str, Body | list[Any] | None] = {"object": body, "array": [body], "empty": None}
    return Response(201, bodies[shape])


def _with_omocodia(code: str) -> str:
    for position in reversed(_DIGIT_POSITIONS):  # the last digit is replaced first
        if code[position : position + 1].isdecimal():
            return code[:position] + _OMOCODIA[int(code[position])] + code[position + 1 :]
    return code
