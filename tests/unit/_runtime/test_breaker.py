"""The state machine of the circuit breaker, with times that the tests pass in."""

from typing import Any

import pytest

from loanasync import CircuitBreaker, ConnectError, Meta, NoResponse, Response
from loanasync._runtime.breaker import Breaker, Verdict, verdict_of
from support.builders import FISCAL_CODE
from support.response_reader import APPROVE

LATER = 1e6
OPENED, CLOSED = 30.0, 0.0


class Machine:
    """A breaker at a time that a test sets."""

    def __init__(self, **settings: Any) -> None:
        self.breaker = Breaker(CircuitBreaker(**settings))
        self.now = 100.0
        self.customers = 0

    def wait(self) -> float | None:
        """Return the seconds for which a call is refused, None if it may be sent."""
        if self.breaker.admit(self.now, LATER) is not None:
            return None
        return self.breaker.wait(self.now)

    def end(self, verdict: Verdict, trial: int = 0, customer: str = "") -> float | None:
        self.customers += 1
        return self.breaker.record(customer or str(self.customers), verdict, trial, self.now)

    def open(self, verdict: Verdict = "unknown") -> None:
        while self.end(verdict) is None:
            pass

    @classmethod
    def opened(cls, ago: float = 0) -> "Machine":
        """Return a machine whose breaker opened a number of seconds ago."""
        machine = cls()
        machine.open()
        machine.now += ago
        return machine

    def trial(self, until: float = LATER) -> int:
        trial = self.breaker.admit(self.now, until)
        assert trial
        return trial


def test_breaker_opens_after_failures_of_five_customers() -> None:
    machine = Machine()
    assert [machine.end("unknown") for _ in range(5)] == [*[None] * 4, OPENED]
    assert machine.wait() == 30.0
    machine.now += 12
    assert machine.wait() == 18.0


def test_breaker_counts_each_customer_once() -> None:
    machine = Machine()
    assert [machine.end("unknown", customer="A") for _ in range(20)] == [None] * 20
    assert [machine.end("unknown") for _ in range(4)] == [*[None] * 3, OPENED]


def test_breaker_ignores_failures_that_are_too_old() -> None:
    machine = Machine(within=60.0)
    for _ in range(4):
        machine.end("unknown")
    machine.now += 60.1
    assert [machine.end("unknown") for _ in range(5)] == [*[None] * 4, OPENED]


def test_failure_of_a_customer_counts_from_its_last_time() -> None:
    machine = Machine(unknown=3, within=60.0)
    for customer, seconds in (("A", 10), ("B", 40), ("A", 25), ("C", 0)):
        assert machine.end("unknown", customer=customer) is None
        machine.now += seconds
    assert machine.end("unknown", customer="D") == OPENED  # the third one: B is too old, and A is not


def test_decision_resets_the_count_of_failures() -> None:
    machine = Machine()
    for _ in range(4):
        machine.end("unknown")
    assert machine.end("decided") is None
    assert machine.breaker.is_quiet
    assert [machine.end("unknown") for _ in range(4)] == [None] * 4


def test_other_results_neither_count_nor_reset_the_count() -> None:
    machine = Machine()
    for _ in range(4):
        machine.end("unknown")
        machine.end("other")
    assert machine.end("unknown") == OPENED


def test_after_the_pause_one_call_at_a_time_tries() -> None:
    machine = Machine.opened(ago=30)
    first = machine.trial(until=machine.now + 20)
    assert machine.wait() == 1.0
    machine.now += 19.5
    assert machine.wait() == 0.5
    assert machine.end("decided", first) == CLOSED
    assert machine.breaker.admit(machine.now, LATER) == 0


def test_failed_trial_opens_the_breaker_for_another_pause() -> None:
    machine = Machine.opened(ago=31)
    trial = machine.trial()
    machine.now += 3
    assert machine.end("unknown", trial) == OPENED
    assert machine.wait() == 30.0


def test_trial_that_proves_nothing_lets_the_next_call_try() -> None:
    machine = Machine.opened(ago=30)
    first = machine.trial()
    assert machine.end("other", first) is None
    assert machine.trial() != first


@pytest.mark.parametrize("seconds", [60, 61])
def test_trial_without_a_result_ends_at_its_deadline(seconds: float) -> None:
    machine = Machine.opened(ago=30)
    lost = machine.trial(until=machine.now + 60)
    machine.now += seconds
    second = machine.trial(until=machine.now + 60)
    assert machine.end("other", lost) == machine.end("unknown", lost) is None
    assert machine.wait() == 1.0  # the second one still tries
    assert machine.end("decided", second) == CLOSED


def test_calls_in_flight_when_it_opened_do_not_prolong_the_pause() -> None:
    machine = Machine.opened(ago=29)
    assert [machine.end("unknown") for _ in range(10)] == [None] * 10
    assert machine.wait() == 1.0
    machine.now += 1
    machine.trial()
    assert machine.end("unknown") is None


def test_decision_of_a_call_in_flight_closes_the_breaker() -> None:
    machine = Machine.opened()
    assert machine.end("decided") == CLOSED
    assert machine.breaker.admit(machine.now, LATER) == 0


def test_breaker_keeps_no_fiscal_code() -> None:
    machine = Machine()
    machine.end("unknown", customer=FISCAL_CODE)
    assert FISCAL_CODE not in repr(vars(machine.breaker))


EVALUATED = b"User already evaluated for approval"
VERDICTS: dict[Verdict, list[tuple[int, bytes]]] = {
    "decided": [(201, b'{"approved": true}'), (422, b'{"approved": false}')],
    "unknown": [(500, b"{}"), (500, b'{"approved": true}'), (502, b"<html>"), (503, b"")],
    "other": [
        (403, b'{"error": "Access denied"}'),
        (400, b'{"errors": {"domain": ["This sales point cannot apply for a loan"]}}'),
        *((403, body) for body in (b"<html>Request blocked</html>", b'{"error": "Blocked"}', b"")),
        *((status, EVALUATED) for status in (400, 503)),
        (400, b'{"errors": {"city": ["This value should not be blank."]}}'),
        (409, b'{"errors": "The request cannot be completed"}'),
        *((status, b"") for status in (201, 303, 429)),
    ],
}


@pytest.mark.parametrize("verdict", VERDICTS)
def test_verdict_of_a_response(verdict: Verdict) -> None:
    for status, body in VERDICTS[verdict]:
        response = Response(status=status, headers={}, body=body)
        result = APPROVE.read(response, Meta(status, 1, 0.1))
        assert verdict_of(response, result, was_written=True) == verdict, (status, body)


@pytest.mark.parametrize(("was_written", "verdict"), [(True, "unknown"), (False, "other")])
def test_verdict_without_a_response(*, was_written: bool, verdict: Verdict) -> None:
    last = NoResponse(error=ConnectError, cause_type="OSError", is_sent=False)
    error = ConnectError("approve", "OSError", "unknown", 1)
    assert verdict_of(last, error, was_written=was_written) == verdict
