"""Conversion of models to JSON bodies, with functions that cattrs generates, and of JSON to models."""

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import date
from functools import cache, lru_cache
from itertools import compress
from types import NoneType
from typing import Any, NoReturn, TypeAlias, TypeVar

import attrs
from cattrs import Converter
from cattrs.fns import identity
from cattrs.gen import make_dict_unstructure_fn, override

from loanasync._models.decisions import Approved, Meta, Refused
from loanasync._models.enumerations import Citizenship, DocumentType
from loanasync._models.masking import EMPTY_BODY, Body
from loanasync._models.requests import (
    APPROVAL_NAMES,
    DATE_TYPE,
    READ_ALIASES,
    USER_DATA_NAMES,
    AdditionalData,
    ApprovalRequest,
    UserData,
)
from loanasync._models.values import CONTROL
from loanasync._protocol.json import encode, encode_checked
from loanasync._settings import Dialect

DecisionType = TypeVar("DecisionType", bound=Approved | Refused)
Convert: TypeAlias = Callable[[Any], Any]
# Returns the values of a model's fields in a body, and the names of members that cannot be read.
Read: TypeAlias = Callable[[Mapping[str, Any]], tuple[dict[str, Any], tuple[str, ...]]]

_DAY = re.compile("([0-9]{4}-[0-9]{2}-[0-9]{2})(?:[Tt ][0-9]{2}:[0-9]{2}[0-9:.,]*(?:[Zz]|[+-][0-9:]+)?)?")
_DAY_OF_MONTH = re.compile("[0-9]{1,2}")


def write(model: ApprovalRequest | UserData, dialect: Dialect) -> bytes:
    """Return the JSON body for a valid model. None is omitted, and `extra` is added unchanged."""
    writers = _writers(dialect)
    if isinstance(model, ApprovalRequest):
        members = writers[ApprovalRequest](model)
        if model.additional is not None:
            members.update(writers[AdditionalData](model.additional))
    else:
        members = writers[UserData](model)
    return encode_checked(members) if model.extra is EMPTY_BODY else encode({**members, **model.extra})


def prepare_dialect(dialect: Dialect) -> None:
    """Create the functions that write requests and read responses, as the first call does otherwise."""
    _writers(dialect)
    for model in (Approved, Refused, UserData):
        _reader(model)


def read_decision(decision_type: type[DecisionType], members: Mapping[str, Any], meta: Meta) -> DecisionType:
    """Return a decision. A member of a wrong type is None and listed in `meta.unread`.

    `approved` must be checked before.
    """
    kind: type = decision_type  # mypy takes `type[DecisionType]` for not hashable
    values, unread = _reader(kind)(members)
    if unread:
        meta = attrs.evolve(meta, unread=unread)
    values["raw"], values["meta"] = Body(members), meta
    return decision_type(**values)


def read_user_data(members: Mapping[str, Any]) -> UserData:
    """Return the user data in the response to a completion (spec §4.2).

    A member that cannot be read is None and listed in ``unread``, because status 200 means that the data were
    saved. Unknown members are added to ``extra``.
    """
    extra = {name: value for name, value in members.items() if name not in _USER_DATA_MEMBERS}
    values, unread = _reader(UserData)(members)
    return UserData(**values, extra=extra, unread=unread)


class _Replaced(dict[str, str]):
    """Texts and their replacements. All others stay as they are."""

    def __missing__(self, text: str) -> str:
        return text


def _to_choice(choices: Iterable[str], **spellings: str) -> Convert:
    """Return a converter to an open enumeration: a value that the service added later stays a str."""
    return _Replaced({str(each): each for each in choices} | spellings).__getitem__


def _to_day(text: str) -> date:
    """Return the date in a text or timestamp. The time zone is ignored, so that the day does not change."""
    match = _DAY.fullmatch(text)
    if match is None:
        raise ValueError
    return date.fromisoformat(match[1])


