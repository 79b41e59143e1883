"""Generation of one function that recognizes valid approval requests, for a dialect and limits.

Calling the rules one by one takes longer than building and writing the request. The generated function has
their conditions as straight-line code that calls no other Python function. It never accepts a request that
breaks a rule. It may refuse a valid one, for example a text with unusual spaces: then the rules decide.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from functools import lru_cache
from typing import Any, TypeAlias

from loanasync._display.masking import EMPTY_BODY
from loanasync._models.dialect import Dialect
from loanasync._models.requests import AdditionalData, ApprovalRequest
from loanasync._settings import Limits
from loanasync._validation.rules import APPROVAL_MEMBERS, additional_rules, approval_rules, check_extra
from loanasync._validation.validators import (
    INT64,
    Boolean,
    Choice,
    Day,
    Integer,
    Number,
    Optional,
    Rule,
    Text,
)

IsValid: TypeAlias = Callable[[object, bool], bool]  # takes a request and `additional_data_needed`


def _make_approval_check(dialect: Dialect, limits: Limits) -> IsValid:
    names: dict[str, Any] = {
        "__name__": __name__,
        "ApprovalRequest": ApprovalRequest,
        "AdditionalData": AdditionalData,
        "APPROVAL_MEMBERS": APPROVAL_MEMBERS,
        "EMPTY_BODY": EMPTY_BODY,
        "check_extra": check_extra,
        "date": date,
    }
    own = {field: _condition(rule, names) for field, rule in approval_rules(limits).items()}
    additional = {
        field: _condition(rule, names, if_none="not is_needed")
        for field, rule in additional_rules(limits).items()
    }
    if dialect.order_token_required:
        own["order_token"] += " and v and v.strip()"
    if not dialect.sends_iban:
        own["iban"] = "v is None"
    if not dialect.sends_payment_day_of_month:
        own["payment_day_of_month"] = "v is None"
    source = [
        "def is_valid(request, is_needed):",
        "    if type(request) is not ApprovalRequest: return False",
        *_statements("request", own),
        "    v = request.extra",
        "    if v is not EMPTY_BODY and any(check_extra(v, APPROVAL_MEMBERS)): return False",
        "    additional = request.additional",
        "    if additional is None: return not is_needed",
        "    if type(additional) is not AdditionalData: return False",
        *_statements("additional", additional),
        "    return True",
    ]
    code = compile("\n".join(source), "<check of approvals>", "exec")
    exec(code, names)  # noqa: S102  (the source contains names of fields and integers only)
    is_valid: IsValid = names["is_valid"]
    return is_valid


def _statements(model: str, conditions: Mapping[str, str]) -> Iterator[str]:
    for field, condition in conditions.items():
        yield f"    v = {model}.{field}"
        yield f"    if not ({condition}): return False"


def _condition(rule: Rule, names: dict[str, Any], if_none: str = "True") -> str:
    """Return the source of a rule for the value `v`. `names` receives the objects that the source uses."""
    match rule:
        case Optional():
            source = f"({if_none} if v is None else {_condition(rule.rule, names)})"
        case Number():
            source = f"type(v) is int and {rule.least} <= v <= {rule.most}"
        case Integer():
            source = f"type(v) is int and {INT64.start} <= v < {INT64.stop}"
        case Boolean():
            source = "type(v) is bool"
        case Day():
            source = "type(v) is date"
        case Choice():
            source = f"isinstance(v, str) and v in {_name_of(rule.options, names)}"
        case _:
            source = " and ".join(_text_conditions(rule, names))
    return source


def _text_conditions(rule: Text, names: dict[str, Any]) -> Iterator[str]:
    yield "type(v) is str and v.isprintable()"  # so it has no surrogates and no control characters
    if not rule.may_be_blank:
        yield "v.strip()"
    if rule.pattern is not None:
        yield f"{_name_of(re.compile(rule.pattern).fullmatch, names)}(v)"
    if rule.excluded is not None:
        yield f"not {_name_of(re.compile(rule.excluded).search, names)}(v)"


def _name_of(used: object, names: dict[str, Any]) -> str:
    name = f"used_{len(names)}"
    names[name] = used
    return name


# Not a decorator, because mutation testing skips decorated functions.
approval_check = lru_cache(maxsize=32)(_make_approval_check)
