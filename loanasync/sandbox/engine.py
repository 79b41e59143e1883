"""The service without HTTP: the responses to the four calls (spec §2, §3, §4, §7), faults and the journal."""

import secrets
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from attrs import define, evolve, field, frozen

from loanasync.sandbox import outcomes, validation
from loanasync.sandbox.customers import Customer, Customers
from loanasync.sandbox.faults import Faults, SetFault
from loanasync.sandbox.journal import Journal, JournalEntry
from loanasync.sandbox.linter import Linter

_BODY_OMITTED = "(too large to keep)"
_REFUSED_ABOVE = 1_000_000  # euro cents: a limit of the sandbox, so that a refusal is easy to get
_FEE = 0.03  # assumed, so that netAmount differs from amount
_ERRORS_OF_COMPLETION = ("forbidden", "nouser", "noshop")  # spec §4.2: it can fail with 400 or 403
# spec §2.1, response: fields that are returned unchanged
_ECHOED = [name for name in validation.ECHOED if name != "streetNumber"]


@define(eq=False)
class Call:
    """A call as received, and the outcome that was planned for it."""

    operation: str
    code: str = field(repr=False)
    body: Mapping[str, Any] | None = field(repr=False)
    method: str = ""
    route: str = ""
    base_url: str = ""
    findings: tuple[str, ...] = ()
    outcome: outcomes.Outcome = outcomes.DEFAULT_OUTCOME
    fault: SetFault | None = None
    customer: Customer = field(factory=Customer)

    def next_turn(self, suffix: str = "") -> int:
        """Return how often this call's fault was used before; each tag and each set fault counts its own."""
        counts = self.customer.tag_turns if self.fault is None else self.customer.fault_turns
        name = f"{self.operation} {self.outcome.name if self.fault is None else self.fault.name}{suffix}"
        counts[name] = counts.get(name, 0) + 1
        return counts[name] - 1


@frozen
class Delivery:
    """A response and the fault that is applied while sending it."""

    response: outcomes.Response
    fault: str = ""
    phase: str = ""


