"""The state machine of the circuit breaker, with times that the tests pass in."""

from typing import Any

import pytest

from loanasync import (
    AccessDeniedError,
    AlreadyEvaluatedError,
    Approved,
    CannotCompleteError,
    CircuitBreaker,
    ConnectError,
    Meta,
    NoResponse,
    RejectedError,
    Response,
    ShopNotAllowedError,
    SystemFaultError,
    UnexpectedResponseError,
    UnexpectedStatusError,
)
from loanasync._protocol.endpoints import CircuitChange
from loanasync._runtime.breaker import Breaker, Refusal, Verdict, verdict_of
from support.builders import FISCAL_CODE
from support.response_reader import APPROVE

SHOP, OTHER_SHOP = "shop-1", "shop-2"
LATER = 1e6
OPENED = (CircuitChange("unknown", 30.0),)


class Machine:
    """A breaker at a time that a test sets."""

    def __init__(self, **settings: Any) -> None:
        self.breaker = Breaker(CircuitBreaker(**settings))
        self.now = 100.0
        self.customers = 0

    def admit(self, shop: str = SHOP, until: float = LATER) -> Refusal | int:
        return self.breaker.admit(shop, self.now, until)

    def end(
        self, verdict: Verdict, trial: int = 0, shop: str = SHOP, customer: str = ""
    ) -> tuple[CircuitChange, ...]:
        self.customers += 1
        return self.breaker.record(shop, customer or str(self.customers), verdict, trial, self.now)

    def open(self, verdict: Verdict = "unknown") -> None:
        while not self.end(verdict):
            pass

    def trial(self, until: float = LATER) -> int:
        trial = self.admit(until=until)
        assert isinstance(trial, int)
        assert trial
        return trial


def test_breaker_opens_after_failures_of_five_customers() -> None:
    machine = Machine()
    assert [machine.end("unknown") for _ in range(5)] == [(), (), (), (), OPENED]
    assert machine.admit() == Refusal("unknown", 30.0)
    machine.now += 12
    assert machine.admit(OTHER_SHOP) == Refusal("unknown", 18.0)


def test_breaker_counts_each_customer_once() -> None:
    machine = Machine()
    assert [machine.end("unknown", customer="A") for _ in range(20)] == [()] * 20
    assert [machine.end("unknown") for _ in range(4)] == [(), (), (), OPENED]


def test_breaker_ignores_failures_that_are_too_old() -> None:
    machine = Machine(within=60.0)
    for _ in range(4):
        machine.end("unknown")
    machine.now += 60.1
    assert [machine.end("unknown") for _ in range(5)] == [(), (), (), (), OPENED]


def test_failure_of_a_customer_counts_from_its_last_time() -> None:
    machine = Machine(unknown=3, within=60.0)
    for customer, seconds in (("A", 10), ("B", 40), ("A", 25), ("C", 0)):
        assert machine.end("unknown", customer=customer) == ()
        machine.now += seconds
    assert machine.end("unknown", customer="D") == OPENED  # the third one: B is too old, and A is not


def test_decision_resets_the_count_of_failures() -> None:
    machine = Machine()
    for _ in range(4):
        machine.end("unknown")
    assert machine.end("decided") == ()
    assert machine.breaker.circuits == {}
    assert [machine.end("unknown") for _ in range(4)] == [()] * 4


def test_other_results_neither_count_nor_reset_the_count() -> None:
    machine = Machine()
    for _ in range(4):
        machine.end("unknown")
        machine.end("other")
    assert machine.end("unknown") == OPENED


def test_denials_open_the_breaker_for_their_shop_only() -> None:
    machine = Machine(denied=2)
    machine.end("denied", shop=OTHER_SHOP)
    assert machine.end("denied") == ()
    assert machine.end("denied") == (CircuitChange("denied", 30.0),)
    assert machine.admit() == Refusal("denied", 30.0)
    assert machine.admit(OTHER_SHOP) == 0
    assert machine.end("decided", shop=OTHER_SHOP) == ()
    assert machine.admit() == Refusal("denied", 30.0)
    assert machine.end("decided") == (CircuitChange("denied"),)


def test_after_the_pause_one_call_at_a_time_tries() -> None:
    machine = Machine()
    machine.open()
    machine.now += 30
    first = machine.trial(until=machine.now + 20)
    assert machine.admit() == Refusal("unknown", 1.0)
    machine.now += 19.5
    assert machine.admit() == Refusal("unknown", 0.5)
    assert machine.end("decided", first) == (CircuitChange("unknown"),)
    assert machine.admit() == 0


def test_failed_trial_opens_the_breaker_for_another_pause() -> None:
    machine = Machine()
    machine.open()
    machine.now += 31
    trial = machine.trial()
    machine.now += 3
    assert machine.end("unknown", trial) == OPENED
    assert machine.admit() == Refusal("unknown", 30.0)


