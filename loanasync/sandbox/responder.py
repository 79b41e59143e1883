"""The service's responses to the four calls (spec §2, §3, §4, §7)."""

import secrets
from collections.abc import Mapping
from typing import Any

from attrs import frozen

from loanasync.sandbox import validation
from loanasync.sandbox.customers import Customer, Customers, Order
from loanasync.sandbox.outcomes import ERRORS, Outcome, Response, decision_texts, tag_of

Body = Mapping[str, Any]

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
        refusal: Status of a refusal.
        validation: Status of validation errors.
        by_order: Whether each order is evaluated once, instead of each customer.
    """

    _customers: Customers
    _dialect: str | None
    _refusal: int
    _validation: int
    _by_order: bool

    def create(self, body: Body, outcome: Outcome) -> Response:
        """Create a request (spec §4.3). The shapes of payload and response are assumed."""
        if errors := validation.body_errors(validation.CREATION, body, ["fiscalCode"]):
            return self.rejected(errors)
        code = body["fiscalCode"]
        # Assumed: if each order is evaluated, a request can be created again for the next order.
        customer = self._customers.of(code)
        if not self._by_order and customer.order.approved is not None:
            return ERRORS["already"]
        customer.created, customer.documents = True, False
        # An e-mail address is not a field of the creation, but a shop may send it.
        needed = outcome.additional or "additional" in tag_of(body.get("email")).lower().split(".")
        customer.additional_data_needed = needed or body.get("additionalDataNeeded") is True
        return Response(201, {"fiscalCode": code, "additionalDataNeeded": customer.additional_data_needed})

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
        if outcome.error is not None:
            return ERRORS[outcome.error]
        wanted = outcome.decision or ("approved" if body["amount"] <= _REFUSED_ABOVE else "refused")
        order.approved = wanted == "approved"
        order.request = {**body, "instalments": validation.instalments_of(body, self._dialect)}
        order.page = secrets.token_urlsafe(12)
        decision = self._decision(order, code, outcome, base_url)
        return Response(201 if order.approved else self._refusal, decision, evaluated=True)

    def upload_documents(self, code: str) -> Response:
        """Accept documents (spec §4.3). Any object is accepted; the shape of the response is assumed."""
        customer = self._customers.of(code)
        if not customer.created:
            return ERRORS["nouser"]
        customer.documents = True
        return Response(201, {"fiscalCode": code, "documents": "received"})

    def complete(self, code: str, body: Body, outcome: Outcome) -> Response:
        """Save the user data (spec §4.2)."""
        if not validation.is_fiscal_code(code):
            return ERRORS["code"]
        customer = self._customers.of(code)
        if not customer.created:
            return ERRORS["nouser"]
        if outcome.error in _ERRORS_OF_COMPLETION:
            return ERRORS[outcome.error]
        if not customer.documents:
            # spec §4.2: documents must be uploaded first. The response without documents is assumed.
            return self.rejected({"documents": [validation.BLANK_IN_ITALIAN]})
        errors = validation.body_errors(validation.USER_DATA, body)
        if errors := errors or validation.requested_errors(outcome.invalid, validation.USER_DATA):
            return self.rejected(errors)
        customer.user_data = dict(body)
        return Response(200, body, saved=True)  # spec §4.2: "returns these same fields"

    def error_of_fault(self, operation: str, chosen: Outcome) -> Response | None:
        """Return the error that a fault chose for this call, in any state of the customer; None for no error.

        The error of a tag is returned by `approve` and `complete`, after their checks.
        """
        if chosen.error is not None:
            return ERRORS[chosen.error]
        errors = validation.requested_errors(chosen.invalid, validation.FIELDS[operation])
        return self.rejected(errors) if errors else None

    def rejected(self, errors: validation.Errors) -> Response:
        """Return the response to invalid fields (spec §7)."""
        return Response(self._validation, {"errors": errors})

    def _not_approvable(self, customer: Customer, code: str) -> Response:
        if customer.created:
            # spec §3 says "a request" and "user". Assumed: each customer, or each order, is evaluated once.
            return ERRORS["already"]
        if validation.is_fiscal_code(code):
            return ERRORS["nouser"]
        if self._dialect == "civic_number":  # spec §7: in one approval description; assumed to be this one
            return ERRORS["code"]
        return self.rejected({"fiscalCode": [validation.INVALID_FISCAL_CODE]})

    def _decision(self, order: Order, code: str, outcome: Outcome, base_url: str) -> dict[str, Any]:
        """Return the response fields of spec §2.1. Fields that were not sent are not echoed."""
        sent = order.request
        street_number, number = validation.street_number_of(sent, self._dialect)
        decision: dict[str, Any] = {
            "approved": order.approved,
            **decision_texts(approved=order.approved is True),
            "fiscalCode": code,
            **{name: value for name in _ECHOED if (value := sent.get(name)) is not None},
            outcome.street_number or street_number: number,
            "netAmount": sent["amount"] - round(sent["amount"] * _FEE),
            "zeroInterestRate": sent.get("zeroInterestRate") is True,
        }
        if sent.get("paymentDayOfMonth") is not None:
            decision["paymentDayOfMonth"] = int(sent["paymentDayOfMonth"])  # spec §2.1: an integer here
        if order.approved and outcome.redirect:
            decision["redirectUrl"] = f"{base_url}/apply/{order.page}#token={secrets.token_urlsafe(12)}"
        return decision
