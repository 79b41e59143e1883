"""Conversion of the text of a form, a CSV cell or a JSON member to the value of a field.

Values that are not text stay unchanged, for the validation rules to check. Amounts may also be numbers.
"""

import re
import unicodedata
from collections.abc import Callable, Mapping
from datetime import date
from decimal import Decimal
from enum import StrEnum

from loanasync._models.enumerations import (
    Citizenship,
    DocumentType,
    EducationalQualification,
    Residence,
    SalaryType,
)

_INTEGER = re.compile("[0-9]{1,18}")
_DATES = tuple(
    map(
        re.compile,
        (
            "(?P<year>[0-9]{4})-(?P<month>[0-9]{2})-(?P<day>[0-9]{2})",
            r"(?P<day>[0-9]{1,2})(?P<separator>[/.-])(?P<month>[0-9]{1,2})(?P=separator)(?P<year>[0-9]{4})",
            "(?P<month>[0-9]{1,2})/(?P<year>[0-9]{4})",
            "(?P<year>[0-9]{4})-(?P<month>[0-9]{2})",  # <input type="month">
        ),
    )
)
_AMOUNT = re.compile("[0-9]{1,12}(?:([.,])([0-9]{1,2}))?")
_AMOUNT_WITH_THOUSANDS = re.compile("[0-9]{1,3}(?:([.,' ])[0-9]{3})(?:\\1[0-9]{3})*([.,])([0-9]{2})")
_AMBIGUOUS_AMOUNT = re.compile("[0-9]{1,3}[.,][0-9]{3}")
_THOUSANDS = re.compile(r"[0-9]{1,3}(?:\.[0-9]{3})+", re.ASCII)  # of an amount that has no cents
_CURRENCY = re.compile(r"€|\beuro?\b", re.IGNORECASE)
_WITH_ZERO_DECIMALS = re.compile("[0-9]+[.,]0+")
_SERIAL_DATE = re.compile("[0-9]{5}(?:[.,]0+)?")
_BOOLEANS = {
    **dict.fromkeys(("true", "1", "yes", "y", "on", "si", "sì", "vero"), True),
    **dict.fromkeys(("false", "0", "no", "n", "off", "falso"), False),
}


class CellError(Exception):
    """A cell or member that cannot be converted. The text becomes a problem's message, without the value."""


def normalized(text: str) -> str:
    """Return the common form of ``fiscalCode``, ``fiscal_code`` and ``Fiscal Code``: ``fiscalcode``."""
    return re.sub("[^a-z0-9]", "", unicodedata.normalize("NFKD", text.casefold()))


def _to_int(value: object) -> object:
    if isinstance(value, str):
        if not _INTEGER.fullmatch(value):
            hint = "; format the column without decimals" if _WITH_ZERO_DECIMALS.fullmatch(value) else ""
            raise CellError(f"must be a whole number, digits only{hint}")
        return int(value)
    return value


def _to_bool(value: object) -> object:
    if isinstance(value, str):
        if (found := _BOOLEANS.get(value.lower())) is None:
            raise CellError("must be true or false")
        return found
    return value


def _to_date(value: object) -> object:
    """Convert text to a date. A month becomes its first day: only year and month are sent."""
    if not isinstance(value, str):
        return value
    for form in _DATES:
        if found := form.fullmatch(value):
            year, month, day = (int(found.groupdict().get(name, 1)) for name in ("year", "month", "day"))
            try:
                return date(year, month, day)
            except ValueError:
                break
    if _SERIAL_DATE.fullmatch(value):
        raise CellError(
            "is a spreadsheet's number for a date; format the column as a date, such as 31/05/2019"
        )
    raise CellError("must be a date, such as 2019-05-31 or 31/05/2019, or a month, such as 05/2019")


