"""The way of one call through the service: its outcome, its fault, its work, and what is noted of it."""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from attrs import define, evolve, frozen

from loanasync.sandbox import _answers as answers
from loanasync.sandbox._customers import Customer, Customers, Told
from loanasync.sandbox._linter import Linter
from loanasync.sandbox.journal import Entry, Journal
from loanasync.sandbox.outcomes import PLAIN, Answer, Outcome, Rules, UnknownTagError, read_email

__all__ = ["Call", "Engine", "Treated"]

# After these the shop has no answer of the service's.
_LEAVES_NOTHING = frozenset({"reset", "hang", "html502", "empty", "trunc", "garbage"})
_SILENT = frozenset({"reset", "hang"})


@define(eq=False)
class Call:
    """A call on its way, as it came and as it was planned."""

    operation: str
    code: str
    body: Mapping[str, Any] | None
    method: str
    route: str
    base_url: str
    findings: tuple[str, ...] = ()
    outcome: Outcome = PLAIN
    number: int = 0
    by_rule: bool = False


@frozen
class Treated:
    """An answer and the fault that spoils it."""

    answer: Answer
    fault: str = ""
    phase: str = ""


class Engine:
    """What is behind the endpoints; its methods do not wait, so each is whole to all others."""

    def __init__(
        self, customers: Customers, rules: Rules, linter: Linter, journal: Journal, dialect: str | None
    ) -> None:
        self.customers = customers
        self.rules = rules
        self.linter = linter
        self.journal = journal
        self.watching: set[Callable[[], None]] = set()  # who wants to know that something changed
        self.lock = threading.RLock()  # a test may reset what another thread serves
        self._dialect = dialect

    def plan(self, call: Call) -> Answer | None:
        """Choose the call's outcome; an answer when its tag cannot be read."""
        with self.lock:
            customer = self.customers.of(call.code) if call.code else Customer()
            call.number = customer.calls[call.operation] = customer.calls.get(call.operation, 0) + 1
            chosen = self.rules.outcome(call.operation, call.code, call.number)
            if chosen is not None:
                call.outcome, call.by_rule = chosen, True
                return None
            try:
                call.outcome = self._tagged(call, customer)
            except UnknownTagError as unknown:
                return answers.rejected({"email": [str(unknown)]})
            return None

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
            customer = self.customers.of(call.code) if call.code else Customer()
            call.findings += tuple(self.linter.of_call(call.operation, customer))
            treated = self._fault_before(call, customer) or self._worked(call)
            if call.operation == "approve":
                customer.told = _told(treated)
            if call.code:
                self.customers.save(call.code, customer)
            return treated

    def _fault_before(self, call: Call, customer: Customer) -> Treated | None:
        outcome = call.outcome
        turn = call.number - 1 if call.by_rule else customer.faults.get(call.operation, 0)
        fault = outcome.fault_of(turn)
        if fault is not None:
            customer.faults[call.operation] = turn + 1
            return Treated(answers.system_error(), fault, "before")
        if outcome.canned is not None and not outcome.canned_after:
            return Treated(outcome.canned, str(outcome.canned.status), "before")
        return None

    def _worked(self, call: Call) -> Treated:
        outcome = call.outcome
        answer = self._work(call)
        # A rule means every call that it chose; a tag means the answer that there is only one of.
        if not call.by_rule and not (answer.evaluated or answer.saved):
            return Treated(answer)
        if outcome.canned is not None:
            canned = outcome.canned
            answer = evolve(canned, evaluated=answer.evaluated, saved=answer.saved)
            return Treated(answer, str(canned.status), "after")
        if outcome.after is not None:
            return Treated(answer, outcome.after, "after")
        return Treated(answer)

    def _work(self, call: Call) -> Answer:
        outcome, body = call.outcome, call.body or {}
        match call.operation:
            case "create_request":
                return answers.create(self.customers, body)
            case "approve":
                return answers.approve(self.customers, call.code, body, outcome, self._dialect, call.base_url)
            case "upload_documents":
                return answers.upload_documents(self.customers, call.code)
            case _:
                return answers.complete(self.customers, call.code, body, outcome)

    def reset(self) -> None:
        """Forget all that came and all rules."""
        self.customers.restore({})
        self.rules.clear()
        self.journal.clear()
        self.linter.findings.clear()
        self.changed()

    def record(self, call: Call, treated: Treated, started: float) -> None:
        """Note the call, before its first byte is answered."""
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


def _entry(number: int, call: Call, treated: Treated, started: float) -> Entry:
    fault, answer = treated.fault, treated.answer
    return Entry(
        number=number,
        at=time.time(),
        method=call.method,
        route=call.route,
        operation=call.operation,
        fiscal_code=call.code,
        status=None if fault in _SILENT else _STATUS_OF.get(fault, answer.status),
        elapsed=time.perf_counter() - started,
        evaluated=answer.evaluated,
        fault=f"{fault}{treated.phase}",
        request=call.body,
        answer=answer.body,
        findings=call.findings,
    )


_STATUS_OF = {"500": 500, "html502": 502}


def _told(treated: Treated) -> Told:
    if treated.fault in _LEAVES_NOTHING:
        return "nothing"
    if treated.fault == "500":
        return "other"
    if treated.answer.status in _DECISIONS:
        return _DECISIONS[treated.answer.status]
    errors = treated.answer.body.get("errors")
    already = isinstance(errors, dict) and errors.get("domain") == [answers.ALREADY_EVALUATED]
    return "already" if already else "other"


_DECISIONS: dict[int, Told] = {201: "approved", 422: "refused"}
