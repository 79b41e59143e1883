"""Models to the bytes that are sent, and received bytes to models, one cattrs converter per dialect."""

import re
from collections.abc import Callable, Mapping
from datetime import date
from functools import cache, partial
from typing import Any, TypeVar, get_args, get_type_hints

import attrs
from cattrs import Converter
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
    """A checked model as the bytes to send; None is left out, `extra` goes in as it is."""
    members = _writer(dialect).unstructure(model)
    return encode(members) if model.extra else encode_checked(members)


def read_decision(kind: type[DecisionType], members: Mapping[str, Any], meta: Meta) -> DecisionType:
    """A decision's members under our names; one of a wrong type becomes None and is named in meta.

    Member by member and not by cattrs, which reads all or nothing: a net amount that comes as a string must
    not cost the shop its one answer. The decision itself (`approved`) is checked before.
    """
    known = _canonical(members)
    names, types = _ECHO[kind]
    echo: dict[str, Any] = {
        names[wire]: value for wire, value in known.items() if types.get(wire) is type(value)
    }
    if not echo.get("redirect_url", "-").strip():  # nobody can be sent to an empty address (spec §1.3)
        del echo["redirect_url"]
    if len(echo) < len(names.keys() & known.keys()):
        unread = [name for name in names if known.get(name) is not None and names[name] not in echo]
        meta = attrs.evolve(meta, unread=tuple(unread))
    if "citizenship" in echo:
        echo["citizenship"] = _CITIZENSHIPS.get(echo["citizenship"], echo["citizenship"])
    return kind(**echo, raw=Body(members), meta=meta)


def _canonical(members: Mapping[str, Any]) -> Mapping[str, Any]:
    """The members in the one form that our names have; most are in it already."""
    known = dict(members)
    for alias, name in READ_ALIASES.items():
        if alias in known and known.get(name) is None:
            known[name] = known[alias]
    # spec §2.1: a string in the approval's input and an integer in its response; read either.
    day = known.get("paymentDayOfMonth")
    if isinstance(day, str) and _DAY_OF_MONTH.fullmatch(day):
        known["paymentDayOfMonth"] = int(day)
    return known


def read_user_data(members: Mapping[str, Any]) -> UserData:
    """Return the data that a completion answered with, member by member (spec §4.2).

    A member that cannot be read is None and named in ``unread``: the 200 already says that the data are
    saved. Members that this version does not know go into ``extra``.
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


def _read_exactly(kind: type[Exact], value: object) -> Exact:
    """Return a value of this type as it is: "false" must not be read as True, nor 1.9 as 1."""
    if type(value) is not kind:
        raise TypeError(kind.__name__)
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
    """Return the day that is written, also in a time stamp: no other time zone may change it."""
    found = _DAY.fullmatch(_read_text(value))
    if found is None:
        raise ValueError("YYYY-MM-DD")
    return date.fromisoformat(found[1])


def _write_day(value: date) -> str:
    return f"{value.year:04}-{value.month:02}-{value.day:02}"


def _write_month(value: date) -> str:
    return f"{value.month:02}/{value.year:04}"


# Open enumerations: a value which a later version of the service may have added stays what it is.
_CITIZENSHIPS = {**{each.value: each for each in Citizenship}, "Italian": Citizenship.ITALIAN}
_DOCUMENT_TYPES = {each.value: each for each in DocumentType}


def _echo_of(kind: type) -> tuple[dict[str, str], dict[str, type]]:
    """The members that a decision echoes (spec §2.1): our names for them, and their types."""
    hints = get_type_hints(kind)
    own = ("approved", "raw", "meta")
    names = {APPROVAL_NAMES[each.name]: each.name for each in attrs.fields(kind) if each.name not in own}
    types = {wire: get_args(hints[name])[0] for wire, name in names.items()}
    return names, types | {"citizenship": str}


_ECHO: dict[type, tuple[dict[str, str], dict[str, type]]] = {
    kind: _echo_of(kind) for kind in (Approved, Refused)
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


def _make_writer(dialect: Dialect) -> Converter:
    converter = Converter()
    converter.register_unstructure_hook(date, _write_day)
    special: dict[str, Write] = {
        "payment_day_of_month": str,  # spec §2.1: a string here, an integer in the PATCH
        "residence_start_date": _write_month,
        "citizenship": lambda value: dialect.italian if value in ("italian", "Italian") else str(value),
    }

    def members_of(model: type, names: Mapping[str, str], **hooks: Write) -> Write:
        overrides: dict[str, Any] = {
            each.name: override(
                rename=names.get(each.name),
                omit=each.name not in names,
                omit_if_default=each.default is None,  # None means: not sent
                unstruct_hook=hooks.get(each.name),
            )
            for each in attrs.fields(model)
        }
        return make_dict_unstructure_fn(model, converter, **overrides)

    own = members_of(ApprovalRequest, dialect.approval_names, **special)
    additional = members_of(AdditionalData, dialect.approval_names, **special)
    user_data = members_of(UserData, USER_DATA_NAMES)

    def approval(request: ApprovalRequest) -> dict[str, JSON]:
        members: dict[str, JSON] = own(request)
        if request.additional is not None:
            members.update(additional(request.additional))
        if request.extra:
            members.update(request.extra)
        return members

    converter.register_unstructure_hook(ApprovalRequest, approval)
    converter.register_unstructure_hook(UserData, lambda data: {**user_data(data), **data.extra})
    return converter


_writer = cache(_make_writer)  # no decorator: mutation testing leaves decorated functions out
