"""Generates the table of problems in docs/reference/errors.md from problems that the client reports."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from loanasync import Dialect, InvalidRequestError, Limits, Problem, UserData
from loanasync._models.requests import APPROVAL_NAMES, USER_DATA_NAMES
from loanasync._models.texts import RARE_RULES, TEXTS
from loanasync._models.values import Rule, checker
from loanasync._protocol import rules
from loanasync._protocol.error_bodies import read_problems
from loanasync.bulk.rows import arguments_of as arguments_of_row
from loanasync.testing import approval_request
from loanasync.worker.handler import arguments_of as arguments_of_message

# Together, these values break every rule of every field.
VALUES: tuple[object, ...] = (
    *(None, 0.5, " ", "\ud800", "a\nb", "a, b", "+39", -1, 2**63, "no form of any field"),
    datetime(2019, 5, 1, tzinfo=UTC),
)
DEMANDING = Dialect(order_token_required=True, sends_iban=False, sends_payment_day_of_month=False)

# Bodies with the messages of spec §7, and one that it does not list.
BLANK = "This value should not be blank."
FROM_SERVICE: tuple[Mapping[str, Any], ...] = (
    {"errors": {
        "actualJobEndingDate": ["Invalid date format"],
        **{name: [BLANK] for name in ("address", "streetNumber", "email", "firstname", "lastname")},
        "mobilePhone": [BLANK],
        "amount": ["This value should be between 5000 and 1500000"],
        "citizenship": ["This value should be one of the available options."],
        "fiscalCode": ["Invalid fiscal code"],
        "instalments": ["The number of installments must be between 3 and 60"],
        "postalCode": [BLANK],
        "privacy": ["This value should be equal to 'true'."],
        "city": [5],
    }},
    {"errors": {"domain": ["User not found"]}},
    {"errors": {"domain": ["User already evaluated for approval"]}},
    {"errors": {"domain": ["This sales point cannot apply for a loan"]}},
    {"errors": {"domain": ["Invalid fiscalCode."]}},
    {"error": "Access denied"},
    {"errors": {"system": ["System error"]}},
)  # fmt: skip


def problems_of_checks() -> Iterator[Problem]:
    """Yield problems with every code of the checks before a request."""
    yield from _broken(rules.approval_rules(Limits(mobile_phone="[0-9]+")), APPROVAL_NAMES)
    yield from _broken(rules.additional_rules(), APPROVAL_NAMES)
    yield from _broken(rules.user_data_rules(), USER_DATA_NAMES)
    for code in (None, 5, " ", "\ud800", "a\nb", "short", "TSTXYZ80A01A000A"):
        yield from rules.check_fiscal_code(code, strict=True)
    extra: Any
    for extra in (5, {"a": 1j}, {5: 5}, {"email": "a"}):
        yield from _check(approval_request(extra=extra))
        yield from rules.check_user_data(UserData(extra=extra))
        yield from rules.check_payload(extra)
    additional: Any = 5
    yield from _check(approval_request(iban="IT00", payment_day_of_month=5))
    yield from _check(approval_request(additional=additional))
    yield from _check(approval_request(), needed=True)
    yield from _check(5)
    yield from rules.check_user_data(5)
    yield from rules.check_order_id(5)
    row: Any = 5
    for received in (5, {"a": 1, "request": 5, "additional_data_needed": 5}):
        yield from _raised(lambda received=received: arguments_of_message(received))
    yield from _raised(lambda: arguments_of_row(row))


def _broken(table: Mapping[str, Rule], names: Mapping[str, str]) -> Iterator[Problem]:
    for value in VALUES:
        yield from checker(table)(SimpleNamespace(**dict.fromkeys(table, value)), names)


def _check(request: object, *, needed: bool = False) -> list[Problem]:
    return rules.check_approval(request, additional_data_needed=needed, dialect=DEMANDING, limits=Limits())


def _raised(call: Any) -> tuple[Problem, ...]:
    try:
        call()
    except InvalidRequestError as error:
        return error.problems
    raise AssertionError("the call found no problem")


def problems_of_service() -> Iterator[Problem]:
    """Yield problems with every code of the service's messages."""
    for body in FROM_SERVICE:
        yield from read_problems(body)


def table() -> str:
    """Return a line for each English text: the codes and rules that have it, and other names in `params`."""
    english = {name: each["en"] for name, each in TEXTS["rules"].items()}
    texts: dict[str, str] = {}
    params: dict[str, set[str]] = {}
    for each in (*problems_of_checks(), *problems_of_service()):
        field, _, rule = each.code.rpartition(".")
        is_range = rule == "type" and "least" in each.params
        key = each.code if each.code in english or is_range else rule
        params.setdefault(key, set()).update(each.params)
        shown = f"{field}.range" if f"{field}.range" in english else "range"
        texts[key] = english[shown if is_range else "not_accepted" if key in RARE_RULES else key]
    lines: dict[tuple[str, ...], list[str]] = {}
    for key in sorted(params):
        lines.setdefault((texts[key], *sorted(params[key])), []).append(key)
    rows = []
    for (text, *names), keys in lines.items():
        others = ", ".join(f"`{name}`" for name in names if f"{{{name}}}" not in text)
        rows.append(f"| {', '.join(f'`{key}`' for key in keys)} | {text}{f' ({others})' * bool(others)} |")
    return "\n".join(["| codes or rules | English text |", "|---|---|", *rows])
