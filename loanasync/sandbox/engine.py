"""Processing of one call: choose its outcome and its fault, respond, and add it to the journal."""

import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from attrs import define, evolve, field, frozen

from loanasync.sandbox.customers import Customer, Customers, Told
from loanasync.sandbox.journal import Journal, JournalEntry
from loanasync.sandbox.linter import Linter
from loanasync.sandbox.outcomes import (
    FAULTS,
    PLAIN,
    SYSTEM_ERROR,
    Answer,
    Outcome,
    UnknownTagError,
    read_email,
)
from loanasync.sandbox.readings import Readings
from loanasync.sandbox.responder import Answers, is_already_evaluated, order_of
from loanasync.sandbox.rules import Rule, Rules

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

_MANY = 10_000  # customers, as a sandbox remembers by default
_TOO_LONG = "(too long to be kept)"


@define(eq=False)
class Call:
    """A call on its way, as it came and as it was planned."""

    operation: str
    code: str = field(repr=False)
    body: Mapping[str, Any] | None = field(repr=False)
    method: str = ""
    route: str = ""
    base_url: str = ""
    findings: tuple[str, ...] = ()
    outcome: Outcome = PLAIN
    rule: Rule | None = None
    customer: Customer | None = None

    @property
    def is_forgotten(self) -> bool:
        """Whether somebody reset its customer while it waited: it belongs to what is no more."""
        return self.customer is not None and self.customer.gone

    @property
    def counted(self) -> str:
        """Name under which its customer's faults are counted: each tag and each rule counts its own."""
        return f"{self.operation} {self.outcome.name if self.rule is None else self.rule.name}"

    @property
    def is_large(self) -> bool:
        """Whether its body is too much to be kept for each of many calls; documents are."""
        return self.operation == "upload_documents"


@frozen
class Treated:
    """An answer, the fault that spoils it on its way, and whether a rule wrote it."""

    answer: Answer
    fault: str = ""
    phase: str = ""
    canned: bool = False


