"""The next step after an error of an approval, which bulk runs and queue workers share."""

from typing import Literal, TypeAlias

from loanasync._runtime.retry import retry_after
from loanasync.errors import (
    AccessDeniedError,
    CircuitOpenError,
    ClientClosedError,
    ConfigurationError,
    InFlightError,
    LedgerMismatchError,
    LoanError,
    ShopNotAllowedError,
    UnexpectedStatusError,
)

Step: TypeAlias = Literal["finish", "try again", "put back", "refused shop", "pause"]

_PAUSING = ConfigurationError | LedgerMismatchError  # errors of every call, until a person has acted
_WAITING = InFlightError | ClientClosedError  # errors after which another attempt may lead to a decision
_DENIED = AccessDeniedError | ShopNotAllowedError | UnexpectedStatusError  # for any customer
_ACCESS_DENIED = "access_denied"  # code of the problem in the 403 of spec §7; a firewall sends another body
_TOO_MANY = 429  # RFC 6585
_LONGEST_WAIT = 600.0  # seconds that a response may ask for
REFUSED_SHOP = (
    "the service refuses this shop: check the token, LOANASYNC_AUTH_TOKEN, and the shop, LOANASYNC_SHOP_ID"
)


def next_step(error: Exception) -> Step:
    """Return what a queue does with a message, and a bulk run with a row, whose call ended with this error.

    ================  ========================================  ==========================================
    step              message                                   row
    ================  ========================================  ==========================================
    ``finish``        the error is its result                   the error is its result
    ``put back``      goes back with all its tries: nothing     waits and is tried again, at most for an
                      was sent, or the service limits           hour, if an earlier row was decided. A row
                      requests (429)                            in flight elsewhere has the error as result
    ``refused shop``  as ``put back``: nobody is evaluated      the run stops if it is the first one, or
                      until the token is corrected              the fifth in sequence
    ``try again``     goes back with one try less: it was sent  the error is its result, and counts for
                      and not evaluated                         the stop rule
    ``pause``         as ``put back``, and the worker pauses:   the run stops
                      every message would end like this
    ================  ========================================  ==========================================
    """
    if isinstance(error, _PAUSING):
        return "pause"
    if isinstance(error, _WAITING) or (isinstance(error, LoanError) and error.repeatable):
        return "put back"
    if not isinstance(error, _DENIED) or error.outcome != "not_evaluated":
        return "finish"
    if isinstance(error, UnexpectedStatusError):
        return "put back" if error.status == _TOO_MANY else "try again"
    is_of_shop = isinstance(error, ShopNotAllowedError)
    is_of_shop = is_of_shop or [each.code for each in error.problems] == [_ACCESS_DENIED]
    return "refused shop" if is_of_shop else "try again"


def seconds_to_wait(error: LoanError) -> float:
    """Return the seconds that an error asks to wait before the next call; 0 if it asks for none."""
    if isinstance(error, CircuitOpenError):
        return error.retry_after
    if isinstance(error, UnexpectedStatusError) and error.meta.retry_after is not None:
        return min(retry_after({"Retry-After": error.meta.retry_after}), _LONGEST_WAIT)
    return 0.0
