"""Conversion of models to JSON bodies, with one cattrs converter per dialect, and of JSON to models."""

import re
from collections.abc import Callable, Mapping
from datetime import date
from functools import cache, partial
from typing import Any, TypeVar, get_args, get_type_hints

import attrs
from cattrs import Converter
from cattrs.fns import identity
from cattrs.gen import make_dict_unstructure_fn, override

from loanasync._display.masking import JSON, Body
from loanasync._enums import Citizenship, DocumentType
from loanasync._models.dialect import APPROVAL_NAMES, READ_ALIASES, USER_DATA_NAMES, Dialect
from loanasync._models.requests import AdditionalData, ApprovalRequest, UserData
from loanasync._protocol.json import encode, encode_checked
from loanasync._results import Approved, Meta, Refused

DecisionType = TypeVar("DecisionType", bound=Approved | Refused)
Exact = TypeVar("Exact")

Write = Callable[[Any], Any]
Read = Callable[[Any], Any]

_DAY = re.compile("([0-9]{4}-[0-9]{2}-[0-9]{2})(?:[Tt ][0-9]{2}:[0-9]{2}[0-9:.,]*(?:[Zz]|[+-][0-9:]+)?)?")
_DAY_OF_MONTH = re.compile("[0-9]{1,2}")


def write(model: ApprovalRequest | UserData, dialect: Dialect) -> bytes:
    """Return the JSON body for a valid model. None is omitted, and `extra` is added unchanged."""
    approval, user_data = _writers(dialect)
    members = approval(model) if isinstance(model, ApprovalRequest) else user_data(model)
    return encode({**members, **model.extra}) if model.extra else encode_checked(members)


def load(dialect: Dialect) -> None:
    """Generate the writers of a dialect, which `write` does otherwise."""
    _writers(dialect)


def read_decision(decision_type: type[DecisionType], members: Mapping[str, Any], meta: Meta) -> DecisionType:
    """Return a decision. A member of a wrong type is None and listed in `meta.unread`.

    The members are read one by one, because cattrs would raise for the first wrong type and the only copy of
    the decision would be lost. `approved` must be checked before.
    """
    decision = decision_type.__new__(decision_type)
    # Filled without `__init__`, because passing it twenty arguments takes as long as reading them.
    attributes = vars(decision)
    unread = []
    for wire, name, expected in _ECHO[decision_type]:
        value = members.get(wire)
        if type(value) is not expected:
            value = _read_other_spelling(members, wire)
            if value is not None and type(value) is not expected:
                unread.append(wire)
                value = None
        attributes[name] = value
    url = attributes.get("redirect_url")
    if url is not None and not url.strip():  # an empty URL is treated as missing (spec §1.3)
        unread.append("redirectUrl")
        attributes["redirect_url"] = None
    citizenship = attributes["citizenship"]
    attributes["citizenship"] = _CITIZENSHIPS.get(citizenship, citizenship)
    attributes["approved"] = decision_type is Approved
    attributes["raw"] = Body(members)
    attributes["meta"] = attrs.evolve(meta, unread=tuple(unread)) if unread else meta
    return decision


def _read_other_spelling(members: Mapping[str, Any], wire: str) -> Any:  # noqa: ANN401  (any JSON)
    """Return the value of a member that is missing or has another type than usual."""
    value = members.get(wire)
    if value is None and wire in _ALIASES:
        value = members.get(_ALIASES[wire])
    # spec §2.1: a string in the request and an integer in the response; both are accepted here.
    if wire == "paymentDayOfMonth" and isinstance(value, str) and _DAY_OF_MONTH.fullmatch(value):
        value = int(value)
    return value


def read_user_data(members: Mapping[str, Any]) -> UserData:
    """Return the user data in the response to a completion (spec §4.2).

    A member that cannot be read is None and listed in ``unread``, because status 200 means that the data were
    saved. Unknown members are added to ``extra``.
    """
    known: dict[str, Any] = {}
    unread = []
    for field, wire in USER_DATA_NAMES.items():
        value = members.get(wire)
        if value is None:
            continue
        try:
            known[field] = _USER_DATA_READERS[field](value)
        except (TypeError, ValueError):
            unread.append(wire)
    extra = {name: value for name, value in members.items() if name not in _USER_DATA_MEMBERS}
    return UserData(**known, extra=extra, unread=tuple(unread))


