"""Rules for values, as data. Calling a rule returns a message if the value is invalid, else None."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime
from typing import TypeAlias

from attrs import field, frozen

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")  # line breaks are among them
_SURROGATE = re.compile("[\ud800-\udfff]")
_ANY_TEXT = r"[\s\S]*"
_NOTHING = r"(?!)"
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


def _plain_texts(values: Iterable[str]) -> tuple[str, ...]:
    """Return members of enumerations as plain str."""
    return tuple(map(str, values))


@frozen
class Text:
    """The rule for a text: a str that is not blank, that UTF-8 can encode, and that has the right form.

    Args:
        pattern: Regular expression that the whole text must match; None accepts every text.
        meaning: Form of a text that matches `pattern`, for the message.
        excluded: Regular expression that must not match any part of the text; None excludes nothing.
        exclusion: Message for a text that contains `excluded`.
        hint: Returns a text to append to the message for a value.
        may_be_blank: Accept empty texts and texts of spaces.
        single_line: Refuse line breaks and other control characters.
    """

    pattern: str | None = None
    meaning: str = ""
    excluded: str | None = None
    exclusion: str = ""
    hint: Callable[[object], str] = lambda _: ""
    may_be_blank: bool = False
    single_line: bool = False
    _matches: Callable[[str], object] = field(init=False, eq=False, repr=False)
    _contains: Callable[[str], object] = field(init=False, eq=False, repr=False)

    @_matches.default
    def _compile_pattern(self) -> Callable[[str], object]:
        return re.compile(_ANY_TEXT if self.pattern is None else self.pattern).fullmatch

    @_contains.default
    def _compile_excluded(self) -> Callable[[str], object]:
        return re.compile(_NOTHING if self.excluded is None else self.excluded).search

    @property
    def has_form(self) -> bool:
        """True if the rule has a pattern or an exclusion."""
        return self.pattern is not None or self.excluded is not None

    def __call__(self, value: object) -> str | None:
        message = self._check_text(value)
        if message is None:
            message = self.check_form(str(value))
        return None if message is None else message + self.hint(value)

    def check_form(self, value: str) -> str | None:
        """Check a printable text that is not blank."""
        if self._contains(value):
            return self.exclusion
        return None if self._matches(value) else f"must be {self.meaning}"

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


text = Text(single_line=True)  # for settings and codes, which are used in URLs and headers


@frozen
class Choice:
    """The rule for a value of an enumeration.

    Args:
        options: The values that are accepted.
        hint: Text to append to the message.
    """

    options: tuple[str, ...] = field(converter=_plain_texts)
    hint: str = ""

    def __call__(self, value: object) -> str | None:
        if value is None:
            return "is required"
        if isinstance(value, str) and value in self.options:
            return None
        return f"must be one of {', '.join(self.options)}{self.hint}"


@frozen
class Number:
    """The rule for an int in a range. It refuses True and 12.0.

    Args:
        least: The smallest number that is accepted.
        most: The largest number that is accepted.
        unit: Unit of the number, for the message.
        hint: Text to append to the message for a value of another type.
    """

    least: int
    most: int
    unit: str
    hint: str = ""

    def __call__(self, value: object) -> str | None:
        if type(value) is int and self.least <= value <= self.most:
            return None
        span = f"between {self.least} and {self.most}"
        if value is None:
            return f"is required: an int {span} ({self.unit})"
        if type(value) is not int:
            return f"must be an int, not {type_name(value)}: {self.unit}, {span}{self.hint}"
        return f"must be {span} ({self.unit})"


@frozen
class Integer:
    """The rule for an int without a range. It checks the type and that the value fits into 64 bits.

    Args:
        unit: Unit of the number, for the message.
        hint: Text to append to the message for a value of another type.
    """

    unit: str
    hint: str = ""

    def __call__(self, value: object) -> str | None:
        if type(value) is not int:
            return f"must be an int, not {type_name(value)}: {self.unit}{self.hint}"
        return None if value in _INT64 else f"must be {self.unit} as an int of at most 64 bits"


@frozen
class Boolean:
    """The rule for a bool; 1, "true" and NumPy's bool are refused."""

    def __call__(self, value: object) -> str | None:
        return None if type(value) is bool else f"must be True or False, not {type_name(value)}"


@frozen
class Day:
    """The rule for a date without a time."""

    def __call__(self, value: object) -> str | None:
        if missing_value_name(value) or not isinstance(value, date):  # NaT of pandas is an instance of date
            return f"must be a datetime.date, not {type_name(value)}"
        return (
            "must be a date without a time; convert it with .date()" if isinstance(value, datetime) else None
        )


@frozen
class Optional:
    """The rule for a field that may be None.

    Args:
        rule: The rule for all other values.
    """

    rule: "Rule"

    def __call__(self, value: object) -> str | None:
        if value is None:
            return None
        message = self.rule(value)
        return f"{message}; use None for missing values" if message and missing_value_name(value) else message


Rule: TypeAlias = Text | Choice | Number | Integer | Boolean | Day | Optional
