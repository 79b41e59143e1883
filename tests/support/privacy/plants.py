"""Planted values: a unique value for each personal field, and the forms in which it could be shown.

The fields are read from the models, so the value of a new field is planted without a change here.
"""

import re
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from enum import StrEnum
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints
from urllib.parse import quote

import attrs
from attrs import frozen

from loanasync import AdditionalData, ApprovalRequest, Approved, Limits, Refused, UserData
from loanasync._models.requests import APPROVAL_NAMES, USER_DATA_NAMES
from support.faults.connections import OTHER_CUSTOMER

MODELS: tuple[type, ...] = (ApprovalRequest, AdditionalData, UserData, Approved, Refused)

# Fields about the order or the response, with the reason why they are not personal.
NOT_PERSONAL = {
    "amount": "the order, in euro cents",
    "net_amount": "the order, in euro cents",
    "instalments": "the order",
    "loan_finality": "the order; the specification has one value",
    "zero_interest_rate": "the offer of the shop",
    "payment_day_of_month": "the loan; a number up to 31",
    "approved": "the decision, without the customer",
    "unread": "names of members",
    "meta": "status, counts, seconds, trace id",
}

CODE = "ZZQFISCALCODE00A"
OTHER = OTHER_CUSTOMER.decode()  # another customer's, in a response to the wrong request
TOKEN = "zzqauthtoken-0123456789"
REDIRECT = "https://loans.example.com/zzqredirectpath?c=zzqredirectquery#zzqredirectfragment"

# Wider limits than the service's, so that these fields accept unique values.
LIMITS = Limits(province="[A-Z]+", postal_code="[A-Z]+")
# Values of fields with a format.
_WITH_FORMAT = {
    "email": "zzqemailaddress+TAG@example.com",
    "mobile_phone": "3271846509",  # digits that do not occur at the end of a difference of two floats
    "country_calling_code": "+8123",
    "province": "ZZQPROVINCE",
    "postal_code": "ZZQPOSTALCODE",
    "fiscal_code": CODE,
    "redirect_url": REDIRECT,
    "raw": None,
}
# Fields with a short list of values, although their type is str.
_CHOICES = {"children": "2"}


@frozen
class Plant:
    """The planted value of one field, and the marks by which it is found."""

    field: str
    value: Any
    marks: tuple[str, ...]


def _chosen(model: type, name: str) -> Any:
    """Return a valid value of a field that has few of them, else None."""
    if name in _CHOICES:
        return _CHOICES[name]
    kinds = [each for each in _kinds(model, name) if isinstance(each, type)]
    choices = [each for each in kinds if issubclass(each, StrEnum)]
    return True if bool in kinds else next(iter(choices[0])) if choices else None


@cache
def _kinds(model: type, name: str) -> tuple[Any, ...]:
    hint = get_type_hints(model)[name]
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (get_origin(hint) or hint,)


def _value(model: type, name: str, number: int) -> Any:
    """Return a unique value of the type of the field."""
    if name in _WITH_FORMAT:
        return _WITH_FORMAT[name]
    kinds = _kinds(model, name)
    if str in kinds:
        return f"Zzq{name.replace('_', '')}value O'\"è"
    if date in kinds:
        return date(1801 + 7 * number, 7, 23)
    if int in kinds:
        return 987_653_417 + number  # zeros would occur in the difference of two times
    if Mapping in kinds:
        return {"newField": {"deep": ["zzqextravalue", 987_643_217]}}
    if AdditionalData in kinds:
        return None  # planted field by field
    raise TypeError(f"{model.__name__}.{name}: add a value for this type, or add the field to NOT_PERSONAL")


def _marks(value: Any) -> tuple[str, ...]:
    if isinstance(value, date):
        return (f"{value}", f"{value.month:02}/{value.year}", f"{value.year}, {value.month}, {value.day}")
    if isinstance(value, Mapping):
        return ("zzqextravalue", "987643217")  # names of fields are not personal
    if value == REDIRECT:
        return ("zzqredirectpath", "zzqredirectquery", "zzqredirectfragment")
    # The longest run of letters and digits is the same in every form.
    return (max(re.findall(r"\+?[A-Za-z0-9]+", str(value)), key=len),)