def _read_exactly(expected: type[Exact], value: object) -> Exact:
    """Return a value of exactly this type, so that "false" is not read as True, nor 1.9 as 1."""
    if type(value) is not expected:
        raise TypeError(expected.__name__)
    return value


_read_text = partial(_read_exactly, str)
_read_flag = partial(_read_exactly, bool)
_read_integer = partial(_read_exactly, int)


def _read_document_type(value: object) -> DocumentType | str:
    text = _read_text(value)
    return _DOCUMENT_TYPES.get(text, text)


def _read_day_of_month(value: object) -> int:
    if isinstance(value, str) and _DAY_OF_MONTH.fullmatch(value):
        return int(value)
    return _read_integer(value)


def _read_day(value: object) -> date:
    """Return the date in a text or timestamp. The time zone is ignored, so that the day does not change."""
    match = _DAY.fullmatch(_read_text(value))
    if match is None:
        raise ValueError("YYYY-MM-DD")
    return date.fromisoformat(match[1])


def _write_day(value: date) -> str:
    return f"{value.year:04}-{value.month:02}-{value.day:02}"


def _write_month(value: date) -> str:
    return f"{value.month:02}/{value.year:04}"


# Enumerations are open: a value that a later version of the service added stays a str.
_CITIZENSHIPS = {**{each.value: each for each in Citizenship}, "Italian": Citizenship.ITALIAN}
_DOCUMENT_TYPES = {each.value: each for each in DocumentType}


_ALIASES = {name: alias for alias, name in READ_ALIASES.items()}


def _echo_of(decision_type: type) -> tuple[tuple[str, str, type], ...]:
    """Return the wire name, the field and the type of each member of a decision (spec §2.1)."""
    hints = {**get_type_hints(decision_type), "citizenship": str | None}
    own = ("approved", "raw", "meta")
    names = [each.name for each in attrs.fields(decision_type) if each.name not in own]
    return tuple((APPROVAL_NAMES[name], name, get_args(hints[name])[0]) for name in names)


_ECHO: dict[type, tuple[tuple[str, str, type], ...]] = {
    decision_type: _echo_of(decision_type) for decision_type in (Approved, Refused)
}


_USER_DATA_MEMBERS = frozenset(USER_DATA_NAMES.values())
_READERS_BY_TYPE: Mapping[object, Read] = {
    str | None: _read_text,
    bool | None: _read_flag,
    int | None: _read_day_of_month,
    date | None: _read_day,
    DocumentType | str | None: _read_document_type,
}
_USER_DATA_READERS = {
    each.name: _READERS_BY_TYPE[each.type] for each in attrs.fields(UserData) if each.name in USER_DATA_NAMES
}


def _make_writers(dialect: Dialect) -> tuple[Write, Write]:
    """Return functions for the JSON members of an approval request and of user data, without `extra`."""
    converter = Converter()
    special: dict[str, Write] = {
        "payment_day_of_month": str,  # a string in the POST (spec §2.1), an integer in the PATCH (spec §2.2)
        "residence_start_date": _write_month,
        "citizenship": lambda value: dialect.italian if value in ("italian", "Italian") else value,
    }

    def members_of(model: type, names: Mapping[str, str], hooks: Mapping[str, Write]) -> Write:
        overrides: dict[str, Any] = {
            each.name: override(
                rename=names.get(each.name),
                omit=each.name not in names,
                omit_if_default=each.default is None,  # None is not sent
                unstruct_hook=hooks.get(each.name, identity),  # cattrs generates no call for `identity`
            )
            for each in attrs.fields(model)
        }
        return make_dict_unstructure_fn(model, converter, **overrides)

    own = members_of(ApprovalRequest, dialect.approval_names, special)
    additional = members_of(AdditionalData, dialect.approval_names, special)
    days = {each.name: _write_day for each in attrs.fields(UserData) if each.type == date | None}

    def approval(request: ApprovalRequest) -> dict[str, JSON]:
        members: dict[str, JSON] = own(request)
        if request.additional is not None:
            members.update(additional(request.additional))
        return members

    return approval, members_of(UserData, USER_DATA_NAMES, days)


_writers = cache(_make_writers)  # not a decorator, because mutation testing skips decorated functions
