"""An unmistakable value for every personal field there is, and every form in which it might show.

Which fields there are is read from the models: a new one is planted by itself, or it fails the tests.
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
from loanasync._models.dialect import APPROVAL_NAMES, USER_DATA_NAMES
from support.faults.connections import OTHER_CUSTOMER

__all__ = [
    "CODE",
    "ECHO",
    "FORMS",
    "LIMITS",
    "MODELS",
    "NOT_PERSONAL",
    "OTHER",
    "PAYLOAD",
    "PLANTS",
    "REDIRECT",
    "SAVED",
    "TOKEN",
]
__all__ += ["Plant", "found_in", "planted", "values_of"]

MODELS: tuple[type, ...] = (ApprovalRequest, AdditionalData, UserData, Approved, Refused)

# About the order or about the answer, and about nobody.
NOT_PERSONAL = {
    "amount": "of the order, euro cents",
    "net_amount": "of the order, euro cents",
    "instalments": "of the order",
    "loan_finality": "of the order; the specification knows one value",
    "zero_interest_rate": "of the shop's offer",
    "payment_day_of_month": "of the loan; a number up to 31",
    "approved": "the decision itself, about whoever the shop knows that it is",
    "unread": "names of members, in a response only",
    "meta": "status, counts, seconds and the trace's id",
}

CODE = "ZZQFISCALCODE00A"
OTHER = OTHER_CUSTOMER.decode()  # of another customer, in an answer that came to the wrong one
TOKEN = "zzqauthtoken-0123456789"
REDIRECT = "https://loans.example.com/zzqredirectpath?c=zzqredirectquery#zzqredirectfragment"

# Looser than the service's own, so that these fields can hold what cannot be mistaken for anything else.
LIMITS = Limits(province="[A-Z]+", postal_code="[A-Z]+")
# Values of texts that must have a form.
_FORMED = {
    "email": "zzqemailaddress+TAG@example.com",
    "mobile_phone": "3271846509",  # no digits as they end a difference of two floats
    "country_calling_code": "+8123",
    "province": "ZZQPROVINCE",
    "postal_code": "ZZQPOSTALCODE",
    "fiscal_code": CODE,
    "redirect_url": REDIRECT,
    "raw": None,
}
# A word of a short list, whatever its type says.
_CHOICES = {"children": "2"}


@frozen
class Plant:
    """One field's value, and the texts one of which shows it."""

    field: str
    value: Any
    marks: tuple[str, ...]


def _chosen(model: type, name: str) -> Any:
    """An ordinary value of a field with a few fixed ones; None for a field that takes many."""
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
    """Something that stands nowhere else, of the field's own type."""
    if name in _FORMED:
        return _FORMED[name]
    kinds = _kinds(model, name)
    if str in kinds:
        return f"Zzq{name.replace('_', '')}value O'\"è"
    if date in kinds:
        return date(1801 + 7 * number, 7, 23)
    if int in kinds:
        return 987_650_000 + number
    if Mapping in kinds:
        return {"newField": {"deep": ["zzqextravalue", 987_640_001]}}
    if AdditionalData in kinds:
        return None  # planted field by field
    raise TypeError(f"{model.__name__}.{name}: how to plant this, or why is it not personal?")


def _marks(value: Any) -> tuple[str, ...]:
    if isinstance(value, date):
        return (f"{value}", f"{value.month:02}/{value.year}", f"{value.year}, {value.month}, {value.day}")
    if isinstance(value, Mapping):
        return ("zzqextravalue", "987640001")  # the names of fields are nobody's
    if value == REDIRECT:
        return ("zzqredirectpath", "zzqredirectquery", "zzqredirectfragment")
    # The longest run of plain letters stands whole in any spelling of the rest.
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
    """The planted values of a model's fields; checked: those that the rules let pass."""
    values = {}
    for plant in PLANTS:
        owner, _, name = plant.field.partition(".")
        if owner == model.__name__:
            usual = _chosen(model, name) if checked else None
            values[name] = plant.value if usual is None else usual
    return values


def planted(model: type, *, checked: bool = True, **changes: Any) -> Any:
    """One of the models that are sent, every field of it given."""
    more: dict[str, Any] = {}
    if model is ApprovalRequest:
        more = {"amount": 45_000, "instalments": 12, "zero_interest_rate": True, "payment_day_of_month": 9}
        more["additional"] = planted(AdditionalData, checked=checked)
    elif model is UserData:
        more = {"politically_exposed": True, "us_person": True, "marketing": True, "payment_day_of_month": 9}
    return model(**{**more, **values_of(model, checked=checked), **changes})


def _echo(model: type, names: Mapping[str, str]) -> dict[str, Any]:
    said = {names[name]: value for name, value in values_of(model).items() if name in names}
    said = {name: str(value) if isinstance(value, date) else value for name, value in said.items()}
    return {**said, "newField": "zzqextravalue"}


# What the service says of the customer: all of it, fields that nobody knows included.
ECHO = {**_echo(Approved, APPROVAL_NAMES), **_echo(ApprovalRequest, APPROVAL_NAMES), "amount": 45_000}
ECHO |= {"redirectUrl": REDIRECT, "approvalMessageApiTitle": "zzqlastnamevalue"}
SAVED = {**_echo(UserData, USER_DATA_NAMES), "usPerson": True}


# How somebody may have written a value, in upper, lower or mixed case; base64 stands apart, below.
FORMS: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "percent-quoted for a URL": lambda mark: quote(mark, safe=""),
    "percent-quoted letter by letter": lambda mark: "".join(f"%{ord(each):02x}" for each in mark),
    "escaped in JSON": lambda mark: mark.replace("/", "\\/"),
    "escaped in JSON letter by letter": lambda mark: "".join(f"\\u{ord(each):04x}" for each in mark),
    "in hex": lambda mark: mark.encode().hex(),
    "in base64, at any place of what was encoded": str,
}


def _in_base64(mark: str) -> Iterator[str]:
    """The part of a mark's base64 that is the same wherever it stands; too short a mark has none."""
    for each in {mark, mark.lower(), mark.upper()}:
        for before in range(3):
            coded = b64encode(b"\0" * before + each.encode()).decode()
            part = coded[-(-before * 8 // 6) : (before + len(each)) * 8 // 6]
            if len(part) >= 8:  # shorter ones may stand in a random name
                yield part
                yield part.replace("+", "-").replace("/", "_")


_PLAIN = {
    form(each).lower(): plant.field
    for form in FORMS.values()
    for plant in PLANTS
    for mark in plant.marks
    for each in (mark, mark.lower(), mark.upper())
}
_CODED = {form: plant.field for plant in PLANTS for mark in plant.marks for form in _in_base64(mark)}


def found_in(text: str) -> set[str]:
    """The fields whose values a text shows, in any form."""
    lower = text.lower()
    plain = {field for form, field in _PLAIN.items() if form in lower}
    return plain | {field for form, field in _CODED.items() if form in text}
