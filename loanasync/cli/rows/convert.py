"""Conversion of a CSV cell or a JSON member to the value of a field.

Values that are not text stay unchanged, for the validation rules to check. Amounts may also be numbers.
"""

import re
from collections.abc import Callable, Mapping
from datetime import date
from decimal import Decimal

import attrs

from loanasync import AdditionalData, ApprovalRequest, UserData

Converter = Callable[[object], object]

_INTEGER = re.compile("[0-9]{1,18}")
_ISO_DATE = re.compile("([0-9]{4})-([0-9]{2})-([0-9]{2})")
_ITALIAN_DATE = re.compile("([0-9]{1,2})/([0-9]{1,2})/([0-9]{4})")
_MONTH = re.compile("([0-9]{1,2})/([0-9]{4})")
_AMOUNT = re.compile("[0-9]{1,12}(?:([.,])([0-9]{1,2}))?")
_AMOUNT_WITH_THOUSANDS = re.compile("[0-9]{1,3}(?:([.,' ])[0-9]{3})(?:\\1[0-9]{3})*([.,])([0-9]{2})")
_AMBIGUOUS_AMOUNT = re.compile("[0-9]{1,3}[.,][0-9]{3}")
_SHORTENED = re.compile("[0-9]+(?:[.,][0-9]+)?[Ee][+-][0-9]+")  # 3,33E+09: the other digits are lost
_WITH_ZERO_DECIMALS = re.compile("[0-9]+[.,]0+")
_SERIAL_DATE = re.compile("[0-9]{5}(?:[.,]0+)?")
_TRUE = frozenset({"true", "1", "yes", "y", "si", "sì", "vero"})
_FALSE = frozenset({"false", "0", "no", "n", "falso"})


class CellError(Exception):
    """A cell or member that cannot be converted. The text becomes a problem's message, without the value."""


def check_number_is_complete(value: object) -> None:
    """Raise an error for a number that a spreadsheet has shortened.

    Raises:
        CellError: The text is in scientific notation.
    """
    if isinstance(value, str) and _SHORTENED.fullmatch(value):
        raise CellError(
            "a spreadsheet has shortened this number to scientific notation, such as 3,33E+09; "
            "format the column as text, and enter the whole number again"
        )


def to_int(value: object) -> object:
    """Convert text to an int.

    Raises:
        CellError: The text is not a whole number.
    """
    if isinstance(value, str):
        if not _INTEGER.fullmatch(value):
            hint = "; format the column without decimals" if _WITH_ZERO_DECIMALS.fullmatch(value) else ""
            raise CellError(f"must be a whole number, digits only{hint}")
        return int(value)
    return value


def to_bool(value: object) -> object:
    """Convert English or Italian text to a bool.

    Raises:
        CellError: The text means neither true nor false.
    """
    if isinstance(value, str):
        text = value.lower()
        if text not in _TRUE | _FALSE:
            raise CellError("must be true or false")
        return text in _TRUE
    return value


def to_date(value: object) -> object:
    """Convert text to a date. A month becomes its first day: only year and month are sent.

    Raises:
        CellError: The text is not a date or a month.
    """
    if not isinstance(value, str):
        return value
    try:
        if found := _ISO_DATE.fullmatch(value):
            return date(int(found[1]), int(found[2]), int(found[3]))
        if found := _ITALIAN_DATE.fullmatch(value):
            return date(int(found[3]), int(found[2]), int(found[1]))
        if found := _MONTH.fullmatch(value):
            return date(int(found[2]), int(found[1]), 1)
    except ValueError:
        pass
    if _SERIAL_DATE.fullmatch(value):
        raise CellError(
            "is a spreadsheet's number for a date; format the column as a date, such as 31/05/2019"
        )
    raise CellError("must be a date, such as 2019-05-31 or 31/05/2019, or a month, such as 05/2019")


def cents_to_int(value: object) -> object:
    """Convert an amount in euro cents to an int. Decimals are an error, because they may mean euro.

    Raises:
        CellError: The amount is not a whole number.
    """
    if isinstance(value, float) or (isinstance(value, str) and not _INTEGER.fullmatch(value)):
        raise CellError("must be whole euro cents, digits only; if the amounts are in euro, add --euro")
    return to_int(value)


def euro_to_cents(value: object) -> object:
    """Convert an amount in euro to cents: ``450``, ``450.5``, ``450,50``, ``1.250,00`` or ``1,250.00``.

    Raises:
        CellError: The text is not an amount, or is ambiguous.
    """
    if isinstance(value, bool):
        return value  # the validation rules report it
    text = str(value)
    if _AMOUNT.fullmatch(text):
        return int(Decimal(text.replace(",", ".")) * 100)
    if (found := _AMOUNT_WITH_THOUSANDS.fullmatch(text)) and found[1] != found[2]:
        return int("".join(re.findall("[0-9]", text)))
    if isinstance(value, str) and _AMBIGUOUS_AMOUNT.fullmatch(text):
        raise CellError("ambiguous: the separator may mean thousands or decimals; write 1250,00 or 1250.00")
    raise CellError(
        "must be an amount in euro with at most two decimals and no currency sign, such as 450,50"
    )


_BY_TYPE: Mapping[object, Converter] = {
    int: to_int,
    int | None: to_int,
    bool | None: to_bool,
    date | None: to_date,
}
# By field. Fields that are missing here are text, which needs no conversion.
CONVERTERS: Mapping[str, Converter] = {
    **{
        each.name: _BY_TYPE[each.type]
        for model in (ApprovalRequest, AdditionalData, UserData)
        for each in attrs.fields(model)
        if each.type in _BY_TYPE
    },
    "additional_data_needed": to_bool,
}
