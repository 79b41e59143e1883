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


def read_decision(decision_type: type[DecisionType], members: Mapping[str, Any], meta: Meta) -> DecisionType:
    """Return a decision. A member of a wrong type is None and listed in `meta.unread`.

    The members are read one by one, because cattrs would raise for the first wrong type and the only copy of
    the decision would be lost. `approved` must be checked before.
    """
    known = _canonical(members)
    names, types = _ECHO[decision_type]
    echo: dict[str, Any] = {
        names[wire]: value for wire, value in known.items() if types.get(wire) is type(value)
    }
    if not echo.get("redirect_url", "-").strip():  # an empty URL is treated as missing (spec §1.3)
        del echo["redirect_url"]
    if len(echo) < len(names.keys() & known.keys()):
        unread = [name for name in names if known.get(name) is not None and names[name] not in echo]
        meta = attrs.evolve(meta, unread=tuple(unread))
    if "citizenship" in echo:
        echo["citizenship"] = _CITIZENSHIPS.get(echo["citizenship"], echo["citizenship"])
    return decision_type(**echo, raw=Body(members), meta=meta)


def _canonical(members: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the members with aliases replaced and the day of the month as an int."""
    known = dict(members)
    for alias, name in READ_ALIASES.items():
        if alias in known and known.get(name) is None:
            known[name] = known[alias]
    # spec §2.1: a string in the request and an integer in the response; both are accepted here.
    day = known.get("paymentDayOfMonth")
    if isinstance(day, str) and _DAY_OF_MONTH.fullmatch(day):
        known["paymentDayOfMonth"] = int(day)
    return known


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


def _echo_of(decision_type: type) -> tuple[dict[str, str], dict[str, type]]:
    """Return field names and types of the members of a decision, by wire name (spec §2.1)."""
    hints = get_type_hints(decision_type)
    own = ("approved", "raw", "meta")
    fields = [each.name for each in attrs.fields(decision_type) if each.name not in own]
    names = {APPROVAL_NAMES[name]: name for name in fields}
    types = {wire: get_args(hints[name])[0] for wire, name in names.items()}
    return names, types | {"citizenship": str}


_ECHO: dict[type, tuple[dict[str, str], dict[str, type]]] = {
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
        "citizenship": {**_CITIZENSHIPS, "italian": dialect.italian, "Italian": dialect.italian}.__getitem__,
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