def to_url(text: str) -> str:
    """Return a URL without surrounding spaces and line breaks, which a web framework refuses in a header."""
    url = text.strip()
    # An empty URL is treated as missing (spec §1.3). With a control character inside, the token must not be
    # guessed.
    if not url or (not url.isprintable() and CONTROL.search(url)):  # most are printable
        raise ValueError
    return url


def _to_day_of_month(text: str) -> int:
    # spec §2.1: a string in the request and an integer in the response; both are accepted here.
    if not _DAY_OF_MONTH.fullmatch(text):
        raise ValueError
    return int(text)


def _keep(value: object) -> object:  # pragma: no cover  (only a mark: what it marks is not converted)
    return value


def _refuse(_: object) -> NoReturn:
    raise ValueError


# By the name of a field, or by its type: the converters of values, by the type of the value. It is the exact
# type, so that "false" is not read as True, nor 1.9 as 1.
_READERS: Mapping[object, Mapping[type, Convert]] = {
    "payment_day_of_month": {int: _keep, str: _to_day_of_month},
    "redirect_url": {str: to_url},
    str | None: {str: _keep},
    int | None: {int: _keep},
    bool | None: {bool: _keep},
    DATE_TYPE: {str: _to_day},
    Citizenship | str | None: {str: _to_choice(Citizenship, Italian=Citizenship.ITALIAN)},
    DocumentType | str | None: {str: _to_choice(DocumentType)},
}


def _make_reader(model: type) -> Read:
    """Return the function that reads the fields of a model.

    The types of the values decide how they are read, once for all bodies with the same types.
    """
    fields = [each for each in attrs.fields(model) if each.name in _NAMES]
    names = [each.name for each in fields]
    wires = [_NAMES[name] for name in names]
    aliases = [(wires.index(wire), alias) for alias, wire in READ_ALIASES.items() if wire in wires]
    converters = [_READERS.get(each.name) or _READERS[each.type] for each in fields]

    def converters_of(kinds: tuple[type, ...]) -> tuple[list[bool], list[str], list[tuple[int, Convert]]]:
        """Return which values are kept, the names of their fields, and the converters of the others."""
        chosen = [each.get(kind, _refuse) for each, kind in zip(converters, kinds, strict=True)]
        is_kept = [convert is _keep for convert in chosen]
        others = [
            (at, convert)
            for at, convert in enumerate(chosen)
            if convert is not _keep and kinds[at] is not NoneType
        ]
        return is_kept, [*compress(names, is_kept)], others

    # Not a decorator, because mutation testing skips decorated functions.
    plan = lru_cache(maxsize=64)(converters_of)

    def read(members: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
        found = [*map(members.get, wires)]
        for at, alias in aliases:
            if found[at] is None:
                found[at] = members.get(alias)
        is_kept, kept, others = plan(tuple(map(type, found)))
        values = dict(zip(kept, compress(found, is_kept), strict=True))
        unread = []
        for at, convert in others:
            try:
                values[names[at]] = convert(found[at])
            except ValueError:
                unread.append(wires[at])
        return values, tuple(unread)

    return read


def _make_writers(dialect: Dialect) -> dict[type, Convert]:
    """Return the functions that write the models in a dialect."""
    converter = Converter()
    names = {**USER_DATA_NAMES, **dialect.approval_names}
    models = ApprovalRequest, AdditionalData, UserData
    return {model: _make_writer(model, converter, dialect, names) for model in models}


def _make_writer(model: type, converter: Converter, dialect: Dialect, names: Mapping[str, str]) -> Convert:
    """Return the function that cattrs generates to write a model; `names` has the member of each field."""
    writers: dict[str, Convert] = {
        "citizenship": _Replaced(italian=dialect.italian, Italian=dialect.italian).__getitem__,
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
_writers = cache(_make_writers)
_reader = cache(_make_reader)
_NAMES = {**USER_DATA_NAMES, **APPROVAL_NAMES}
_USER_DATA_MEMBERS = frozenset(USER_DATA_NAMES.values())
