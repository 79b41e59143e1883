"""Processing of one call: choose its outcome and its fault, respond, and add it to the journal."""

import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from attrs import define, evolve, field, frozen

from loanasync.sandbox.customers import Customer, Customers
from loanasync.sandbox.faults import Faults, SetFault
from loanasync.sandbox.journal import Journal, JournalEntry
from loanasync.sandbox.linter import Linter
from loanasync.sandbox.outcomes import (
    DEFAULT_OUTCOME,
    ERRORS,
    FAULTS,
    SYSTEM_ERROR,
    Outcome,
    Response,
    UnknownTagError,
    parse_email,
)
from loanasync.sandbox.responder import Responder

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

_BODY_OMITTED = "(too large to keep)"


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
    outcome: Outcome = DEFAULT_OUTCOME
    fault: SetFault | None = None
    customer: Customer | None = None

    @property
    def was_reset(self) -> bool:
        """True if the customer was reset while the call waited."""
        return self.customer is not None and self.customer.was_removed

    def next_turn(self, customer: Customer, suffix: str = "") -> int:
        """Return how often this call's fault was used before; each tag and each set fault counts its own."""
        counts = customer.tag_turns if self.fault is None else customer.fault_turns
        name = f"{self.operation} {self.outcome.name if self.fault is None else self.fault.name}{suffix}"
        counts[name] = counts.get(name, 0) + 1
        return counts[name] - 1


@frozen
class Delivery:
    """A response and the fault that is applied while sending it."""

    response: Response
    fault: str = ""
    phase: str = ""


class Engine:
    """The service without HTTP: plan a call, process it, then record it.

    The methods are synchronous; `plan`, `process` and `record` hold the lock, so each of them is atomic.
    `plan` and `process` modify the call: run each once per call.

    Args:
        customers: The customers and their states.
        faults: The faults that choose outcomes.
        linter: The linter that detects misuse of the protocol.
        journal: The journal that `record` writes.
        responder: The responses of the service.
        by_order: Whether each order is evaluated once, instead of each customer.
    """

    def __init__(
        self,
        customers: Customers,
        faults: Faults,
        linter: Linter,
        journal: Journal,
        responder: Responder,
        *,
        by_order: bool,
    ) -> None:
        self.customers = customers
        self.faults = faults
        self.linter = linter
        self.journal = journal
        self.listeners: set[Callable[[], None]] = set()  # called after each change
        # A test may reset the sandbox while another thread serves a request.
        self.lock: AbstractContextManager[bool] = threading.RLock()
        self._responder = responder
        self._by_order = by_order

    def plan(self, call: Call) -> Delivery | None:
        """Choose the call's outcome; return a delivery if the tag cannot be read."""
        with self.lock:
            customer = call.customer = self.customers.of(call.code)
            self._select_order(call, customer)
            number = customer.calls[call.operation] = customer.calls.get(call.operation, 0) + 1
            call.fault = self.faults.choose(call.operation, call.code, number)
            try:
                call.outcome = self._outcome_from_tag(call, customer)
            except UnknownTagError as unknown:
                return Delivery(self._responder.rejected({"email": [str(unknown)]}))
            if call.fault is not None:
                call.outcome = call.fault.outcome.merged_with(call.outcome)
            return None

    def _select_order(self, call: Call, customer: Customer) -> None:
        if self._by_order and call.operation == "approve":
            token = (call.body or {}).get("orderToken")  # spec §2.1
            customer.selected = token if isinstance(token, str) else ""

    def _outcome_from_tag(self, call: Call, customer: Customer) -> Outcome:
        if call.operation == "complete":
            return parse_email(customer.email)  # the body of a completion has no e-mail address (spec §2.2)
        if call.operation != "approve" or call.body is None:
            return DEFAULT_OUTCOME
        email = call.body.get("email")
        outcome = parse_email(email)
        if customer.order.approved is None:  # a repeat after the decision does not change the request
            customer.email = email if isinstance(email, str) else ""
        return outcome

    def process(self, call: Call) -> Delivery:
        """Process the call, or apply the fault or error of its outcome, and save the customer."""
        with self.lock:
            if call.was_reset:
                return Delivery(SYSTEM_ERROR)
            customer = self.customers.of(call.code)
            self._select_order(call, customer)  # another call may have selected another order meanwhile
            call.findings += tuple(self.linter.check_call(call.operation, customer))
            delivery = self._fault_before(call, customer) or self._processed(call, customer)
            if call.operation == "approve":
                customer.order.repeat_breaks = _rule_of_repeat(delivery)
            self.customers.save(call.code, customer)
            return delivery

    def client_disconnected(self, call: Call) -> None:
        """Record that the shop closed the connection and received no response."""
        with self.lock:
            if call.operation == "approve" and call.customer is not None:
                self._select_order(call, call.customer)
                call.customer.order.repeat_breaks = _AFTER_LOST_RESPONSE
                self.customers.save(call.code, call.customer)

    def _fault_before(self, call: Call, customer: Customer) -> Delivery | None:
        outcome = call.outcome
        fault = outcome.fault_for(call.next_turn(customer)) if outcome.before else None
        if fault is not None:
            return Delivery(FAULTS[fault].response or SYSTEM_ERROR, fault, "before")
        return None

    def _processed(self, call: Call, customer: Customer) -> Delivery:
        outcome = call.outcome
        response = self._respond(call)
        if call.fault is None and not _tag_fault_applies(call, customer, response):
            return Delivery(response)
        if outcome.after and (own := FAULTS[outcome.after].response):
            response = evolve(own, evaluated=response.evaluated, saved=response.saved)
        return Delivery(response, outcome.after or "", "after" if outcome.after else "")

    def _respond(self, call: Call) -> Response:
        body = call.body or {}
        if call.fault is not None:
            chosen = self._responder.error_of_fault(call.operation, call.fault.outcome)
            if chosen is not None:
                return chosen
        match call.operation:
            case "create_request":
                return self._responder.create(body, call.outcome)
            case "approve":
                return self._responder.approve(call.code, body, call.outcome, call.base_url)
            case "upload_documents":
                return self._responder.upload_documents(call.code)
            case _:
                return self._responder.complete(call.code, body, call.outcome)

    def reset(self) -> None:
        """Remove all customers, faults, calls and findings."""
        self.customers.clear()
        self.faults.clear()
        self.journal.clear()
        self.linter.findings.clear()

    def record(self, call: Call, delivery: Delivery, started: float) -> None:
        """Add the call to the journal, before the first byte of the response is sent."""
        with self.lock:  # a reset by another thread comes before or after all of this
            if call.was_reset:
                return
            self.journal.total += 1
            number = self.journal.total
            for rule in call.findings:
                self.linter.add(rule, number)
            self.journal.append(_journal_entry(number, call, delivery, started))
        self.notify()

    def notify(self) -> None:
        """Call all listeners after a change."""
        for listener in list(self.listeners):
            listener()


