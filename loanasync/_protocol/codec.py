"""Conversion of models to JSON bodies and of JSON to models, with one cattrs converter per dialect."""

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import date
from functools import cache
from typing import Any, TypeVar

import attrs
from cattrs import ClassValidationError, Converter
from cattrs.fns import identity
from cattrs.gen import make_dict_structure_fn, make_dict_unstructure_fn, override

from loanasync._display.masking import EMPTY_BODY, Body
from loanasync._enums import Citizenship, DocumentType
from loanasync._models import (
    READ_ALIASES,
    USER_DATA_NAMES,
    AdditionalData,
    ApprovalRequest,
    Dialect,
    UserData,
)
from loanasync._protocol.json import encode, encode_checked
from loanasync._results import Approved, Meta, Refused

Model = TypeVar("Model")
DecisionType = TypeVar("DecisionType", bound=Approved | Refused)
Read = Callable[[Any, object], Any]  # takes a value and the type of the field
Write = Callable[[Any], Any]

_DAY = re.compile("([0-9]{4}-[0-9]{2}-[0-9]{2})(?:[Tt ][0-9]{2}:[0-9]{2}[0-9:.,]*(?:[Zz]|[+-][0-9:]+)?)?")
_DAY_OF_MONTH = re.compile("[0-9]{1,2}")


def write(model: ApprovalRequest | UserData, dialect: Dialect) -> bytes:
    """Return the JSON body for a valid model. None is omitted, and `extra` is added unchanged."""
    members = _writer(dialect, type(model))(model)
    if isinstance(model, ApprovalRequest) and model.additional is not None:
        members.update(_writer(dialect, type(model.additional))(model.additional))
    return encode_checked(members) if model.extra is EMPTY_BODY else encode({**members, **model.extra})


def prepare_dialect(dialect: Dialect) -> None:
    """Create the functions that write approvals and read decisions, as the first call does otherwise."""
    for written in (ApprovalRequest, AdditionalData):
        _writer(dialect, written)
    for read in (Approved, Refused):
        _reader(read)


def read_decision(decision_type: type[DecisionType], members: Mapping[str, Any], meta: Meta) -> DecisionType:
    """Return a decision. A member of a wrong type is None and listed in `meta.unread`.

    `approved` must be checked before.
    """
    known = {**members, "raw": Body(members), "meta": meta}
    for alias, name in _ALIASES:
        if alias in known and known.get(name) is None:
            known[name] = known[alias]
    decision, unread = _read(decision_type, known)
    return attrs.evolve(decision, meta=attrs.evolve(meta, unread=unread)) if unread else decision


def read_user_data(members: Mapping[str, Any]) -> UserData:
    """Return the user data in the response to a completion (spec §4.2).

    A member that cannot be read is None and listed in ``unread``, because status 200 means that the data were
    saved. Unknown members are added to ``extra``.
    """
    extra = {name: value for name, value in members.items() if name not in _USER_DATA_MEMBERS}
    data, unread = _read(UserData, {**members, "extra": extra, "unread": ()})
    return attrs.evolve(data, unread=unread) if unread else data


def _read(model: type[Model], members: dict[str, Any]) -> tuple[Model, tuple[str, ...]]:
    """Return a model, and the names of the members that could not be read and are left out."""
    read: Callable[..., Model] = _reader(model)
    try:
        return read(members, model), ()
    except ClassValidationError as error:  # quotes personal values
        wrong = [note.name for _, note in error.group_exceptions()[0]]
    unread = tuple(_CANONICAL_NAMES[name] for name in wrong)
    rest = {name: value for name, value in members.items() if name not in unread}
    return read(rest, model), unread


def _exactly(expected: type) -> Read:
    """Return a reader of values of exactly this type, so that "false" is not read as True, nor 1.9 as 1."""

    def read(value: object, _: object) -> object:
        if value is None or type(value) is expected:
            return value
        raise TypeError(expected.__name__)

    return read


def _one_of(choices: Mapping[str, str]) -> Read:
    """Return a reader of an open enumeration: a value that the service added later stays a str."""

    def read(value: object, _: object) -> object:
        text = _read_text(value, None)
        return choices.get(text, text)

    return read


