"""How a client uses a ledger: one question for each key at once, claimed before and settled after."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from attrs import frozen

from loanasync._calls import Call, Outcome
from loanasync._decisions import Approved, Refused
from loanasync._pipeline import Claim, Pipeline
from loanasync._policy import RetryPolicy, Timeout
from loanasync._telemetry import CallRecord
from loanasync.errors import ConfigurationError, InFlightError, LoanError, PayloadMismatchError
from loanasync.ledger._entries import State
from loanasync.ledger._guard import LedgerGuard
from loanasync.ledger._keys import Digests, digests_of
from loanasync.ledger._policy import LedgerPolicy
from loanasync.ledger._protocol import DecisionLedger

__all__ = ["Recorder", "recorder"]

Ask: TypeAlias = Callable[[Claim], Awaitable[Outcome | LoanError]]
_LAST = 5.0  # seconds for what is still to be written down when a client was closed and its time is up


@frozen
class _Flight:
    """A call under way, in a task of its own, which outlives who asked for it."""

    task: "asyncio.Task[Outcome | LoanError]"
    payload: str


def recorder(ledger: object, policy: object) -> "Recorder":
    """What a client uses of its ledger.

    Raises:
        ConfigurationError: It has none, or one that cannot be.
    """
    if not isinstance(ledger, DecisionLedger):
        raise ConfigurationError("ledger", "must be a ledger, such as loanasync.ledger.SqliteLedger")
    if policy is None:
        policy = LedgerPolicy()
    if not isinstance(policy, LedgerPolicy):
        raise ConfigurationError("ledger_policy", "must be a loanasync.ledger.LedgerPolicy")
    return Recorder(ledger, policy)


class Recorder:
    """What a client and its light copies share of their ledger."""

    def __init__(self, ledger: DecisionLedger, policy: LedgerPolicy) -> None:
        self.ledger = ledger
        self.policy = policy
        self._flights: dict[tuple[asyncio.AbstractEventLoop, str], _Flight] = {}

    async def approve(
        self, pipeline: Pipeline, call: Call, timeout: Timeout, retry: RetryPolicy, scope: str
    ) -> Outcome:
        """A decision, the ledger's or the service's.

        Raises:
            LoanError: Whatever the call came to, if it is no decision.
        """
        digests = digests_of(call, self.policy, scope)
        place = asyncio.get_running_loop(), digests.key
        flight = self._flights.get(place)
        if flight is not None:
            return await pipeline.run(call, timeout, retry, _Joined(call, digests, flight, timeout.total))
        guard = LedgerGuard(self.ledger, self.policy, call, digests, timeout.total)
        task = place[0].create_task(_flown(pipeline.run(call, timeout, retry, guard)))
        self._flights[place] = _Flight(task, digests.payload)
        task.add_done_callback(lambda _: self._flights.pop(place, None))
        outcome = await asyncio.shield(task)  # who is cancelled here goes, and the task goes on
        if isinstance(outcome, LoanError):
            try:
                raise outcome
            finally:
                del outcome, task  # or error, traceback and frame would hold each other
        return outcome

    async def aclose(self) -> None:
        """Let the calls of this loop that lost their connection write down what is known of them."""
        here = asyncio.get_running_loop()
        tasks = [flight.task for (loop, _), flight in tuple(self._flights.items()) if loop is here]
        if tasks:
            await asyncio.wait(tasks, timeout=_LAST)


async def _flown(running: Awaitable[Outcome]) -> Outcome | LoanError:
    """An error as a value: several may wait for it, and each raises one of its own."""
    try:
        return await running
    except LoanError as error:
        return _anew(error)


def _anew(error: LoanError) -> LoanError:
    return type(error)(*error.args)


@frozen
class _Joined:
    """The guard of a call whose question is being asked in this very process."""

    call: Call
    digests: Digests
    flight: _Flight
    within: float

    async def __call__(self, record: CallRecord, ask: Ask, *, is_busy: bool) -> Outcome | LoanError:
        """Wait for the other's outcome."""
        del ask, is_busy
        record.guarded("joined")
        operation = self.call.endpoint.operation
        if self.digests.payload != self.flight.payload:
            return PayloadMismatchError(operation, self.digests.key, State.INFLIGHT.value)
        try:
            async with asyncio.timeout(self.within):
                outcome = await asyncio.shield(self.flight.task)
        except TimeoutError:
            return InFlightError(operation, self.digests.key)
        if isinstance(outcome, LoanError):
            return _anew(outcome)
        if isinstance(outcome, Approved | Refused):
            record.decided(approved=outcome.approved)
        return outcome
