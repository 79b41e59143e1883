"""An approval as a message of a queue: a JSON object, under the names of this package's models."""

from collections.abc import Mapping
from contextlib import suppress
from datetime import date
from typing import Any

import attrs
from attrs import frozen

from loanasync._display.masking import JSON
from loanasync._models.requests import AdditionalData, ApprovalRequest
from loanasync._results import Problem
from loanasync.errors import InvalidRequestError

_MEMBERS = ("fiscal_code", "request", "additional_data_needed", "scope")


@frozen(repr=False)
class Question:
    """What a message asks: the arguments of `LoanClient.approve`."""

    fiscal_code: str
    request: ApprovalRequest
    additional_data_needed: bool
    scope: str


def message(
    fiscal_code: str, request: ApprovalRequest, *, additional_data_needed: bool = False, scope: str = ""
) -> dict[str, Any]:
    """What to put in a queue for `LoanClient.approve`: plain JSON, and personal as a whole.

    Args:
        fiscal_code: As for `LoanClient.approve`, and so the others.
        request: Its members go under their own names, those that are None not at all; a date as
            ``YYYY-MM-DD``.
        additional_data_needed: Whether the service asked for the conditional block (spec §2.1).
        scope: Tells this application from others of the same customer.

    Example:
        >>> from loanasync.worker import message
        >>> told = message(fiscal_code, request, scope="order 7")
        >>> sorted(told), told["request"]["amount"]
        (['additional_data_needed', 'fiscal_code', 'request', 'scope'], 45000)
    """
    return {
        "fiscal_code": fiscal_code,
        "request": _members(request),
        "additional_data_needed": additional_data_needed,
        "scope": scope,
    }


def _members(model: ApprovalRequest | AdditionalData) -> dict[str, Any]:
    values = attrs.asdict(model, recurse=False)
    return {name: _plain(value) for name, value in values.items() if value is not None and value != {}}


def _plain(value: object) -> object:
    match value:
        case AdditionalData():
            return _members(value)
        case Mapping():
            return dict(value)
        case date():
            return value.isoformat()
        case str():  # the name of a choice, too
            return str(value)
    return value


def question_of(told: object) -> Question:
    """What a message asks; whether it may be asked is for the rules to say.

    Raises:
        InvalidRequestError: It is no such message.
    """
    if not isinstance(told, dict):
        raise InvalidRequestError((_wrong("message", f"must be an object, not {type(told).__name__}"),))
    problems = [_wrong(str(name), "is not a member of this message") for name in told if name not in _MEMBERS]
    problems += [_wrong(name, "is required") for name in _MEMBERS[:2] if name not in told]
    asked = told.get("request")
    if "request" in told and not isinstance(asked, dict):
        problems.append(_wrong("request", "must be an object"))
    needed = told.get("additional_data_needed", False)
    if not isinstance(needed, bool):
        problems.append(_wrong("additional_data_needed", "must be true or false"))
    if problems or not isinstance(asked, dict):
        raise InvalidRequestError(tuple(problems))
    return Question(
        told["fiscal_code"],
        _request(asked),
        needed,
        told.get("scope", ""),
    )


def _request(members: dict[str, JSON]) -> ApprovalRequest:
    values: dict[str, Any] = dict(members)
    additional = values.get("additional")
    if isinstance(additional, dict):
        additional = dict(additional)
        with suppress(KeyError, TypeError, ValueError):  # left as it is, for the rules to name
            since = additional["residence_start_date"]
            additional["residence_start_date"] = date.fromisoformat(since)
        values["additional"] = AdditionalData(**additional)
    return ApprovalRequest(**values)


def _wrong(name: str, what: str) -> Problem:
    return Problem(name, "", what)