class Engine:
    """What is behind the endpoints; its methods do not wait, so each is whole to all others.

    It needs no server: plan a call, then treat it. A call is changed by both, so each is made once.

    Args:
        customers: The customers that it knows.
        rules: The rules that choose outcomes.
        linter: The linter of the protocol.
        journal: The journal that `record` writes.
        dialect: The one description to speak; None accepts both.
        readings: The reading of the specification to play.

    Example:
        >>> from loanasync.sandbox import Readings
        >>> engine = Engine.in_memory(Readings(creation="array"))
        >>> call = Call("create_request", "TSTXYZ00A00A000A", {"fiscalCode": "TSTXYZ00A00A000A"})
        >>> engine.plan(call)
        >>> treated = engine.treat(call)
        >>> treated.answer.status, len(treated.answer.body), treated.fault
        (201, 1, '')
    """

    def __init__(
        self,
        customers: Customers,
        rules: Rules,
        linter: Linter,
        journal: Journal,
        dialect: str | None,
        readings: Readings = Readings(),
    ) -> None:
        self.customers = customers
        self.rules = rules
        self.linter = linter
        self.journal = journal
        self.watching: set[Callable[[], None]] = set()  # who wants to know that something changed
        self.lock: AbstractContextManager[bool] = (
            threading.RLock()
        )  # a test may reset what another thread serves
        self.readings = readings
        self._answers = Answers(customers, dialect, readings)
        rules.changed = self.changed

    @classmethod
    def in_memory(cls, readings: Readings = Readings(), *, dialect: str | None = None) -> "Engine":
        """Return an engine without a server and without a state file."""
        return cls(Customers(_MANY), Rules(0), Linter(""), Journal(), dialect, readings)

    def plan(self, call: Call) -> Answer | None:
        """Choose the call's outcome; an answer when its tag cannot be read."""
        with self.lock:
            customer = call.customer = self.customers.of(call.code)
            self._select_order(call, customer)
            number = customer.calls[call.operation] = customer.calls.get(call.operation, 0) + 1
            call.rule = self.rules.choose(call.operation, call.code, number)
            try:
                call.outcome = self._tagged(call, customer)
            except UnknownTagError as unknown:
                return self._answers.rejected({"email": [str(unknown)]})
            if call.rule is not None and call.rule.outcome is not None:
                call.outcome = call.rule.outcome.over(call.outcome)
            return None

    def _select_order(self, call: Call, customer: Customer) -> None:
        if self.readings.evaluates == "order" and call.operation == "approve":
            customer.select(order_of(call.body))

    def _tagged(self, call: Call, customer: Customer) -> Outcome:
        if call.operation == "complete":
            return read_email(customer.email)  # the body of a completion has no address (spec §2.2)
        if call.operation != "approve" or call.body is None:
            return PLAIN
        email = call.body.get("email")
        outcome = read_email(email)
        if customer.approved is None:  # a repeat after the decision changes nothing of the request
            customer.email = email if isinstance(email, str) else ""
        return outcome

    def treat(self, call: Call) -> Treated:
        """Do the call's work, or what its outcome wants instead, and remember it."""
        with self.lock:
            if call.is_forgotten:
                return Treated(SYSTEM_ERROR)
            customer = self.customers.of(call.code)
            self._select_order(call, customer)  # another call may have come while this one waited
            call.findings += tuple(self.linter.of_call(call.operation, customer))
            treated = self._fault_before(call, customer) or self._worked(call, customer)
            if call.operation == "approve":
                customer.told = _told(treated)
            self.customers.save(call.code, customer)
            return treated

    def nobody_listens(self, call: Call) -> None:
        """The shop went before it was answered: whatever it was, it was told nothing."""
        with self.lock:
            if call.operation == "approve" and call.customer is not None:
                self._select_order(call, call.customer)
                call.customer.told = "nothing"
                self.customers.save(call.code, call.customer)

    def _fault_before(self, call: Call, customer: Customer) -> Treated | None:
        outcome, counted = call.outcome, call.counted
        turn = customer.faults.get(counted, 0)
        fault = outcome.fault_of(turn)
        if fault is not None:
            if not outcome.endless:
                customer.faults[counted] = turn + 1
            return Treated(FAULTS[fault].answer or SYSTEM_ERROR, fault, "before")
        if outcome.canned is not None and not outcome.canned_after:
            return Treated(outcome.canned, str(outcome.canned.status), "before", canned=True)
        return None

    def _worked(self, call: Call, customer: Customer) -> Treated:
        outcome = call.outcome
        answer = self._work(call)
        if call.rule is None and not _is_due(call, customer, answer):
            return Treated(answer)
        if outcome.canned is not None:
            canned = evolve(outcome.canned, evaluated=answer.evaluated, saved=answer.saved)
            return Treated(canned, str(canned.status), "after", canned=True)
        if outcome.after and (own := FAULTS[outcome.after].answer):
            answer = evolve(own, evaluated=answer.evaluated, saved=answer.saved)
        return Treated(answer, outcome.after or "", "after" if outcome.after else "")

    def _work(self, call: Call) -> Answer:
        body = call.body or {}
        if call.rule is not None and call.rule.outcome is not None:
            chosen = self._answers.chosen_by_rule(call.operation, call.rule.outcome)
            if chosen is not None:
                return chosen
        match call.operation:
            case "create_request":
                return self._answers.create(body)
            case "approve":
                return self._answers.approve(call.code, body, call.outcome, call.base_url)
            case "upload_documents":
                return self._answers.upload_documents(call.code)
            case _:
                return self._answers.complete(call.code, body, call.outcome)

    def reset(self) -> None:
        """Forget all that came and all rules."""
        self.customers.restore({})
        self.rules.clear()
        self.journal.clear()
        self.linter.findings.clear()

    def record(self, call: Call, treated: Treated, started: float) -> None:
        """Note the call, before its first byte is answered."""
        with self.lock:  # a reset by another thread comes before all of it, or after
            if call.is_forgotten:
                return
            self.journal.total += 1
            number = self.journal.total
            for rule in call.findings:
                self.linter.note(rule, number)
            if self.journal.on:
                self.journal.append(_entry(number, call, treated, started))
        self.changed()

    def changed(self) -> None:
        """Tell whoever watches."""
        for tell in list(self.watching):
            tell()


def _is_due(call: Call, customer: Customer, answer: Answer) -> bool:
    """Return whether a tag's fault is due: it spoils the one response that decides, and one that saves.

    A rule needs no such count: it spoils each call that it chose.
    """
    if not answer.saved or call.outcome.after is None:
        return answer.evaluated
    counted = f"{call.counted} after"
    turn = customer.faults[counted] = customer.faults.get(counted, 0) + 1
    return turn == 1


def _entry(number: int, call: Call, treated: Treated, started: float) -> JournalEntry:
    answer, fault = treated.answer, FAULTS.get(treated.fault)
    status: int | None = answer.status
    if fault is not None:
        status = None if fault.silent else fault.status or answer.status
    return JournalEntry(
        number=number,
        at=time.time(),
        method=call.method,
        route=call.route,
        operation=call.operation,
        fiscal_code=call.code,
        status=status,
        elapsed=time.perf_counter() - started,
        evaluated=answer.evaluated,
        fault=f"{treated.fault}{treated.phase}",
        request=dict.fromkeys(call.body or {}, _TOO_LONG) if call.is_large else call.body,
        answer=answer.body,
        findings=call.findings,
        canned=treated.canned,
    )


def _told(treated: Treated) -> Told:
    status = treated.answer.status
    fault = FAULTS.get(treated.fault)
    if (fault is not None and fault.answer is None) or status > 500:  # noqa: PLR2004  (spec §7 knows one fault)
        return "nothing"
    body = treated.answer.body
    approved = body.get("approved") if isinstance(body, Mapping) else None
    if isinstance(approved, bool):  # the one value that states the decision (spec §3), whatever the status
        return "approved" if approved else "refused"
    return "already" if is_already_evaluated(treated.answer) else "other"
