"""Conversion of a CSV cell or a JSON member to the value of a field."""

import re
from collections.abc import Callable, Mapping
from datetime import date
from decimal import Decimal

import attrs

from loanasync import AdditionalData, ApprovalRequest, UserData

Reader = Callable[[object], object]

_WHOLE = re.compile("[0-9]{1,18}")
_DAY = re.compile("([0-9]{4})-([0-9]{2})-([0-9]{2})")
_ITALIAN_DAY = re.compile("([0-9]{1,2})/([0-9]{1,2})/([0-9]{4})")
_MONTH = re.compile("([0-9]{1,2})/([0-9]{4})")
_AMOUNT = re.compile("[0-9]{1,12}(?:([.,])([0-9]{1,2}))?")
_GROUPED = re.compile("[0-9]{1,3}(?:([.,' ])[0-9]{3})(?:\\1[0-9]{3})*([.,])([0-9]{2})")
_TRUE = frozenset({"true", "1", "yes", "y", "si", "sì", "vero"})
_FALSE = frozenset({"false", "0", "no", "n", "falso"})


class BadCell(Exception):  # noqa: N818  (caught where rows are made; its text becomes a problem)
    """A cell that says nothing of the kind; the text does not repeat it."""


def whole(value: object) -> object:
    """A whole number; what is no text is left to the rules."""
    if isinstance(value, str):
        if not _WHOLE.fullmatch(value):
            raise BadCell("must be a whole number, digits only")
        return int(value)
    return value


def boolean(value: object) -> object:
    """True or false, in English or Italian."""
    if isinstance(value, str):
        said = value.lower()
        if said not in _TRUE | _FALSE:
            raise BadCell("must be true or false")
        return said in _TRUE
    return value


def day(value: object) -> object:
    """A date, or a month, of which the day is not sent."""
    if not isinstance(value, str):
        return value
    try:
        if found := _DAY.fullmatch(value):
            return date(int(found[1]), int(found[2]), int(found[3]))
        if found := _ITALIAN_DAY.fullmatch(value):
            return date(int(found[3]), int(found[2]), int(found[1]))
        if found := _MONTH.fullmatch(value):
            return date(int(found[2]), int(found[1]), 1)
    except ValueError:
        pass
    raise BadCell("must be a day, such as 2019-05-31 or 31/05/2019, or a month, such as 05/2019")


def cents(value: object) -> object:
    """Euro cents; an amount with decimals is no such, and nothing is guessed."""
    if isinstance(value, float) or (isinstance(value, str) and not _WHOLE.fullmatch(value)):
        raise BadCell("must be whole euro cents, digits only; if these amounts are euro, say --euro")
    return whole(value)


def euro(value: object) -> object:
    """An amount in euro as euro cents: ``450``, ``450.5``, ``450,50``, ``1.250,00`` or ``1,250.00``."""
    if isinstance(value, bool):
        return value  # for the rules to name
    said = str(value)
    if _AMOUNT.fullmatch(said):
        return int(Decimal(said.replace(",", ".")) * 100)
    if (found := _GROUPED.fullmatch(said)) and found[1] != found[2]:
        return int("".join(re.findall("[0-9]", said)))
    if isinstance(value, str) and re.fullmatch("[0-9]{1,3}[.,][0-9]{3}", said):
        raise BadCell("could be thousands or thousandths: write 1250,00 or 1250.00")
    raise BadCell("must be an amount in euro, with two decimals at most, such as 450,50")


_BY_TYPE: Mapping[object, Reader] = {int: whole, int | None: whole, bool | None: boolean, date | None: day}
# A text stays as it is.
READERS: Mapping[str, Reader] = {
    **{
        each.name: _BY_TYPE[each.type]
        for model in (ApprovalRequest, AdditionalData, UserData)
        for each in attrs.fields(model)
        if each.type in _BY_TYPE
    },
    "additional_data_needed": boolean,
}
