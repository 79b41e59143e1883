"""The circuit breaker of a client: it refuses approvals while the service decides none."""

from hashlib import blake2b
from itertools import count
from secrets import token_bytes
from typing import Literal, NamedTuple, TypeAlias

from attrs import define, field

from loanasync._forks import ForkSafe
from loanasync._protocol.endpoints import SYSTEM_FAULT, CircuitChange, Outcome
from loanasync._protocol.messages import NoResponse, Response
from loanasync._results import Approved, Refused
from loanasync._settings import CircuitBreaker
from loanasync.errors import AlreadyEvaluatedError, CircuitReason, LoanError

# ``decided`` proves that the service works. ``other`` is neither a proof nor a failure: during an outage, a
# service may still reject wrong fields and recognize customers that it has evaluated. A 403 evaluates nobody.
Verdict: TypeAlias = Literal["decided", "unknown", "other"]

_TRIAL_WAIT = 1.0  # seconds after which to ask again while another call tries; most trials are shorter


class Refusal(NamedTuple):
    """The reason for refusing a call, and the seconds until a call may try again."""

    reason: CircuitReason
    seconds: float


@define
class Circuit:
    """A state machine: closed, open for a pause, then half-open, when one call at a time tries.

    Times are seconds of any clock that does not go back.

    Args:
        settings: The settings of the client.
    """

    _settings: CircuitBreaker
    open_until: float | None = field(init=False, default=None)  # None: closed
    _failed: dict[bytes, float] = field(init=False, factory=dict)  # last failure of each customer, in order
    _trial: int = field(init=False, default=0)  # number of the call that tries, 0 for none
    _trial_until: float = field(init=False, default=0.0)

    def wait(self, now: float) -> float:
        """Return the seconds until a call may try; 0 if it may try now."""
        if self.open_until is None:
            return 0.0
        if self._trial and now < self._trial_until:
            return min(self._trial_until - now, _TRIAL_WAIT)
        return max(self.open_until - now, 0.0)

    def start_trial(self, number: int, until: float) -> None:
        """Begin the trial of a call. It ends at `until`, even if it never reports a result."""
        self._trial, self._trial_until = number, until

    def end_trial(self, number: int) -> bool:
        """End the trial of a call. Return False if the call does not try."""
        if not number or number != self._trial:
            return False
        self._trial = 0
        return True

    def fail(self, customer: bytes, trial: int, now: float) -> bool:
        """Count a failure; return True if it opens the circuit."""
        if self.open_until is not None:
            # Ignore a call that was in flight when the circuit opened.
            if not self.end_trial(trial):
                return False
        else:
            self._failed.pop(customer, None)
            self._failed[customer] = now
            while next(iter(self._failed.values())) < now - self._settings.within:
                del self._failed[next(iter(self._failed))]
            if len(self._failed) < self._settings.unknown:
                return False
            self._failed.clear()
        self.open_until = now + self._settings.pause
        return True


class Breaker(ForkSafe):
    """The circuit of a client and its copies.

    All methods may be called from several event loops and threads.

    Args:
        settings: The settings of the client.

    Attributes:
        circuits: The circuit, while it is open or has counted failures. Empty while all is well, so that an
            approval need not call this object.
    """

    def __init__(self, settings: CircuitBreaker) -> None:
        super().__init__()
        self._settings = settings
        self._secret = token_bytes(16)  # so that a digest cannot be guessed from a fiscal code
        self._numbers = count(1)
        self.circuits: list[Circuit] = []

    def refusal(self, now: float) -> Refusal | None:
        """Return a refusal if the circuit is open, else None. Its `seconds` may be 0."""
        with self.lock:
            circuit = self._open_circuit()
            return None if circuit is None else Refusal("unknown", circuit.wait(now))

    def admit(self, now: float, until: float) -> Refusal | int:
        """Return the number of a trial, 0 if the call needs none, or a refusal.

        Args:
            now: The present time.
            until: The deadline of the call.
        """
        with self.lock:
            refusal, circuit = self.refusal(now), self._open_circuit()
            if refusal is None or circuit is None:
                return 0
            if refusal.seconds:
                return refusal
            number = next(self._numbers)
            circuit.start_trial(number, until)
            return number

    def record(self, customer: str, verdict: Verdict, trial: int, now: float) -> tuple[CircuitChange, ...]:
        """Record the verdict about a call; return what it opens or closes.

        Args:
            customer: The fiscal code, of which only a digest is kept.
            verdict: The verdict.
            trial: The number of the call's trial, or 0.
            now: The present time.
        """
        with self.lock:
            circuit = self._open_circuit()
            if verdict == "decided":
                self.circuits.clear()
                return () if circuit is None else (CircuitChange("unknown"),)
            changes: tuple[CircuitChange, ...] = ()
            if verdict == "unknown" and self._fail(customer, trial, now):
                changes = (CircuitChange("unknown", self._settings.pause),)
            if circuit is not None:
                circuit.end_trial(trial)
        return changes

    def _fail(self, customer: str, trial: int, now: float) -> bool:
        if not self.circuits:
            self.circuits.append(Circuit(self._settings))
        digest = blake2b(customer.encode(), key=self._secret, digest_size=16).digest()
        return self.circuits[0].fail(digest, trial, now)

    def _open_circuit(self) -> Circuit | None:
        return next((each for each in self.circuits if each.open_until is not None), None)


def verdict_of(last: Response | NoResponse, result: Outcome | LoanError, *, was_written: bool) -> Verdict:
    """Return the verdict about a call.

    Args:
        last: Its last response, or the reason why none arrived.
        result: Its result.
        was_written: A request of the call may have reached the service.
    """
    if isinstance(result, Approved | Refused):
        return "decided"
    if isinstance(last, NoResponse):
        return "unknown" if was_written else "other"
    if last.status not in range(SYSTEM_FAULT):  # or, from a user's transport, of a wrong type
        # Shoppers cause this text by repeating their requests.
        return "other" if isinstance(result, AlreadyEvaluatedError) else "unknown"
    return "other"