def _plants() -> Iterator[Plant]:
    number = 0
    for model in MODELS:
        for each in attrs.fields(model):
            if each.name in NOT_PERSONAL or bool in _kinds(model, each.name):
                continue
            value = _value(model, each.name, number := number + 1)
            if value is not None:
                yield Plant(f"{model.__name__}.{each.name}", value, _marks(value))
    yield Plant("the token", TOKEN, ("zzqauthtoken",))
    yield Plant("the fiscal code", CODE, (CODE,))
    yield Plant("another customer's fiscal code", OTHER, (OTHER,))
    yield Plant("an open payload", "zzqpayloadvalue", ("zzqpayloadvalue",))


PLANTS = tuple(_plants())
PAYLOAD: dict[str, Any] = {"fiscalCode": CODE, "newField": ["zzqpayloadvalue", {"token": TOKEN}]}


def values_of(model: type, *, checked: bool = False) -> dict[str, Any]:
    """Return the planted values of a model. With `checked`, they are valid."""
    values = {}
    for plant in PLANTS:
        owner, _, name = plant.field.partition(".")
        if owner == model.__name__:
            usual = _chosen(model, name) if checked else None
            values[name] = plant.value if usual is None else usual
    return values


def planted(model: type, *, checked: bool = True, **changes: Any) -> Any:
    """Return a request model with a value in every field."""
    more: dict[str, Any] = {}
    if model is ApprovalRequest:
        more = {"amount": 45_000, "instalments": 12, "zero_interest_rate": True, "payment_day_of_month": 9}
        more["additional"] = planted(AdditionalData, checked=checked)
    elif model is UserData:
        more = {"politically_exposed": True, "us_person": True, "marketing": True, "payment_day_of_month": 9}
    return model(**{**more, **values_of(model, checked=checked), **changes})


def _echo(model: type, names: Mapping[str, str]) -> dict[str, Any]:
    members = {names[name]: value for name, value in values_of(model).items() if name in names}
    members = {name: str(value) if isinstance(value, date) else value for name, value in members.items()}
    return {**members, "newField": "zzqextravalue"}


# Responses of the service with all planted values, and with unknown members.
ECHO = {**_echo(Approved, APPROVAL_NAMES), **_echo(ApprovalRequest, APPROVAL_NAMES), "amount": 45_000}
ECHO |= {"redirectUrl": REDIRECT, "approvalMessageApiTitle": "zzqlastnamevalue"}
SAVED = {**_echo(UserData, USER_DATA_NAMES), "usPerson": True}


# Forms of a value in a text, in upper, lower or mixed case. base64 is handled below.
FORMS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "percent-encoded for a URL": lambda mark: quote(mark, safe=""),
    "percent-encoded, every letter": lambda mark: "".join(f"%{ord(each):02x}" for each in mark),
    "escaped in JSON": lambda mark: mark.replace("/", "\\/"),
    "escaped in JSON, every letter": lambda mark: "".join(f"\\u{ord(each):04x}" for each in mark),
    "hexadecimal": lambda mark: mark.encode().hex(),
    "base64, at any position": str,
}


def _in_base64(mark: str) -> Iterator[str]:
    """Yield the parts of the base64 form of a mark that do not depend on its position."""
    for each in {mark, mark.lower(), mark.upper()}:
        for before in range(3):
            coded = b64encode(b"\0" * before + each.encode()).decode()
            part = coded[-(-before * 8 // 6) : (before + len(each)) * 8 // 6]
            if len(part) >= 8:  # shorter parts occur in random names
                yield part
                yield part.replace("+", "-").replace("/", "_")


def _by_start(forms: Mapping[str, str]) -> dict[str, list[tuple[str, str]]]:
    """Group forms and their fields by the first characters of the form, which many of them share."""
    starts: dict[str, list[tuple[str, str]]] = {}
    for form, name in forms.items():
        starts.setdefault(form[:4], []).append((form, name))
    return starts


_PLAIN = _by_start(
    {
        form(each).lower(): plant.field
        for form in FORMS.values()
        for plant in PLANTS
        for mark in plant.marks
        for each in (mark, mark.lower(), mark.upper())
    }
)
_CODED = _by_start(
    {form: plant.field for plant in PLANTS for mark in plant.marks for form in _in_base64(mark)}
)


def found_in(text: str) -> set[str]:
    """Return the fields whose planted values are in a text, in any form."""
    return _found(text.lower(), _PLAIN) | _found(text, _CODED)


def _found(text: str, starts: Mapping[str, list[tuple[str, str]]]) -> set[str]:
    return {name for start, forms in starts.items() if start in text for form, name in forms if form in text}
