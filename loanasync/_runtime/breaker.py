"""The circuit breaker of a client: it refuses approvals while the service decides none."""

from hashlib import blake2b
from itertools import count
from secrets import token_bytes
from typing import Literal, TypeAlias

from loanasync._models.classes import ForkSafe
from loanasync._models.decisions import Approved, Refused
from loanasync._protocol.endpoints import SYSTEM_FAULT, Outcome
from loanasync._protocol.messages import NoResponse, Response
from loanasync._settings import CircuitBreaker
from loanasync.errors import AlreadyEvaluatedError, LoanError

# ``decided`` proves that the service works. ``other`` is neither a proof nor a failure: during an outage, a
# service may still reject wrong fields and recognize customers that it has evaluated. A 403 evaluates nobody.
Verdict: TypeAlias = Literal["decided", "unknown", "other"]

_TRIAL_WAIT = 1.0  # seconds after which to ask again while another call tries; most trials are shorter


class Breaker(ForkSafe):
    """A state machine: closed, open for a pause, then half-open, when one call at a time tries.

    A client and its copies share it. All methods may be called from several event loops and threads. Times
    are seconds of any clock that does not go back.

    Args:
        settings: The settings of the client.

    Attributes:
        is_quiet: True while it is closed and has counted no failure, so that an approval need not call it.
        open_until: The end of the pause, None while it is closed.
    """

    def __init__(self, settings: CircuitBreaker) -> None:
        super().__init__()
        self._settings = settings
        self._secret = token_bytes(16)  # so that a digest cannot be guessed from a fiscal code
        self._numbers = count(1)
        self.is_quiet: bool = True
        self.open_until: float | None = None
        self._failed: dict[bytes, float] = {}  # last failure of each customer, in order
        self._trial = 0  # number of the call that tries, 0 for none
        self._trial_until = 0.0

    def wait(self, now: float) -> float | None:
        """Return the seconds until a call may try, None if all calls may be sent."""
        with self.lock:
            if self.open_until is None:
                return None
            if self._trial and now < self._trial_until:
                return min(self._trial_until - now, _TRIAL_WAIT)
            return max(self.open_until - now, 0.0)

    def admit(self, now: float, until: float) -> int | None:
        """Return the number of a trial, 0 if the call needs none, or None if it may not be sent.

        Args:
            now: The present time.
            until: The deadline of the call, at which its trial ends even if it never reports a result.
        """
        with self.lock:
            seconds = self.wait(now)
            if seconds is None:
                return 0
            if seconds:
                return None
            self._trial, self._trial_until = next(self._numbers), until
            return self._trial

    def record(self, customer: str, verdict: Verdict, trial: int, now: float) -> float | None:
        """Record the verdict about a call.

        Args:
            customer: The fiscal code, of which only a digest is kept.
            verdict: The verdict.
            trial: The number of the call's trial, or 0.
            now: The present time.

        Returns:
            The pause that begins, 0 if the breaker closes, None if neither happens.
        """
        with self.lock:
            was_open = self.open_until is not None
            if verdict == "decided":
                self.is_quiet, self.open_until, self._trial = True, None, 0
                self._failed.clear()
                return 0.0 if was_open else None
            is_trial = trial != 0 and trial == self._trial
            if is_trial:
                self._trial = 0
            # Ignore the failure of a call that was in flight when the breaker opened.
            if verdict != "unknown" or not (is_trial if was_open else self._is_one_too_many(customer, now)):
                return None
            self.open_until = now + self._settings.pause
            return self._settings.pause

    def _is_one_too_many(self, customer: str, now: float) -> bool:
        self.is_quiet = False
        digest = blake2b(customer.encode(), key=self._secret, digest_size=16).digest()
        self._failed.pop(digest, None)
        self._failed[digest] = now
        while next(iter(self._failed.values())) < now - self._settings.within:
            del self._failed[next(iter(self._failed))]
        if len(self._failed) < self._settings.unknown:
            return False
        self._failed.clear()
        return True


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
