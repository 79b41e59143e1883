"""The base class of all exceptions of this package, and the exceptions of calls that were never sent."""

from typing import Literal, TypeAlias

from attrs import define

from loanasync._results import Problem

Outcome: TypeAlias = Literal["not_sent", "not_evaluated", "unknown", "approved", "refused", "done"]


class LoanError(Exception):
    """Base class of all exceptions of this package. Catch its subclasses for what to do about each.

    Two errors are equal when their type and their arguments are equal, also after pickling.

    Attributes:
        outcome: State of the operation after the call. ``not_sent``: no request left this process.
            ``not_evaluated``: the service proved that it did nothing. ``unknown``: the service may have
            evaluated the customer or, for the other calls, carried out the call. ``approved``, ``refused``:
            the service has decided. ``done``: the service carried out an operation other than `approve`.
        repeatable: True if a program may send the same call again unchanged.
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

    # Plain class attributes, no properties: subclasses have attrs fields of these names.
    outcome: Outcome = "not_sent"
    repeatable: bool = False
    entry: str | None = None

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.args == self.args

    def _repr_html_(self) -> str | None:
        """Return a table of the problems for a notebook, which shows an error without problems as text."""
        from loanasync._display import notebook  # noqa: PLC0415  (in a notebook only)

        problems = getattr(self, "problems", ())
        if not problems:
            return None
        text = str(self).replace(listed(problems), "see below", 1)
        rows = [(each.field, each.wire_name, each.message) for each in problems]
        return notebook.table(f"{type(self).__name__}: {text}", ("field", "wire name", "message"), rows)

    def __hash__(self) -> int:
        return hash((type(self), str(self)))


class ClientClosedError(LoanError):
    """A call on a client after `aclose`; nothing was sent. Make a new `LoanClient`.

    Example:
        >>> run(client.aclose())
        >>> run(client.approve(fiscal_code, request))
        Traceback (most recent call last):
            ...
        loanasync.ClientClosedError: this client was closed: make a new LoanClient, or keep this one...
    """

    def __str__(self) -> str:
        return (
            "this client was closed: make a new LoanClient, or keep this one open for as long as calls come"
        )


def listed(problems: tuple[Problem, ...]) -> str:
    """All of them in one line."""
    return "; ".join(map(str, problems))


@define(slots=False, repr=False)
class InvalidRequestError(LoanError):
    """The request breaks rules of the specification (§2, §8); nothing was sent.

    Raised before any I/O. Show `problems` at the form's fields, correct them all, and call again: an approval
    that was not asked costs the customer nothing.

    Args:
        problems: Every broken rule at once.

    Example:
        >>> try:
        ...     run(client.approve("RSSMRA", request))
        ... except InvalidRequestError as error:
        ...     print([problem.field for problem in error.problems])
        ['fiscal_code']
    """

    problems: tuple[Problem, ...]

    def __str__(self) -> str:
        return f"nothing was sent, correct this first: {listed(self.problems)}"


@define(slots=False, repr=False)
class ConfigurationError(LoanError):
    """The client is set up in a way that cannot work; nothing was sent. Mend `setting`.

    Args:
        setting: The parameter or environment variable to correct, such as ``shop_id``.
        message: What it must be.

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
        loanasync.ConfigurationError: base_url: must be https: over http the token and the customer'...
    """

    setting: str
    message: str

    def __str__(self) -> str:
        return f"{self.setting}: {self.message}"