def test_trial_that_proves_nothing_lets_the_next_call_try() -> None:
    machine = Machine()
    machine.open()
    machine.now += 30
    first = machine.trial()
    assert machine.end("other", first) == ()
    assert machine.trial() != first


def test_trial_without_a_result_ends_at_its_deadline() -> None:
    machine = Machine()
    machine.open()
    machine.now += 30
    lost = machine.trial(until=machine.now + 60)
    machine.now += 60
    second = machine.trial(until=machine.now + 60)
    assert machine.end("other", lost) == machine.end("unknown", lost) == ()
    assert machine.admit() == Refusal("unknown", 1.0)  # the second one still tries
    assert machine.end("decided", second) == (CircuitChange("unknown"),)


def test_calls_in_flight_when_it_opened_do_not_prolong_the_pause() -> None:
    machine = Machine()
    machine.open()
    machine.now += 29
    assert [machine.end("unknown") for _ in range(10)] == [()] * 10
    assert machine.admit() == Refusal("unknown", 1.0)
    machine.now += 1
    machine.trial()
    assert machine.end("unknown") == ()


def test_decision_of_a_call_in_flight_closes_the_breaker() -> None:
    machine = Machine()
    machine.open()
    assert machine.end("decided") == (CircuitChange("unknown"),)
    assert machine.admit() == 0


def test_trial_concerns_both_open_circuits() -> None:
    machine = Machine()
    machine.open()
    machine.open("denied")
    assert machine.admit(OTHER_SHOP) == Refusal("unknown", 30.0)
    machine.now += 30
    trial = machine.trial()
    assert machine.end("denied", trial) == (CircuitChange("denied", 30.0),)
    assert machine.admit() == Refusal("denied", 30.0)
    assert machine.admit(OTHER_SHOP)  # the other circuit let the next call try
    assert machine.end("decided") == (CircuitChange("unknown"), CircuitChange("denied"))


def test_breaker_keeps_no_fiscal_code() -> None:
    machine = Machine(unknown=10)
    machine.end("unknown", customer=FISCAL_CODE)
    [circuit] = machine.breaker.circuits.values()
    assert FISCAL_CODE not in repr(circuit)
    [digest] = circuit._failed
    machine.end("unknown", customer=FISCAL_CODE.lower())
    assert len(digest) == 16
    assert len(circuit._failed) == 2


DENIED = b'{"error": "Access denied"}'
RESPONSES: list[tuple[int, bytes, type, Verdict]] = [
    (201, b'{"approved": true}', Approved, "decided"),
    (500, b'{"errors": {"system": ["System error"]}}', SystemFaultError, "unknown"),
    (500, b'{"approved": true}', UnexpectedResponseError, "unknown"),
    (502, b"<html>", UnexpectedStatusError, "unknown"),
    (503, b"", UnexpectedStatusError, "unknown"),
    (503, b"User already evaluated for approval", AlreadyEvaluatedError, "other"),
    (403, DENIED, AccessDeniedError, "denied"),
    (403, b"<html>Request blocked</html>", AccessDeniedError, "other"),
    (403, b'{"error": "Blocked"}', AccessDeniedError, "other"),
    (403, b"", AccessDeniedError, "other"),
    (
        400,
        b'{"errors": {"domain": ["This sales point cannot apply for a loan"]}}',
        ShopNotAllowedError,
        "denied",
    ),
    (400, b'{"errors": {"city": ["This value should not be blank."]}}', RejectedError, "other"),
    (
        400,
        b'{"errors": {"domain": ["User already evaluated for approval"]}}',
        AlreadyEvaluatedError,
        "other",
    ),
    (409, b'{"errors": "The request cannot be completed"}', CannotCompleteError, "other"),
    (429, b"", UnexpectedStatusError, "other"),
    (303, b"", UnexpectedStatusError, "other"),
    (201, b"<html>", UnexpectedResponseError, "other"),
    (201, b"", UnexpectedResponseError, "other"),
]


@pytest.mark.parametrize(("status", "body", "kind", "verdict"), RESPONSES)
def test_verdict_of_a_response(status: int, body: bytes, kind: type, verdict: Verdict) -> None:
    response = Response(status=status, headers={}, body=body)
    result = APPROVE.read(response, Meta(status, 1, 0.1))
    assert type(result) is kind
    assert verdict_of(response, result, was_written=True) == verdict


@pytest.mark.parametrize(("was_written", "verdict"), [(True, "unknown"), (False, "other")])
def test_verdict_without_a_response(*, was_written: bool, verdict: Verdict) -> None:
    last = NoResponse(error=ConnectError, cause_type="OSError", is_sent=False)
    error = ConnectError("approve", "OSError", "unknown", 1)
    assert verdict_of(last, error, was_written=was_written) == verdict