def to_cents(value: object, *, euro: bool) -> object:
    """Convert an amount to euro cents. A currency sign means euro: ``€ 1.450,00`` has 145000 cents.

    Args:
        value: The cell or member.
        euro: True if an amount without a currency sign is in euro: ``450``, ``450.5``, ``450,50``,
            ``1.250,00`` or ``1,250.00``. Otherwise decimals are an error, because they may mean euro.

    Raises:
        CellError: The text is not an amount, or is ambiguous.
    """
    if isinstance(value, bool):
        return value  # the validation rules report it
    text = _CURRENCY.sub("", str(value).replace("\N{NO-BREAK SPACE}", " "), 1).strip()
    if not euro and text == str(value):
        if isinstance(value, float) or (isinstance(value, str) and not _INTEGER.fullmatch(text)):
            raise CellError(
                "must be whole euro cents, digits only; for euro write € 450,50, or pass --euro to "
                "approve-many"
            )
        return _to_int(value)
    if _AMOUNT.fullmatch(text):
        return int(Decimal(text.replace(",", ".")) * 100)
    if (found := _AMOUNT_WITH_THOUSANDS.fullmatch(text)) and found[1] != found[2]:
        return int("".join(re.findall("[0-9]", text)))
    if isinstance(value, str) and _AMBIGUOUS_AMOUNT.fullmatch(text):
        raise CellError("ambiguous: the separator may mean thousands or decimals; write 1250,00 or 1250.00")
    raise CellError("must be an amount in euro with at most two decimals, such as 450,50 or € 1.450,00")


def to_euro(value: str) -> int:
    """Convert an amount in whole euro, such as ``1600``, ``1.600`` or ``€ 1.600,00``.

    Raises:
        CellError: The text is not an amount, or has cents.
    """
    text = _CURRENCY.sub("", value, 1).strip()
    cents = int(re.sub(r"\D", "", text)) * 100 if _THOUSANDS.fullmatch(text) else to_cents(value, euro=True)
    if not isinstance(cents, int) or cents % 100:
        raise CellError("must be a whole number of euro")
    return cents // 100


# Words of a file for the values of enumerations. A value's own name is recognised, too: "Home ownership".
_ITALIAN_VALUES: Mapping[StrEnum, tuple[str, ...]] = {
    Citizenship.ITALIAN: ("italiana", "italiano", "italia"),
    Citizenship.EU: ("ue", "comunitaria", "comunitario", "unione europea"),
    Citizenship.OUTSIDE_EU: ("extra ue", "non ue", "extracomunitaria", "extracomunitario"),
    Residence.RENT: ("affitto", "in affitto"),
    Residence.HOME_OWNERSHIP: ("proprietà", "di proprietà"),
    Residence.HOME_OWNERSHIP_MORTGAGE: ("proprietà con mutuo", "mutuo"),
    Residence.WITH_RELATIVES: ("con parenti", "presso parenti", "con i genitori"),
    EducationalQualification.MIDDLE_SCHOOL: ("licenza media",),
    EducationalQualification.GRADUATION: ("laurea",),
    EducationalQualification.DOCTORATE: ("dottorato",),
    SalaryType.NET_MONTHLY: ("netto mensile", "mensile netto"),
    SalaryType.GROSS_YEARLY: ("lordo annuo", "annuo lordo", "lordo annuale"),
    DocumentType.IDENTITY_CARD: ("carta d'identità", "carta di identità"),
    DocumentType.DRIVING_LICENSE: ("patente", "patente di guida"),
    DocumentType.PASSPORT: ("passaporto",),
}


def _to_choice(choices: type[StrEnum]) -> Callable[[object], object]:
    values = {
        normalized(word): choice
        for choice in choices
        for word in (choice.value, *_ITALIAN_VALUES.get(choice, ()))
    }
    return lambda value: values.get(normalized(value), value) if isinstance(value, str) else value


BY_TYPE: Mapping[object, Callable[[object], object]] = {
    int: _to_int,
    int | None: _to_int,
    bool | None: _to_bool,
    date | None: _to_date,
    Citizenship | str: _to_choice(Citizenship),
    Residence | str | None: _to_choice(Residence),
    EducationalQualification | str | None: _to_choice(EducationalQualification),
    SalaryType | str | None: _to_choice(SalaryType),
    DocumentType | str | None: _to_choice(DocumentType),
}
