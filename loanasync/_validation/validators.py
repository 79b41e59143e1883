"""Validators for types of values. Each returns a message if the value is invalid, else None."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime
from typing import SupportsIndex

from attrs import frozen

Rule = Callable[[object], str | None]

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")  # line breaks are among them
_SURROGATE = re.compile("[\ud800-\udfff]")
_INT64 = range(-(2**63), 2**63)  # JSON parsers round or refuse integers outside of this range


# Missing values of pandas, by the name of their type, so that pandas need not be installed.
_MISSING_VALUE_TYPES = {"NAType": "NA", "NaTType": "NaT"}


def missing_value_name(value: object) -> str | None:
    """Return the name of a missing value of pandas or NumPy: NaN, NA or NaT; None for other values."""
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    return _MISSING_VALUE_TYPES.get(type(value).__name__)


def type_name(value: object) -> str:
    """Return the name of a value's type for a message, which must not contain the value."""
    # A NumPy bool or number is printed like a Python one, so the message names its package.
    package = "numpy." if type(value).__module__ == "numpy" else ""
    return missing_value_name(value) or f"{package}{type(value).__name__}"


def are_printable_texts(candidates: Sequence[object]) -> bool:
    """Return True if all values are non-blank, printable strings. Joining them is faster than a loop."""
    try:
        return "".join(candidates).isprintable() and all(map(str.strip, candidates))  # type: ignore[arg-type]
    except TypeError:
        return False


@frozen
class Text:
    """The rule for a text: a str that is not blank, that UTF-8 can encode, and that passes `check`.

    Args:
        check: Returns a message for a str that breaks a further rule, else None.
        hint: Returns a text to append to the message for a value.
        may_be_blank: Accept empty texts and texts of spaces.
        single_line: Refuse line breaks and other control characters.
    """

    check: Callable[[str], str | None] | None = None
    hint: Callable[[object], str] = lambda _: ""
    may_be_blank: bool = False
    single_line: bool = False

    def __call__(self, value: object) -> str | None:
        message = self._check_text(value)
        if message is None and self.check is not None:
            message = self.check(str(value))
        return None if message is None else message + self.hint(value)

    def _check_text(self, value: object) -> str | None:
        if value is None:
            return "is required"
        if not isinstance(value, str):
            return f"must be a str, not {type_name(value)}"
        if not self.may_be_blank and not value.strip():
            return "must not be blank"
        if _SURROGATE.search(value):
            return "must not contain an unpaired surrogate, which UTF-8 cannot encode"
        if self.single_line and _CONTROL.search(value):
            return "must not contain line breaks or other control characters"
        return None


def matching(
    pattern: str, meaning: str, hint: Callable[[object], str] = lambda _: "", *, single_line: bool = False
) -> Text:
    """Return the rule for a text that matches the whole pattern."""
    matches = re.compile(pattern).fullmatch
    return Text(lambda value: None if matches(value) else f"must be {meaning}", hint, single_line=single_line)


text = Text(single_line=True)  # for settings and codes, which are used in URLs and headers


def choice(allowed: Iterable[str], hint: str = "") -> Rule:
    """Return the rule for a value of an enumeration."""
    options = tuple(allowed)

    def rule(value: object) -> str | None:
        if value is None:
            return "is required"
        if isinstance(value, str) and value in options:
            return None
        return f"must be one of {', '.join(options)}{hint}"

    return rule


def number(least: int, most: int, unit: str, hint: str = "") -> Rule:
    """Return the rule for an int in a range. It refuses True and 12.0."""
    span = f"between {least} and {most}"

    def rule(value: object) -> str | None:
        if value is None:
            return f"is required: an int {span} ({unit})"
        if type(value) is not int:
            return f"must be an int, not {type_name(value)}: {unit}, {span}{_int_hint(value, hint)}"
        return None if least <= value <= most else f"must be {span} ({unit})"

    return rule


def integer(unit: str, hint: str = "") -> Rule:
    """Return the rule for an int without a range. It checks the type and that the value fits into 64 bits."""

    def rule(value: object) -> str | None:
        if type(value) is not int:
            return f"must be an int, not {type_name(value)}: {unit}{_int_hint(value, hint)}"
        return None if value in _INT64 else f"must be {unit} as an int of at most 64 bits"

    return rule


def _int_hint(value: object, hint: str) -> str:
    is_convertible = isinstance(value, SupportsIndex) and not isinstance(value, bool)
    return "; convert it with int(...)" if is_convertible else hint


day_of_month = number(1, 31, "day of the month")


def boolean(value: object) -> str | None:
    """Check that a value is a bool; 1, "true" and NumPy's bool are refused."""
    return None if type(value) is bool else f"must be True or False, not {type_name(value)}"


def day(value: object) -> str | None:
    """Check that a value is a date without a time."""
    if missing_value_name(value) or not isinstance(value, date):  # NaT of pandas is an instance of date
        return f"must be a datetime.date, not {type_name(value)}"
    return "must be a date without a time; convert it with .date()" if isinstance(value, datetime) else None
