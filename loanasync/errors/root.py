"""`LoanError`, the base class of all exceptions, and the errors that are raised before anything is sent."""

import math
from typing import Literal, TypeAlias

from attrs import define

from loanasync._results import Problem, problems_table

Outcome: TypeAlias = Literal["not_sent", "not_evaluated", "unknown", "approved", "refused", "done"]
CircuitReason: TypeAlias = Literal["unknown", "denied"]


class LoanError(Exception):
    """Base class of all exceptions of this package. Catch its subclasses to handle each case.

    Two errors are equal when their type and their arguments are equal, also after pickling.

    Attributes:
        outcome: State of the operation after the call. ``not_sent``: no request left this process.
            ``not_evaluated``: the service proved that it did nothing. ``unknown``: the service may have
            evaluated the customer or, for the other calls, carried out the call. ``approved``, ``refused``:
            the service has decided. ``done``: the service carried out an operation other than `approve`.
        repeatable: True if a program may send the same call again unchanged.
        operation: Name of the call, such as ``approve``; None for an error without a call.
        entry: Key of the call's entry in the ledger, None without a ledger.

    Example:
        >>> from loanasync.testing import denied, scripted_client
        >>> shop = scripted_client(denied())
        >>> try:
        ...     run(shop.approve(fiscal_code, request))
        ... except LoanError as error:
        ...     print(type(error).__name__, error.outcome, error.repeatable)
        AccessDeniedError not_evaluated False
    """

    # Class attributes, not properties: subclasses define attrs fields of these names.
    outcome: Outcome = "not_sent"
    repeatable: bool = False
    operation: str | None = None
    entry: str | None = None

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.args == self.args

    def _repr_html_(self) -> str | None:
        """Return the problems as an HTML table for notebooks, or None if the error has no problems."""
        problems = getattr(self, "problems", ())
        if not problems:
            return None
        joined = join_problems(problems)
        text = str(self).replace(f"the following: {joined}", "these fields").replace(joined, "see below", 1)
        return problems_table(f"{type(self).__name__}: {text}", problems)

    def __hash__(self) -> int:
        return hash((type(self), str(self)))


class ClientClosedError(LoanError):
    """The client was closed before the call; no request was sent. Create a new `LoanClient`.

    Example:
        >>> run(client.aclose())
        >>> run(client.approve(fiscal_code, request))
        Traceback (most recent call last):
            ...
        loanasync.ClientClosedError: client is closed; create a new LoanClient, or close this one af...
    """

    def __str__(self) -> str:
        return "client is closed; create a new LoanClient, or close this one after its last call"


@define(slots=False, repr=False)
class CircuitOpenError(LoanError):
    """The circuit breaker of the client is open; no request was sent. Call again after `retry_after` seconds.

    It opens after several approvals of different customers without a response or with a 5xx, or after the
    service has denied access to the shop several times.

    Args:
        operation: Name of the call, ``approve``.
        reason: ``unknown``: recent approvals ended with a 5xx or without a response. ``denied``: the service
            denied recent approvals of this shop.
        retry_after: Seconds until a call may try again, 0 or more.
        entry: Key of the call's entry in the ledger, None without a ledger.

    Example:
        >>> print(CircuitOpenError("approve", "unknown", 12.5))
        approve: request not sent; the circuit breaker is open, because recent approvals ended witho...
    """

    operation: str
    reason: CircuitReason
    retry_after: float
    entry: str | None = None

    repeatable = True

    def __str__(self) -> str:
        cause = {
            "unknown": "recent approvals ended without a response or with a 5xx",
            "denied": "the service denied recent approvals of this shop; check shop_id and auth_token",
        }[self.reason]
        return (
            f"{self.operation}: request not sent; the circuit breaker is open, because {cause}; "
            f"after {math.ceil(self.retry_after)} s the call may be repeated"
        )


def join_problems(problems: tuple[Problem, ...]) -> str:
    """Return all problems in one line."""
    return "; ".join(map(str, problems))


@define(slots=False, repr=False)
class InvalidRequestError(LoanError):
    """The request breaks rules of the specification (spec §2, §8); no request was sent.

    It is raised before any I/O. Show `problems` next to the fields of your form, correct all of them and
    call again. The customer was not evaluated.

    Args:
        problems: All broken rules.
        operation: Name of the call.

    Example:
        >>> try:
        ...     run(client.approve("RSSMRA", request))
        ... except InvalidRequestError as error:
        ...     print([problem.field for problem in error.problems])
        ['fiscal_code']
    """

    problems: tuple[Problem, ...]
    operation: str | None = None

    def __str__(self) -> str:
        return f"request not sent; fix the following: {join_problems(self.problems)}"


@define(slots=False, repr=False)
class ConfigurationError(LoanError):
    """A setting of the client is invalid; no request was sent. Correct `setting`.

    Args:
        setting: Name of the parameter or environment variable, such as ``shop_id``.
        message: The rule that its value breaks. It does not contain the value.

    Example:
        >>> from unittest import mock
        >>> with mock.patch.dict("os.environ", LOANASYNC_BASE_URL=""):
        ...     LoanClient.from_env()
        Traceback (most recent call last):
            ...
        loanasync.ConfigurationError: LOANASYNC_BASE_URL: must be set in the environment
        >>> LoanClient("http://loans.example.com", shop_id="my-shop", auth_token="secret")
        Traceback (most recent call last):
            ...
        loanasync.ConfigurationError: base_url: must start with https://; over http the token and pe...
    """

    setting: str
    message: str

    def __str__(self) -> str:
        return f"{self.setting}: {self.message}"