def _read_day_of_month(value: object, _: object) -> object:
    # spec §2.1: a string in the request and an integer in the response; both are accepted here.
    if isinstance(value, str) and _DAY_OF_MONTH.fullmatch(value):
        return int(value)
    return _read_integer(value, None)


def _read_day(value: object, _: object) -> date | None:
    """Return the date in a text or timestamp. The time zone is ignored, so that the day does not change."""
    text = _read_text(value, None)
    if text is None:
        return None
    match = _DAY.fullmatch(text)
    if match is None:
        raise ValueError("YYYY-MM-DD")
    return date.fromisoformat(match[1])


def _read_url(value: object, _: object) -> object:
    if isinstance(value, str) and not value.strip():  # an empty URL is treated as missing (spec §1.3)
        raise ValueError("URL")
    return _read_text(value, None)


def _keep(value: object, _: object) -> object:
    return value


def _by_value(choices: Iterable[str]) -> dict[str, str]:
    return {str(each): each for each in choices}


_read_text, _read_integer = _exactly(str), _exactly(int)
_READERS: Mapping[object, Read] = {  # by the name of a field, or by its type
    "payment_day_of_month": _read_day_of_month,
    "redirect_url": _read_url,
    str | None: _read_text,
    int | None: _read_integer,
    bool | None: _exactly(bool),
    date | None: _read_day,
    Citizenship | str | None: _one_of({**_by_value(Citizenship), "Italian": Citizenship.ITALIAN}),
    DocumentType | str | None: _one_of(_by_value(DocumentType)),
}
_NOT_MEMBERS = ("additional", "extra", "unread")  # `write` adds the members of the first two


def _make_converter(dialect: Dialect) -> Converter:
    """Return the converter of a dialect: writes valid requests, and reads members of exactly their types."""
    converter = Converter()
    names = {**USER_DATA_NAMES, **dialect.approval_names}

    def make_reader(model: type) -> Read:
        overrides: dict[str, Any] = {
            each.name: override(
                rename=names.get(each.name),
                struct_hook=_READERS.get(each.name) or _READERS.get(each.type, _keep),
            )
            for each in attrs.fields(model)
        }
        return make_dict_structure_fn(model, converter, **overrides)

    def make_writer(model: type) -> Write:
        writers: dict[str, Write] = {
            "citizenship": lambda value: dialect.italian if value in ("italian", "Italian") else value,
            "residence_start_date": lambda day: f"{day.month:02}/{day.year:04}",
            "document_issue_date": date.isoformat,
            "document_expiration_date": date.isoformat,
        }
        if issubclass(model, ApprovalRequest):
            writers["payment_day_of_month"] = str  # an integer in user data (spec §2.1, §2.2)
        overrides: dict[str, Any] = {
            each.name: override(
                rename=names.get(each.name),
                omit=each.name in _NOT_MEMBERS,
                omit_if_default=each.default is None,  # None is not sent
                unstruct_hook=writers.get(each.name, identity),  # cattrs generates no call for `identity`
            )
            for each in attrs.fields(model)
        }
        return make_dict_unstructure_fn(model, converter, **overrides)

    converter.register_structure_hook_factory(attrs.has, make_reader)
    converter.register_unstructure_hook_factory(attrs.has, make_writer)
    return converter


_CANONICAL = Dialect()  # the names in responses; READ_ALIASES has the other ones


def _find_writer(dialect: Dialect, model: type) -> Write:
    return _converter(dialect).get_unstructure_hook(model)


def _find_reader(model: type) -> Read:
    return _converter(_CANONICAL).get_structure_hook(model)


# Not decorators, because mutation testing skips decorated functions. The last two save the time in which
# cattrs finds the function for a model.
_converter = cache(_make_converter)
_writer: Callable[[Dialect, type], Write] = cache(_find_writer)
_reader: Callable[[type], Callable[..., Any]] = cache(_find_reader)
_ALIASES = tuple(READ_ALIASES.items())
_CANONICAL_NAMES = {**USER_DATA_NAMES, **_CANONICAL.approval_names}
_USER_DATA_MEMBERS = frozenset(USER_DATA_NAMES.values())