def _tag_fault_applies(call: Call, customer: Customer, response: Response) -> bool:
    """Return whether the fault of a tag applies: to the response that decides, and to the first that saves.

    A fault that is not in a tag applies to every call that it matches.
    """
    if not response.saved or call.outcome.after is None:
        return response.evaluated
    return call.next_turn(customer, " after") == 0


def _journal_entry(number: int, call: Call, delivery: Delivery, started: float) -> JournalEntry:
    response, fault = delivery.response, FAULTS.get(delivery.fault)
    status: int | None = response.status
    if fault is not None:
        status = None if fault.silent else fault.status or response.status
    return JournalEntry(
        number=number,
        at=time.time(),
        method=call.method,
        route=call.route,
        operation=call.operation,
        fiscal_code=call.code,
        status=status,
        elapsed=time.perf_counter() - started,
        evaluated=response.evaluated,
        fault=f"{delivery.fault}{delivery.phase}",
        request=call.body
        if call.operation != "upload_documents"
        else dict.fromkeys(call.body or {}, _BODY_OMITTED),
        response=response.body,
        findings=call.findings,
    )


_REPEATABLE = {400, 403, 413, 500}  # after these statuses a call may be repeated
_AFTER_LOST_RESPONSE = "repeat-after-lost-response"


def _rule_of_repeat(delivery: Delivery) -> str:
    """Return the protocol rule that a repeat of an approval with this response breaks, or an empty string."""
    status = delivery.response.status
    fault = FAULTS.get(delivery.fault)
    if fault is not None and fault.response is None:
        return _AFTER_LOST_RESPONSE
    approved = delivery.response.body.get("approved")
    if isinstance(approved, bool):  # with any status: `approved` is the decision (spec §3)
        return "post-after-201" if approved else "post-after-422"
    if delivery.response.body == ERRORS["already"].body:
        return "repeat-after-already-evaluated"
    return "" if status in _REPEATABLE else "repeat-after-unclear-response"
