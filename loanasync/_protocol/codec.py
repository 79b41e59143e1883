"""Conversion of models to JSON bodies and of JSON to models, with one cattrs converter per dialect."""

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import date
from functools import cache
from typing import Any, NoReturn, TypeVar

import attrs
from cattrs import Converter
from cattrs.fns import identity
from cattrs.gen import make_dict_unstructure_fn, override

from loanasync._display.masking import EMPTY_BODY, Body
from loanasync._enums import Citizenship, DocumentType
from loanasync._models import (
    DATE_TYPE,
    READ_ALIASES,
    USER_DATA_NAMES,
    AdditionalData,
    ApprovalRequest,
    Dialect,
    UserData,
)
from loanasync._protocol.json import encode, encode_checked
from loanasync._results import Approved, Meta, Refused
from loanasync._validation.validators import CONTROL

DecisionType = TypeVar("DecisionType", bound=Approved | Refused)
Convert = Callable[[Any], Any]
# The members of a body, the values of the fields that are no members, and the names of members that could not
# be read, which a reader adds.
Received = tuple[Mapping[str, Any], dict[str, Any], list[str]]
Read = Callable[[Received, type], Any]

_DAY = re.compile("([0-9]{4}-[0-9]{2}-[0-9]{2})(?:[Tt ][0-9]{2}:[0-9]{2}[0-9:.,]*(?:[Zz]|[+-][0-9:]+)?)?")
_DAY_OF_MONTH = re.compile("[0-9]{1,2}")
_CONTROL = re.compile(CONTROL)


def write(model: ApprovalRequest | UserData, dialect: Dialect) -> bytes:
    """Return the JSON body for a valid model. None is omitted, and `extra` is added unchanged."""
    converter = _converter(dialect)
    members = converter.unstructure(model)
    if isinstance(model, ApprovalRequest) and model.additional is not None:
        members.update(converter.unstructure(model.additional))
    return encode_checked(members) if model.extra is EMPTY_BODY else encode({**members, **model.extra})


def prepare_dialect(dialect: Dialect) -> None:
    """Create the functions that write requests and read responses, as the first call does otherwise."""
    _converter(dialect)
    _reader()


def read_decision(decision_type: type[DecisionType], members: Mapping[str, Any], meta: Meta) -> DecisionType:
    """Return a decision. A member of a wrong type is None and listed in `meta.unread`.

    `approved` must be checked before.
    """
    unread: list[str] = []
    received = members, {"raw": Body(members), "meta": meta}, unread
    decision = _reader().structure(received, decision_type)
    return attrs.evolve(decision, meta=attrs.evolve(meta, unread=tuple(unread))) if unread else decision


def read_user_data(members: Mapping[str, Any]) -> UserData:
    """Return the user data in the response to a completion (spec §4.2).

    A member that cannot be read is None and listed in ``unread``, because status 200 means that the data were
    saved. Unknown members are added to ``extra``.
    """
    extra = {name: value for name, value in members.items() if name not in _USER_DATA_MEMBERS}
    unread: list[str] = []
    data = _reader().structure((members, {"extra": extra}, unread), UserData)
    return attrs.evolve(data, unread=tuple(unread)) if unread else data


def _to_text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _to_choice(choices: Iterable[str], **spellings: str) -> Convert:
    """Return a converter to an open enumeration: a value that the service added later stays a str."""
    by_value = {**{str(each): each for each in choices}, **spellings}
    return lambda value: by_value.get(_to_text(value), value)


def _to_day(value: object) -> date:
    """Return the date in a text or timestamp. The time zone is ignored, so that the day does not change."""
    match = _DAY.fullmatch(_to_text(value))
    if match is None:
        raise ValueError
    return date.fromisoformat(match[1])


def to_url(value: object) -> str:
    """Return a URL without surrounding spaces and line breaks, which a web framework refuses in a header."""
    url = _to_text(value).strip()
    # An empty URL is treated as missing (spec §1.3). With a control character inside, the token must not be
    # guessed.
    if not url or _CONTROL.search(url):
        raise ValueError
    return url


def _to_day_of_month(value: object) -> int:
    # spec §2.1: a string in the request and an integer in the response; both are accepted here.
    digits = _to_text(value)
    if not _DAY_OF_MONTH.fullmatch(digits):
        raise ValueError
    return int(digits)


def _refuse(_: object) -> NoReturn:
    raise TypeError


# By the name of a field, or by its type: the type of values that are kept, and the converter of all others.
# A value has exactly its type, so that "false" is not read as True, nor 1.9 as 1.
_READERS: Mapping[object, tuple[type | None, Convert]] = {
    "payment_day_of_month": (int, _to_day_of_month),
    "redirect_url": (None, to_url),
    str | None: (str, _refuse),
    int | None: (int, _refuse),
    bool | None: (bool, _refuse),
    DATE_TYPE: (None, _to_day),
    Citizenship | str | None: (None, _to_choice(Citizenship, Italian=Citizenship.ITALIAN)),
    DocumentType | str | None: (None, _to_choice(DocumentType)),
}


def _make_converter(dialect: Dialect) -> Converter:
    """Return the converter of a dialect: strict when it writes, lenient per field when it reads."""
    converter = Converter()
    names = {**USER_DATA_NAMES, **dialect.approval_names}
    for written in (ApprovalRequest, AdditionalData, UserData):
        converter.register_unstructure_hook(written, _make_writer(written, converter, dialect, names))
    for read in (Approved, Refused, UserData):
        converter.register_structure_hook(read, _make_reader(read, names))
    return converter


def _make_reader(model: type, names: Mapping[str, str]) -> Read:
    """Return the function that reads a model; `names` has the member of each field."""
    fields = [
        (each.name, wire, _ALIASES.get(wire, wire), *(_READERS.get(each.name) or _READERS[each.type]))
        for each in attrs.fields(model)
        if (wire := names.get(each.name)) is not None
    ]

    def read(received: Received, _: object) -> object:
        members, values, unread = received
        for name, wire, alias, kind, convert in fields:
            value = members.get(wire)
            if value is None:
                value = members.get(alias)
            if type(value) is kind:
                values[name] = value
            elif value is not None:
                try:
                    values[name] = convert(value)
                except (TypeError, ValueError):
                    unread.append(wire)
        return model(**values)

    return read


def _make_writer(model: type, converter: Converter, dialect: Dialect, names: Mapping[str, str]) -> Convert:
    """Return the function that cattrs generates to write a model; `names` has the member of each field."""
    writers: dict[str, Convert] = {
        "citizenship": lambda value: dialect.italian if value in ("italian", "Italian") else value,
        "residence_start_date": lambda day: f"{day.month:02}/{day.year:04}",
        "document_issue_date": date.isoformat,
        "document_expiration_date": date.isoformat,
    }
    if model is ApprovalRequest:
        writers["payment_day_of_month"] = str  # an integer in user data (spec §2.1, §2.2)
    overrides: dict[str, Any] = {
        each.name: override(
            rename=names.get(each.name),
            omit=each.name not in names,  # `write` adds the members of `additional` and `extra`
            omit_if_default=each.default is None,  # None is not sent
            unstruct_hook=writers.get(each.name, identity),  # cattrs generates no call for `identity`
        )
        for each in attrs.fields(model)
    }
    return make_dict_unstructure_fn(model, converter, **overrides)


# Not decorators, because mutation testing skips decorated functions.
_converter = cache(_make_converter)
_reader = cache(lambda: _converter(Dialect()))
_ALIASES = {name: alias for alias, name in READ_ALIASES.items()}
_USER_DATA_MEMBERS = frozenset(USER_DATA_NAMES.values())