@define(eq=False, kw_only=True)
class Engine:
    """The service without HTTP: plan a call, process it, then record it.

    The methods are synchronous; `plan`, `process` and `record` hold the lock, so each of them is atomic.
    `plan` and `process` modify the call: run each once per call.

    Args:
        customers: The customers and their states.
        faults: The faults that choose outcomes.
        linter: The linter that detects misuse of the protocol.
        journal: The journal that `record` writes.
        dialect: The one description of the approval to implement; None accepts both.
        refusal: Status of a refusal.
        rejection: Status of validation errors.
        by_order: Whether each order is evaluated once, instead of each customer.
        listeners: Functions to call after each change.
        lock: A lock, because a test may reset the sandbox while another thread serves a request.
    """

    customers: Customers
    faults: Faults
    linter: Linter
    journal: Journal
    dialect: str | None
    refusal: int
    rejection: int
    by_order: bool
    listeners: set[Callable[[], None]] = field(factory=set)
    lock: AbstractContextManager[bool] = field(factory=threading.RLock)

    def plan(self, call: Call) -> Delivery | None:
        """Choose the call's outcome; return a delivery if the tag cannot be read."""
        with self.lock:
            customer = call.customer = self.customers.of(call.code)
            self._select_order(call)
            number = customer.calls[call.operation] = customer.calls.get(call.operation, 0) + 1
            call.fault = self.faults.choose(call.operation, call.code, number)
            try:
                call.outcome = self._outcome_from_tag(call)
            except outcomes.UnknownTagError as unknown:
                return Delivery(self._rejected({"email": [str(unknown)]}))
            if call.fault is not None:
                call.outcome = call.fault.outcome.merged_with(call.outcome)
            return None

    def _select_order(self, call: Call) -> None:
        if self.by_order and call.operation == "approve":
            token = (call.body or {}).get("orderToken")  # spec §2.1
            call.customer.selected = token if isinstance(token, str) else ""

    def _outcome_from_tag(self, call: Call) -> outcomes.Outcome:
        if call.operation == "complete":
            return outcomes.parse_email(call.customer.email)  # its body has no e-mail address (spec §2.2)
        if call.operation != "approve" or call.body is None:
            return outcomes.DEFAULT_OUTCOME
        email = call.body.get("email")
        outcome = outcomes.parse_email(email)
        if call.customer.order.approved is None:  # a repeat after the decision does not change the request
            call.customer.email = email if isinstance(email, str) else ""
        return outcome

    def process(self, call: Call) -> Delivery:
        """Process the call, or apply the fault or error of its outcome, and save the customer."""
        with self.lock:
            if call.customer.was_removed:
                return Delivery(outcomes.SYSTEM_ERROR)
            self._select_order(call)  # another call may have selected another order meanwhile
            call.findings += tuple(self.linter.check_call(call.operation, call.customer))
            delivery = self._delivery(call)
            if call.operation == "approve":
                call.customer.order.repeat_breaks = _finding_of_repeat(delivery)
            self.customers.save(call.code, call.customer)
            return delivery

    def client_disconnected(self, call: Call) -> None:
        """Record that the shop closed the connection and received no response."""
        with self.lock:
            if call.operation == "approve":
                self._select_order(call)
                call.customer.order.repeat_breaks = _AFTER_LOST_RESPONSE
                self.customers.save(call.code, call.customer)

    def _delivery(self, call: Call) -> Delivery:
        outcome = call.outcome
        if outcome.before and (name := outcome.fault_for(call.next_turn())):
            return Delivery(outcomes.FAULTS[name].response or outcomes.SYSTEM_ERROR, name, "before")
        response = self._respond(call)
        if outcome.after is None:
            return Delivery(response)
        # The fault of a tag applies to the response that decides, and to the first that saves.
        applies = response.evaluated or (response.saved and call.next_turn(" after") == 0)
        if call.fault is None and not applies:
            return Delivery(response)
        own = outcomes.FAULTS[outcome.after].response
        if own is not None:
            response = evolve(own, evaluated=response.evaluated, saved=response.saved)
        return Delivery(response, outcome.after, "after")

    def _respond(self, call: Call) -> outcomes.Response:
        if call.fault is not None:  # its error applies in any state; that of a tag after some checks
            chosen = call.fault.outcome
            if chosen.error is not None:
                return outcomes.ERRORS[chosen.error]
            if errors := validation.requested_errors(chosen.invalid, validation.FIELDS[call.operation]):
                return self._rejected(errors)
        calls = {"create_request": self._create, "approve": self._approve, "complete": self._complete}
        return calls.get(call.operation, self._upload_documents)(call)

    def _create(self, call: Call) -> outcomes.Response:
        """Create a request (spec §4.3). The shapes of payload and response are assumed."""
        body, customer = call.body or {}, call.customer
        if errors := validation.body_errors(validation.CREATION, body, ["fiscalCode"]):
            return self._rejected(errors)
        # Assumed: if each order is evaluated, a request can be created again for the next order.
        if not self.by_order and customer.order.approved is not None:
            return outcomes.ERRORS["already"]
        customer.created, customer.documents = True, False
        # An e-mail address is not a field of the creation, but a shop may send it.
        tag = outcomes.tag_of(body.get("email")).lower().split(".")
        needed = call.outcome.additional or "additional" in tag
        customer.additional_data_needed = needed or body.get("additionalDataNeeded") is True
        created = {"fiscalCode": call.code, "additionalDataNeeded": customer.additional_data_needed}
        return outcomes.Response(201, created)

    def _approve(self, call: Call) -> outcomes.Response:
        """Evaluate a request (spec §4.1)."""
        body, customer, outcome, order = call.body or {}, call.customer, call.outcome, call.customer.order
        if customer.created and order.approved is not None:
            # spec §3 says "a request" and "user". Assumed: each customer, or each order, is evaluated once.
            return outcomes.ERRORS["already"]
        if not customer.created and not validation.FISCAL_CODE.accepts(call.code):
            is_domain = self.dialect == "civic_number"  # spec §7: in one description; assumed to be this one
            invalid = {"fiscalCode": [validation.INVALID_FISCAL_CODE]}
            return outcomes.ERRORS["code"] if is_domain else self._rejected(invalid)
        if not customer.created:
            return outcomes.ERRORS["nouser"]
        needed = customer.additional_data_needed or outcome.additional
        errors = validation.approval_errors(body, self.dialect, additional=needed)
        if errors := errors or validation.requested_errors(outcome.invalid, validation.FIELDS["approve"]):
            return self._rejected(errors)
        if outcome.error is not None:
            return outcomes.ERRORS[outcome.error]
        wanted = outcome.decision or ("approved" if body["amount"] <= _REFUSED_ABOVE else "refused")
        order.approved = wanted == "approved"
        order.request = {**body, "instalments": validation.instalments_of(body, self.dialect)}
        order.page = secrets.token_urlsafe(12)
        status = 201 if order.approved else self.refusal
        return outcomes.Response(status, self._decision(call), evaluated=True)

    def _decision(self, call: Call) -> dict[str, Any]:
        """Return the response fields of spec §2.1. Fields that were not sent are not echoed."""
        order, sent = call.customer.order, call.customer.order.request
        street_number, number = validation.street_number_of(sent, self.dialect)
        decision: dict[str, Any] = {
            "approved": order.approved,
            **outcomes.decision_texts(approved=order.approved is True),
            "fiscalCode": call.code,
            **{name: value for name in _ECHOED if (value := sent.get(name)) is not None},
            call.outcome.street_number or street_number: number,
            "netAmount": sent["amount"] - round(sent["amount"] * _FEE),
            "zeroInterestRate": sent.get("zeroInterestRate") is True,
        }
        if sent.get("paymentDayOfMonth") is not None:
            decision["paymentDayOfMonth"] = int(sent["paymentDayOfMonth"])  # spec §2.1: an integer here
        if order.approved and call.outcome.redirect:
            decision["redirectUrl"] = f"{call.base_url}/apply/{order.page}#token={secrets.token_urlsafe(12)}"
        return decision

    def _upload_documents(self, call: Call) -> outcomes.Response:
        """Accept documents (spec §4.3). Any object is accepted; the shape of the response is assumed."""
        if not call.customer.created:
            return outcomes.ERRORS["nouser"]
        call.customer.documents = True
        return outcomes.Response(201, {"fiscalCode": call.code, "documents": "received"})

    def _complete(self, call: Call) -> outcomes.Response:
        """Save the user data (spec §4.2)."""
        body, customer, outcome = call.body or {}, call.customer, call.outcome
        if not customer.created:
            return outcomes.ERRORS["nouser" if validation.FISCAL_CODE.accepts(call.code) else "code"]
        if outcome.error in _ERRORS_OF_COMPLETION:
            return outcomes.ERRORS[outcome.error]
        if not customer.documents:
            # spec §4.2: documents must be uploaded first. The response without documents is assumed.
            return self._rejected({"documents": [validation.BLANK_IN_ITALIAN]})
        errors = validation.body_errors(validation.USER_DATA, body)
        if errors := errors or validation.requested_errors(outcome.invalid, validation.USER_DATA):
            return self._rejected(errors)
        customer.user_data = dict(body)
        return outcomes.Response(200, body, saved=True)  # spec §4.2: "returns these same fields"

    def _rejected(self, errors: validation.Errors) -> outcomes.Response:
        return outcomes.Response(self.rejection, {"errors": errors})  # spec §7

    def reset(self) -> None:
        """Remove all customers, faults, calls and findings."""
        self.customers.clear()
        self.faults.reset()
        self.journal.clear()
        self.linter.findings.clear()

    def record(self, call: Call, delivery: Delivery, started: float) -> None:
        """Add the call to the journal, before the first byte of the response is sent."""
        response, fault = delivery.response, outcomes.FAULTS.get(delivery.fault)
        status: int | None = response.status
        if fault is not None:
            status = None if fault.silent else fault.status or response.status
        request = call.body
        if call.operation == "upload_documents":
            request = dict.fromkeys(call.body or {}, _BODY_OMITTED)
        with self.lock:  # a reset by another thread comes before or after all of this
            if call.customer.was_removed:
                return
            self.journal.total += 1
            for rule in call.findings:
                self.linter.add(rule, self.journal.total)
            entry = JournalEntry(
                number=self.journal.total,
                at=time.time(),
                method=call.method,
                route=call.route,
                operation=call.operation,
                fiscal_code=call.code,
                status=status,
                elapsed=time.perf_counter() - started,
                evaluated=response.evaluated,
                fault=f"{delivery.fault}{delivery.phase}",
                request=request,
                response=response.body,
                findings=call.findings,
            )
            self.journal.append(entry)
        self.notify()

    def notify(self) -> None:
        """Call all listeners after a change."""
        for listener in list(self.listeners):
            listener()


_REPEATABLE = {400, 403, 413, 500}  # after these statuses a call may be repeated
_AFTER_LOST_RESPONSE = "repeat-after-lost-response"


def _finding_of_repeat(delivery: Delivery) -> str:
    """Return the protocol rule that a repeat of an approval with this response breaks, or an empty string."""
    response, fault = delivery.response, outcomes.FAULTS.get(delivery.fault)
    if fault is not None and fault.response is None:
        return _AFTER_LOST_RESPONSE
    approved = response.body.get("approved")
    if isinstance(approved, bool):  # with any status: `approved` is the decision (spec §3)
        return "post-after-201" if approved else "post-after-422"
    if response == outcomes.ERRORS["already"]:
        return "repeat-after-already-evaluated"
    return "" if response.status in _REPEATABLE else "repeat-after-unclear-response"
